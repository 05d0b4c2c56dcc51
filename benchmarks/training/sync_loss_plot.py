"""The picture of the ``sync-loss`` benchmark: held-out loss over time, a panel for each task, all seeds shaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.picture import new_figure, save

__all__ = ["draw"]


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Draw into ``path`` (.svg, .png or .pdf).

    Raises:
        InputError: the file's suffix names no picture, or it can't be written.
    """
    tasks = figures["curves"]
    figure = new_figure(path, 5.5 * len(tasks), 4)
    for axis, (task, curves) in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks.items(), strict=True):
        for index, (name, points) in enumerate(curves.items()):
            times = [point["seconds"] for point in points]
            axis.plot(times, [point["loss"] for point in points], "o-", color=f"C{index}", label=name)
            low, high = ([edge(point["losses"]) for point in points] for edge in (min, max))
            axis.fill_between(times, low, high, color=f"C{index}", alpha=0.2)
        axis.set(title=task, xlabel="seconds", ylabel="held-out loss (nats)")
        axis.legend(fontsize="small")
    save(figure, path)
