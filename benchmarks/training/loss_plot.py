"""The picture of the ``loss`` benchmark: evaluation loss over bytes and over time, one line per variant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.picture import label_panels, looks, new_figure, save

__all__ = ["draw"]

_ACROSS = (("bytes", "MB sent", 1e6), ("seconds", "seconds on the links", 1.0))


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Draw into ``path`` (.svg, .png or .pdf): a row for each phase, a column for bytes and, where known, one for seconds.

    Raises:
        InputError: the file's suffix names no picture, or it can't be written.
    """
    phases = figures["phases"]
    curves = [points for by_variant in phases.values() for points in by_variant.values()]
    columns = [column for column in _ACROSS if any(column[0] in point for points in curves for point in points)]
    styles = looks(variant for by_variant in phases.values() for variant in by_variant)
    figure = new_figure(path, 6.4 * len(columns), 3.4 * len(phases))
    panels = {}
    axes = figure.subplots(len(phases), len(columns), squeeze=False)
    for row, (phase, by_variant) in zip(axes, phases.items(), strict=True):
        for axis, (key, label, scale) in zip(row, columns, strict=True):
            ends = {}
            for variant, curve in by_variant.items():
                xs, ys = [point[key] / scale for point in curve if key in point], [p["eval_loss"] for p in curve if key in p]
                if xs:
                    look = styles[variant]
                    axis.plot(xs, ys, linestyle=look.dashes, marker=look.marker, markersize=4, label=variant, color=look.color)
                    ends[variant] = (xs[-1], ys[-1])
            axis.set(title=phase, xlabel=label, ylabel="evaluation loss", xscale="log" if ends else "linear")
            axis.grid(alpha=0.3)
            axis.xaxis.set_minor_formatter("")
            if max(losses := [y for line in axis.lines for y in line.get_ydata()], default=0.0) > 3 * min(losses, default=1.0):
                axis.set_yscale("log")  # a variant that diverges must not squash those that learn
                axis.yaxis.set_major_formatter("{x:g}")
                axis.yaxis.set_minor_formatter("{x:g}")
            panels[axis] = ends
    label_panels(figure, panels, styles)
    save(figure, path)
