"""The picture of the ``sync-loss`` benchmark: held-out loss over time or steps, a panel for each task, all seeds shaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.picture import label_panels, looks, new_figure, save

__all__ = ["draw"]


_WORDS = {"loss": "held-out loss (nats)", "divergence": "distance of replicas from their mean"}


def draw(figures: Mapping[str, Any], path: Path, axes: Sequence[tuple[str, str]] = (("seconds", "loss"),)) -> None:
    """Draw into ``path`` (.svg, .png or .pdf). ``axes``: for each panel of a task, what it shows of a point over what else.

    Raises:
        InputError: the file's suffix names no picture, or it can't be written.
    """
    tasks = figures["curves"]
    panels = {}
    styles = looks(name for curves in tasks.values() for name in curves)
    shown = [(task, curves, pair) for task, curves in tasks.items() for pair in axes]
    figure = new_figure(path, 6.2 * len(shown), 4)
    for axis, (task, curves, (over, what)) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for name, points in curves.items():
            look = styles[name]
            times = [point[over] for point in points]
            line = {"linestyle": look.dashes, "marker": look.marker, "markersize": 4, "color": look.color}
            axis.plot(times, [point[what] for point in points], label=name, **line)
            if what == "loss":
                low, high = ([edge(point["losses"]) for point in points] for edge in (min, max))
                axis.fill_between(times, low, high, color=look.color, alpha=0.2)
        axis.set(title=task, xlabel=over, ylabel=_WORDS[what])
        panels[axis] = {name: (points[-1][over], points[-1][what]) for name, points in curves.items()}
    label_panels(figure, panels, styles)
    save(figure, path)
