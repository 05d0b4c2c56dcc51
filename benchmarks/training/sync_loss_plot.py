"""The picture of the ``sync-loss`` benchmark: held-out loss over time or steps, a panel for each task, all seeds shaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.picture import label_panels, looks, new_figure, save

__all__ = ["draw"]


def draw(figures: Mapping[str, Any], path: Path, over: str = "seconds") -> None:
    """Draw into ``path`` (.svg, .png or .pdf). ``over``: ``seconds`` or ``steps``.

    Raises:
        InputError: the file's suffix names no picture, or it can't be written.
    """
    tasks = figures["curves"]
    panels = {}
    styles = looks(name for curves in tasks.values() for name in curves)
    figure = new_figure(path, 6.2 * len(tasks), 4)
    for axis, (task, curves) in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks.items(), strict=True):
        for name, points in curves.items():
            look = styles[name]
            times = [point[over] for point in points]
            line = {"linestyle": look.dashes, "marker": look.marker, "markersize": 4, "color": look.color}
            axis.plot(times, [point["loss"] for point in points], label=name, **line)
            low, high = ([edge(point["losses"]) for point in points] for edge in (min, max))
            axis.fill_between(times, low, high, color=look.color, alpha=0.2)
        axis.set(title=task, xlabel=over, ylabel="held-out loss (nats)")
        panels[axis] = {name: (points[-1][over], points[-1]["loss"]) for name, points in curves.items()}
    label_panels(figure, panels, styles)
    save(figure, path)
