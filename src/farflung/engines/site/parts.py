"""What each rank of a site has of an array whose dimension is divided among them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from farflung.engines.base import Array
from farflung.graph.tensor_parallel import Split

__all__ = ["joined", "part_of"]


def part_of(whole: Array, split: Split, rank: int, ranks: int) -> Array:
    """The part of ``rank``, with zeros for padding."""
    before = (slice(None),) * split.dim
    parts = [whole[(*before, slice(start, stop))] for start, stop in split.ranges(rank, ranks)]
    missing = split.part(ranks) - sum(part.shape[split.dim] for part in parts)
    if missing:
        parts.append(np.zeros((*whole.shape[: split.dim], missing, *whole.shape[split.dim + 1 :]), dtype=whole.dtype))
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=split.dim)


def joined(parts: Sequence[Array], split: Split) -> Array:
    """The whole of the ``parts`` of all ranks."""
    shape = list(parts[0].shape)
    shape[split.dim] = split.size
    whole = np.empty(shape, dtype=parts[0].dtype)
    before = (slice(None),) * split.dim
    for rank, part in enumerate(parts):
        begin = 0
        for start, stop in split.ranges(rank, len(parts)):
            whole[(*before, slice(start, stop))] = part[(*before, slice(begin, begin + stop - start))]
            begin += stop - start
    return whole
