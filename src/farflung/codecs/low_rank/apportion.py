"""The ranks of matrices that are exchanged at once, so that together they take one share of their bytes.

``lowrank`` with a ``ratio`` bounds each matrix alone: ranks are whole numbers, so much of a share is left over in one matrix, and
small ones need more than theirs. Here the share of all is given out: each begins with the least, then direction after direction
goes to the matrix that has the most bytes for each that its factors would take, as long as it fits (V. D'Hondt, 1882, who shared
seats out by votes). What alone would go at a bit for each element stays so: that keeps more than a direction does. Ranks depend
on shapes alone, so they stay the same from step to step; payloads say them.
Cost: a heap of the matrices, a turn for each direction; once for the same shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from heapq import heapify, heappop, heappush

from farflung.codecs.base import FLOATING, Array, Codec
from farflung.codecs.low_rank.lowrank import LowRank, matrix_shape

__all__ = ["apportioned"]

#: Rows, columns, bytes of an element.
Matrix = tuple[int, int, int]


def apportioned(codec: Codec, arrays: Mapping[str, Array]) -> dict[str, Codec]:
    """The codec of each of ``arrays``: ``codec`` itself but for ``lowrank`` with a ratio."""
    if not isinstance(codec, LowRank) or codec.ratio == 1.0:
        return dict.fromkeys(arrays, codec)
    floats = {name: array for name, array in arrays.items() if array.size and array.dtype.name in FLOATING}
    matrices = tuple((*matrix_shape(array.shape), array.itemsize) for array in floats.values())
    ranks = dict(zip(floats, _ranks(replace(codec, seed=0), matrices), strict=True))
    return {name: replace(codec, rank=ranks[name], ratio=1.0) if ranks.get(name) else codec.rest for name in arrays}


@lru_cache(maxsize=256)
def _ranks(codec: LowRank, matrices: tuple[Matrix, ...]) -> tuple[int, ...]:
    """The rank of each of ``matrices``; 0: without factors."""
    ranks = [codec.least_rank(*matrix) for matrix in matrices]
    sizes = [float(rows * columns * itemsize) for rows, columns, itemsize in matrices]
    left = sum(sizes) / codec.ratio - sum(codec.factor_bytes(*one, rank) for one, rank in zip(matrices, ranks, strict=True))
    turns = [
        (_turn(codec, matrix, ranks[number], sizes[number]), number)
        for number, matrix in enumerate(matrices)
        if codec.rank_of(*matrix)
    ]
    heapify(turns)
    while turns:
        _, number = heappop(turns)
        matrix, rank = matrices[number], ranks[number] + 1
        more = codec.factor_bytes(*matrix, rank) - codec.factor_bytes(*matrix, rank - 1)
        if more <= left and rank <= min(codec.rank, *matrix[:2]):
            ranks[number], left = rank, left - more
            heappush(turns, (_turn(codec, matrix, rank, sizes[number]), number))
    return tuple(ranks)


def _turn(codec: LowRank, matrix: Matrix, rank: int, size: float) -> float:
    """Least for the matrix whose next direction comes next."""
    return codec.factor_bytes(*matrix, rank + 1) / size
