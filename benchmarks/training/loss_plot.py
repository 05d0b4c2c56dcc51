"""The picture of the ``loss`` benchmark: evaluation loss over bytes and over time, one line per variant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.picture import new_figure, save

__all__ = ["draw"]


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Draw into ``path`` (.svg, .png or .pdf): a row for each phase, loss over bytes and, where known, over seconds.

    Raises:
        InputError: the file's suffix names no picture, or it can't be written.
    """
    phases = figures["phases"]
    figure = new_figure(path, 11, 4 * len(phases))
    axes = figure.subplots(len(phases), 2, squeeze=False)
    for row, (phase, curves) in zip(axes, phases.items(), strict=True):
        for axis, key, label, scale in ((row[0], "bytes", "MB sent", 1e6), (row[1], "seconds", "seconds on the links", 1.0)):
            for index, (variant, curve) in enumerate(curves.items()):
                points = [(point[key] / scale, point["eval_loss"]) for point in curve if key in point]
                if points:
                    style = "--" if variant.startswith("topk") else "-"
                    xs, ys = zip(*points, strict=True)
                    axis.plot(xs, ys, style, marker=".", label=variant, color=f"C{index % 10}")
            axis.set_xlabel(label)
            axis.set_ylabel("evaluation loss")
            axis.set_title(phase)
            if axis.lines:
                axis.set_xscale("log")
                axis.legend(fontsize="x-small", ncols=2)
    save(figure, path)
