"""Which elements a sparse codec keeps: the largest magnitudes, found exactly, by blocks, or by a threshold from a sample.

Magnitudes are compared as bit patterns: their order as integers is that of the numbers, with infinity above all numbers and NaN
above infinity, so that a NaN is never hidden. Ties go to the lowest index. Zeros are not kept even if fewer than k elements
differ from zero. All three give ascending indices.

- ``exact``: a sampled threshold first throws away most elements; where the sample misleads, all are partitioned. Cost: three
  passes over the array and a quickselect of about 1.3 k candidates.
- ``blocks``: the largest of each 4096 elements, in equal numbers. Needs no view of the whole array, so blocks can be selected
  while others are still computed. Heavy-tailed data lose about 1 % of the kept energy. Cost: a quickselect of all blocks.
- ``sampled``: everything above a threshold that a sample of 128 k elements suggests; the number kept is within 5 % of k, or
  else the exact selection takes its place. Cost: two passes. (DGC, Y. Lin et al., 2018, section 5, samples likewise.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from farflung.codecs.base import Array
from farflung.codecs.sparse.indices import Indices

__all__ = ["SELECTIONS", "select", "select_blocks", "select_sampled"]

_SAMPLES = 1 << 14
_LARGE_SAMPLE = 1 << 17
_TOLERANCE = 0.05
_BLOCK = 1 << 12
_BITS: dict[int, tuple[type[np.unsignedinteger], int]] = {
    2: (np.uint16, 0x7FFF),
    4: (np.uint32, 0x7FFF_FFFF),
    8: (np.uint64, 0x7FFF_FFFF_FFFF_FFFF),
}
Bits = NDArray[np.unsignedinteger]


def select(flat: Array, count: int) -> Indices:
    """Indices of the ``count`` largest magnitudes of 1-D floating-point ``flat``."""
    bits = _magnitudes(flat)
    candidates: Indices | None = _candidates(bits, count)
    if candidates is None:
        threshold = np.partition(bits, bits.size - count)[bits.size - count]
        candidates = np.flatnonzero(bits >= max(threshold, bits.dtype.type(1)))
    return candidates[_largest(bits[candidates], count)]


def select_blocks(flat: Array, count: int) -> Indices:
    """Indices of the largest magnitudes of each 4096 elements of 1-D ``flat``, ``count`` in all if not for zeros."""
    bits = _magnitudes(flat)
    blocks = -(-bits.size // _BLOCK)
    if blocks < 2:
        return select(flat, count)
    whole, found = bits.size // _BLOCK, []
    ends = [min((number + 1) * _BLOCK, bits.size) * count // bits.size for number in range(blocks)]
    quotas = np.diff(ends, prepend=0)
    for quota in np.unique(quotas[:whole]) if whole else ():
        numbers = np.flatnonzero(quotas[:whole] == quota)
        if quota:
            found.append(_select_rows(bits[: whole * _BLOCK].reshape(whole, _BLOCK), numbers, int(quota)))
    if whole < blocks and quotas[-1]:
        found.append(whole * _BLOCK + select(flat[whole * _BLOCK :], int(quotas[-1])))
    return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)


def select_sampled(flat: Array, count: int) -> Indices:
    """Indices of the magnitudes above a sampled threshold, within 5 % of ``count`` (else those of ``select``)."""
    bits = _magnitudes(flat)
    if bits.size >= 2 * _LARGE_SAMPLE:
        sample = bits[:: bits.size // _LARGE_SAMPLE]
        rank = max(1, round(sample.size * count / bits.size))
        threshold = np.partition(sample, sample.size - rank)[sample.size - rank]
        found: Indices = np.flatnonzero(bits >= max(threshold, bits.dtype.type(1)))
        if abs(found.size - count) <= _TOLERANCE * count:
            return found
    return select(flat, count)


SELECTIONS: Mapping[str, Callable[[Array, int], Indices]] = {
    "exact": select,
    "blocks": select_blocks,
    "sampled": select_sampled,
}


def _magnitudes(flat: Array) -> Bits:
    kind, mask = _BITS[flat.dtype.itemsize]
    bits: Bits = flat.view(kind) & kind(mask)
    return bits


def _largest(chosen: Bits, count: int) -> NDArray[np.bool_]:
    """Which of ``chosen`` are the ``count`` largest, ties to the lowest."""
    if chosen.size <= count:
        return np.ones(chosen.size, np.bool_)
    threshold = np.partition(chosen, chosen.size - count)[chosen.size - count]
    keep: NDArray[np.bool_] = chosen >= threshold
    surplus = int(np.count_nonzero(keep)) - count
    if surplus:
        ties = np.flatnonzero(chosen == threshold)
        keep[ties[ties.size - surplus :]] = False
    return keep


def _candidates(bits: Bits, count: int) -> Indices | None:
    """A superset of the ``count`` largest, of about 1.3 times as many; None if the sample can't tell."""
    if bits.size < 4 * _SAMPLES or count > bits.size // 8:
        return None
    sample = bits[:: bits.size // _SAMPLES]
    expected = sample.size * count / bits.size
    rank = int(expected + 4.0 * expected**0.5) + 2
    threshold = np.partition(sample, sample.size - rank)[sample.size - rank]
    if threshold == 0:
        return None
    candidates = np.flatnonzero(bits >= threshold)
    return candidates if candidates.size >= count else None


def _select_rows(rows: Bits, numbers: Indices, quota: int) -> Indices:
    """Indices (into all rows as one) of the ``quota`` largest of each of the rows ``numbers``; some rows at a time."""
    found = []
    width = rows.shape[1]
    for first in range(0, numbers.size, 64):
        chosen: Indices = numbers[first : first + 64]
        part = rows[chosen]
        thresholds = np.maximum(np.partition(part, width - quota, axis=1)[:, width - quota], 1)
        keep = part >= thresholds[:, None]
        for crowded in np.flatnonzero(np.count_nonzero(keep, axis=1) > quota):
            keep[crowded] &= _largest(part[crowded], quota)
        row, column = np.nonzero(keep)
        found.append(chosen[row] * width + column)
    return np.concatenate(found)
