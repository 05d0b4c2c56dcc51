"""The picture of the ``sync-loss`` benchmark: held-out loss over time, a panel for each task, all seeds shaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farflung.errors import InputError

__all__ = ["draw"]


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Draw into ``path`` (.svg, .png or .pdf).

    Raises:
        InputError: the file's suffix names no picture, or it can't be written.
    """
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise InputError(f"a plot is written as .svg, .png or .pdf, not as {path.name!r}")
    from matplotlib.figure import Figure

    tasks = figures["curves"]
    figure = Figure(figsize=(5.5 * len(tasks), 4), layout="constrained")
    for axis, (task, curves) in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks.items(), strict=True):
        for index, (name, points) in enumerate(curves.items()):
            times = [point["seconds"] for point in points]
            axis.plot(times, [point["loss"] for point in points], "o-", color=f"C{index}", label=name)
            low, high = ([edge(point["losses"]) for point in points] for edge in (min, max))
            axis.fill_between(times, low, high, color=f"C{index}", alpha=0.2)
        axis.set(title=task, xlabel="seconds", ylabel="held-out loss (nats)")
        axis.legend(fontsize="small")
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
