"""Which tokens fill which sample.

Documents lie one after the other in one array of tokens. A *piece* is a range of it inside one document, and a sample is a few
pieces. ``whole`` packs by best fit in descending order of lengths (Johnson 1974): at most 11/9 of the fewest samples and six.
Cost: O(n log n).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Packing", "pack"]

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Sample ``i`` has the pieces ``bounds[i]`` to ``bounds[i + 1]``; a piece begins at ``starts`` and has ``lengths`` tokens."""

    starts: Numbers
    lengths: Numbers
    bounds: Numbers

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.bounds) - 1

    def pieces(self, sample: int) -> list[tuple[int, int]]:
        """Start and length of each piece of a sample."""
        first, last = int(self.bounds[sample]), int(self.bounds[sample + 1])
        return list(zip(self.starts[first:last].tolist(), self.lengths[first:last].tolist(), strict=True))


def pack(offsets: Numbers, sequence: int, how: str, *, cut: bool = False) -> Packing:
    """Fill samples of ``sequence`` tokens with the documents between ``offsets``.

    Args:
        offsets: where each document begins; the last one is the number of tokens.
        sequence: tokens of a sample.
        how: ``whole``, ``none`` or ``split`` (see ``DataSpec.packing``).
        cut: drop what a document has beyond a sample, in place of a piece of its own.
    """
    if how == "split":  # samples share no token; the target of a sample's last token is the next sample's first
        starts = np.arange(0, max(int(offsets[-1]) - 1, 0) // sequence * sequence, sequence, dtype=np.int64)
        return Packing(starts=starts, lengths=np.full_like(starts, sequence), bounds=np.arange(len(starts) + 1, dtype=np.int64))
    starts, lengths = _pieces(offsets, sequence, cut)
    if how == "none":
        return Packing(starts=starts, lengths=lengths, bounds=np.arange(len(starts) + 1, dtype=np.int64))
    samples = _best_fit(lengths, sequence)
    order = np.array([piece for sample in samples for piece in sample], np.int64)
    bounds = np.cumsum([0, *map(len, samples)], dtype=np.int64)
    return Packing(starts=starts[order], lengths=lengths[order], bounds=bounds)


def _pieces(offsets: Numbers, sequence: int, cut: bool) -> tuple[Numbers, Numbers]:
    """Documents as pieces of at most ``sequence`` tokens."""
    lengths = np.diff(offsets)
    counts = np.minimum(-(-lengths // sequence), 1) if cut else -(-lengths // sequence)
    document = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = offsets[:-1][document] + number * sequence
    return starts, np.minimum(offsets[1:][document] - starts, sequence)


def _best_fit(lengths: Numbers, sequence: int) -> list[list[int]]:
    """Pieces by sample, in the order of each sample's first piece. A longer piece goes first, then the earlier one."""
    samples: list[list[int]] = []
    by_room: dict[int, list[int]] = defaultdict(list)  # room left -> samples with this room
    rooms: list[int] = []
    for piece in _descending(lengths):
        length = int(lengths[piece])
        place = bisect_left(rooms, length)
        if place == len(rooms):
            sample, room = len(samples), sequence
            samples.append([])
        else:
            room = rooms[place]
            sample = by_room[room].pop()
            if not by_room[room]:
                del rooms[place]
        samples[sample].append(piece)
        left = room - length
        if left:
            if not by_room[left]:
                insort(rooms, left)
            by_room[left].append(sample)
    return samples


def _descending(lengths: Numbers) -> Sequence[int]:
    found: list[int] = np.argsort(-lengths, kind="stable").tolist()
    return found
