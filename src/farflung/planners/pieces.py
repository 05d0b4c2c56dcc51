"""A device's share as several stages that recompute: one second forward at a time is alive, so the largest piece counts.

Pieces are halves of halves: the inner cut of [a, b) is where the larger of both sides' second forwards, with what the cut adds,
is least. Exact for two pieces, near it for four. Cost: O(candidates^3) for two, once for each kind of device and number of
micro-batches in flight, a few milliseconds; four take as long again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Pieces", "in_pieces", "piece_bytes"]

Vector = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


class Pieces(NamedTuple):
    """Bytes of the stage between each two candidates (row: start, column: stop), infinite where there is none.

    ``always``: what adds up over stages of a device. ``again``: what is alive in a second forward and its backward alone.
    ``update``: what the update needs beside ``always``, at the least.
    """

    always: Vector
    again: Vector
    update: Vector


def piece_bytes(one: Pieces, count: int) -> Vector:
    """Bytes of each share in ``count`` pieces (1, 2, 4, ...) on one device."""
    found = one
    while count > 1:
        found, count = _halves(found)[0], count // 2
    return found.always + np.maximum(found.again, found.update)


def in_pieces(one: Pieces, share: Sequence[int], count: int) -> list[int]:
    """The candidates of the share (start, stop) in ``count`` pieces, both ends included."""
    levels = [one]
    cuts: list[Indices] = []
    while 1 << len(cuts) < count:
        found, middle = _halves(levels[-1])
        levels.append(found)
        cuts.append(middle)
    ends = [int(share[0]), int(share[1])]
    for middle in reversed(cuts):
        inner = [int(middle[a, b]) for a, b in pairwise(ends)]
        ends = sorted({*ends, *(cut for cut in inner if cut >= 0)})
    return ends


def _halves(each: Pieces) -> tuple[Pieces, Indices]:
    """Two neighbouring shares as one, and where they meet (-1: nowhere)."""
    n = len(each.always)
    best = np.full((n, n), np.inf)
    middle = np.full((n, n), -1, dtype=np.int64)
    for cut in range(1, n - 1):
        rows, columns = slice(0, cut), slice(cut + 1, n)
        again = np.maximum(each.again[rows, cut, None], each.again[None, cut, columns])
        total = again + each.always[rows, cut, None] + each.always[None, cut, columns]
        better = total < best[rows, columns]
        best[rows, columns] = np.where(better, total, best[rows, columns])
        middle[rows, columns] = np.where(better, cut, middle[rows, columns])
    starts, stops = np.arange(n)[:, None], np.arange(n)[None, :]
    there = middle >= 0
    left, right = (starts, np.maximum(middle, 0)), (np.maximum(middle, 0), stops)

    def both(part: Vector, join: np.ufunc) -> Vector:
        found: Vector = np.where(there, join(part[left], part[right]), np.inf)
        return found

    return Pieces(both(each.always, np.add), both(each.again, np.maximum), both(each.update, np.add)), middle
