"""The picture of the ``loss-study`` benchmark: final loss over the share of the bytes, a panel for each case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.picture import label_panels, looks, new_figure, save

__all__ = ["draw"]


def draw(means: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw into ``path`` (.svg, .png or .pdf) what ``loss_study.summary`` gives.

    Raises:
        InputError: the file's suffix names no picture, or it can't be written.
    """
    cases = list(dict.fromkeys((row["model"], row["way"], row["phase"]) for row in means))
    count = max(1, -(-len(cases) // 2))
    figure = new_figure(path, 12, 3.6 * count)
    axes = figure.subplots(count, 2, squeeze=False).reshape(-1)
    panels = {}
    styles = looks(row["variant"] for row in means)
    for axis, case in zip(axes, cases, strict=False):
        rows = [row for row in means if (row["model"], row["way"], row["phase"]) == case]
        for row in rows:
            look = styles[row["variant"]]
            marker, size = ("*", 12) if row["variant"] == "auto" else (look.marker, 7)
            axis.plot([row["ratio"]], [row["loss"]], marker, markersize=size, label=row["variant"], color=look.color)
        axis.set(title=", ".join(case), xscale="log", xlabel="dense bytes over sent bytes", ylabel="loss on held-out data")
        axis.xaxis.set_minor_formatter("")
        panels[axis] = {row["variant"]: (row["ratio"], row["loss"]) for row in rows}
    label_panels(figure, panels, styles)
    save(figure, path)
