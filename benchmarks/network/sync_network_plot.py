"""The picture of the ``sync-network`` benchmark: iteration time over x, a panel for each model, measured and predicted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.picture import label_panels, looks, new_figure, save

__all__ = ["draw"]


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Draw into ``path`` (.svg, .png or .pdf): seconds per step over the forward and backward, lines measured, dashes predicted.

    Raises:
        InputError: the file's suffix names no picture, or it can't be written.
    """
    runs = figures["runs"]
    models = list(dict.fromkeys(run["model"] for run in runs))
    panels = {}
    styles = looks(run["strategy"] for run in runs)
    figure = new_figure(path, 6.2 * len(models), 4)
    for axis, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        own = [run for run in runs if run["model"] == model]
        ends = {}
        for strategy in dict.fromkeys(run["strategy"] for run in own):
            points = sorted((run for run in own if run["strategy"] == strategy), key=lambda run: run["x"])
            xs = [run["x"] for run in points]
            look = styles[strategy]
            measured, predicted = (
                [run[key] / (run["forward"] + run["backward"]) for run in points] for key in ("seconds", "predicted")
            )
            axis.plot(xs, measured, "-", marker=look.marker, markersize=5, color=look.color, label=strategy)
            axis.plot(xs, predicted, "--", color=look.color)
            ends[strategy] = (xs[-1], measured[-1])
        axis.set(title=model, xscale="log", yscale="log", xlabel="communication / (H x backward)")
        axis.set_ylabel("step / (forward + backward)")
        axis.xaxis.set_minor_formatter("")
        panels[axis] = ends
    label_panels(figure, panels, styles)
    save(figure, path)
