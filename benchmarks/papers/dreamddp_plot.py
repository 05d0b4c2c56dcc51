"""The picture of the ``dreamddp`` benchmark: iteration times of each method, predicted beside printed, a panel for each model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.picture import looks, new_figure, save

__all__ = ["draw"]


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Draw Table 1 into ``path`` (.svg, .png or .pdf): bars for our prediction, crosses for the paper's values.

    Raises:
        InputError: the file's suffix names no picture, or it can't be written.
    """
    runs = figures["table_1"]
    methods = list(runs[0]["seconds"])
    styles = looks(methods)
    columns = min(4, len(runs))
    rows = -(-len(runs) // columns)
    figure = new_figure(path, 3.2 * columns, 2.8 * rows)
    axes = figure.subplots(rows, columns, sharex=True, squeeze=False).reshape(-1)
    for axis, run in zip(axes, runs, strict=False):
        colors = [styles[method].color for method in methods]
        axis.bar(range(len(methods)), [run["seconds"][method] for method in methods], color=colors)
        printed = [(place, run["paper"][method]) for place, method in enumerate(methods) if method in run["paper"]]
        axis.plot([place for place, _ in printed], [value for _, value in printed], "kx", label="the paper")
        axis.set_title(f"{run['model']}, {run['workers']} workers")
        axis.set_xticks(range(len(methods)), methods, rotation=60, ha="right", fontsize="small")
    for axis in axes[::columns]:
        axis.set_ylabel("seconds per iteration")
    axes[0].legend()
    for axis in axes[len(runs) :]:
        axis.remove()
    save(figure, path)
