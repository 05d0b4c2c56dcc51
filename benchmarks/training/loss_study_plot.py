"""The picture of the ``loss-study`` benchmark: final loss over the share of the bytes, a field for each case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.picture import new_figure, save

__all__ = ["draw"]


def draw(means: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw into ``path`` (.svg, .png or .pdf) what ``loss_study.summary`` gives.

    Raises:
        InputError: the file's suffix names no picture, or it can't be written.
    """
    cases = list(dict.fromkeys((row["model"], row["way"], row["phase"]) for row in means))
    count = max(1, -(-len(cases) // 2))
    figure = new_figure(path, 11, 4 * count)
    axes = figure.subplots(count, 2, squeeze=False).reshape(-1)
    for axis, case in zip(axes, cases, strict=False):
        rows = [row for row in means if (row["model"], row["way"], row["phase"]) == case]
        for number, row in enumerate(rows):
            marker = "*" if row["variant"] == "auto" else "o"
            axis.plot([row["ratio"]], [row["loss"]], marker, label=row["variant"], color=f"C{number % 10}")
        axis.set_xscale("log")
        axis.set_xlabel("dense bytes over sent bytes")
        axis.set_ylabel("loss on what was held back")
        axis.set_title(", ".join(case))
        if axis.lines:
            axis.legend(fontsize="x-small", ncols=2)
    save(figure, path)
