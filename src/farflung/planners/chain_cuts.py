"""The best cuts of a chain from the seconds of each slot: dynamic programs over arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["SlotParts", "best_pace", "best_total"]

Vector = npt.NDArray[np.float64]


class SlotParts(NamedTuple):
    """Seconds of a stage: computing (row: start, column: stop), the busier wire and the whole way to it (by start).

    ``reach``: the least of ``compute`` for a start and all stops from a given one on.
    """

    compute: Vector
    wire: Vector
    way: Vector
    reach: Vector


def best_pace(tables: Sequence[SlotParts]) -> float:
    """Return the least pace of any cuts: seconds of the slowest stage."""
    best = np.full(len(tables[0][0]), np.inf)
    best[0] = 0.0
    for compute, wire, *_ in tables[:-1]:
        rows = _reached(best)
        before = np.maximum(best[rows], wire[rows])
        best = np.full(len(best), np.inf)
        columns = slice(rows.start + 1, None)  # a stage is not empty
        best[columns] = np.maximum(before[:, None], compute[rows, columns]).min(axis=0, initial=np.inf)
    compute, wire, *_ = tables[-1]
    return float(np.maximum(np.maximum(best, wire), compute[:, -1]).min())


def _reached(best: Vector) -> slice:
    """From the first to the last candidate that stages so far can end at."""
    there = np.flatnonzero(best < np.inf)
    return slice(int(there[0]), int(there[-1]) + 1) if len(there) else slice(0, 0)


def _first_starts(tables: Sequence[SlotParts], limit: float) -> list[int]:
    """For each stage a candidate before which none can start, if all that follows shall stay under ``limit``; then the end."""
    least = [len(tables[0][0]) - 1]
    for stage in reversed(tables):
        able = (stage.reach[:, least[-1]] <= limit) & (stage.wire <= limit)
        least.append(int(able.argmax()))
    return least[::-1]


def best_total(tables: Sequence[SlotParts], limit: float) -> list[int]:
    """Candidates (indices, both ends included) of the plan with the least total whose pace stays under ``limit``.

    Forward only the least sums are kept; the choices that made them are found again along the one way back.
    """
    best = np.full(len(tables[0][0]), np.inf)
    best[0] = 0.0
    first = _first_starts(tables, limit) if limit < np.inf else [0] * (len(tables) + 1)
    sums = []
    for j, (compute, wire, way, _) in enumerate(tables):
        before = best + way if limit == np.inf else np.where(wire <= limit, best + way, np.inf)
        sums.append(before)
        if j < len(tables) - 1:
            reached = _reached(before)
            rows = slice(max(reached.start, first[j]), reached.stop)
            columns = slice(max(rows.start, first[j + 1] - 1) + 1, None)
            stage = compute[rows, columns]
            if limit < np.inf:
                stage = np.where(stage <= limit, stage, np.inf)
            best = np.full(len(best), np.inf)
            best[columns] = (before[rows, None] + stage).min(axis=0, initial=np.inf)
    cuts = [len(best) - 1]
    for before, (compute, *_) in zip(reversed(sums), reversed(tables), strict=True):
        stage = compute[:, cuts[-1]]
        cuts.append(int((before + np.where(stage <= limit, stage, np.inf)).argmin()))
    return cuts[::-1]
