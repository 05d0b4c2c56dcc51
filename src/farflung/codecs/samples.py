"""Difference coding of activations: a sample that comes again sends what has changed since its last visit.

Both ends of a link keep for each sample what the receiver has of its value. A message sends d = x - h by a lossy codec, and both
add what arrives to h, which is the receiver's value. J. Wang et al., "Fine-tuning Language Models over Slow Networks using
Activation Compression with Guarantees" (AQ-SGD), 2022, Algorithm 1. Differences: a first visit goes by ``first`` or, without one,
by the same codec from h = 0, so that it costs no more than any other visit and h comes nearer with each (EF21, P. Richtarik et
al., 2021); and samples are known by what they hold, not by a number in a data set, so data that a caller feeds in work, too.

The two tables of a link get the same messages in the same order, so they hold the same bits; a message tells how many there were
before it, and a receiver that has had another number refuses it. Memory: one array of float32 for each sample at both ends, up to
``limit`` bytes; samples beyond it are coded as if they came for the first time. Cost: one decode and four passes more than the
codec.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from farflung.codecs.base import Array, Codec, Payload
from farflung.codecs.keys import keyed
from farflung.codecs.members import decode_payload
from farflung.errors import CodecError
from farflung.memory_budget import MemoryBudget

__all__ = ["Ids", "SampleCoder", "SampleTable", "sample_ids"]

#: One number for each sample of a micro-batch, uint64.
Ids = NDArray[np.uint64]


@dataclass(slots=True, kw_only=True)
class SampleTable:
    """What one end of a link remembers of one value, by sample: 1-D float32 arrays; ``messages``: how many have changed it.

    The arrays count in ``budget``.
    """

    limit: int
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    held: dict[int, Array] = field(default_factory=dict)
    messages: int = 0
    nbytes: int = 0

    def known(self, ids: Ids) -> NDArray[np.bool_]:
        """Which samples are held."""
        return np.array([int(number) in self.held for number in ids], np.bool_)

    def bases(self, ids: Ids, width: int) -> Array:
        """What is held of each sample, (samples, width); zeros where nothing, or something of another size."""
        rows = np.zeros((len(ids), width), np.float32)
        for row, number in zip(rows, ids, strict=True):
            found = self.held.get(int(number))
            if found is not None and found.size == width:
                row[:] = found
        return rows

    def restart(self) -> None:
        """Count messages from here: both ends hold the same."""
        self.messages = 0

    def put(self, ids: Ids, rows: Array) -> None:
        """Hold ``rows`` of ``ids``: those that were there before, and others as far as the limit lets.

        Raises:
            MemoryExceeded: the budget has no room for another sample.
        """
        self.messages += 1
        for number, row in zip(ids, rows, strict=True):
            before = self.held.get(int(number))
            more = row.nbytes - (0 if before is None else before.nbytes)
            if before is not None and not more:
                before[:] = row
            elif self.nbytes + more <= self.limit:
                with self.budget.transferred(row.nbytes, "a sample of a link's cache (codec.memory_bytes bounds it)") as owns:
                    self.held[int(number)] = np.array(row)
                    owns(self.held[int(number)])
                self.nbytes += more


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCoder:
    """``codec`` for differences; ``first`` for samples that are not known (None: ``codec``, too)."""

    codec: Codec
    first: Codec | None = None

    def encode(self, array: Array, ids: Ids, table: SampleTable, *key: int | str) -> tuple[Payload, ...]:
        """The payloads of float ``array``, the elements of one sample after the other in C order; ``table`` is changed.

        One for all samples; with ``first`` one for those that are new and one for those that are known, where there are any.

        Raises:
            CodecError: the elements don't divide by the samples.
        """
        rows = _rows(array, ids)
        bases = table.bases(ids, rows.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = rows.astype(np.float32) - bases
        groups = self._groups(table.known(ids))
        payloads = tuple(keyed(codec, *key, part).encode(wanted[places]) for part, (codec, places) in enumerate(groups))
        _add(bases, groups, payloads)
        table.put(ids, _finite(bases))
        return payloads

    def decode(self, payloads: Sequence[Payload], ids: Ids, table: SampleTable, width: int) -> Array:
        """The samples, (samples, width), float32; ``table`` is changed as the sender's was.

        Raises:
            CodecError: the payloads are not those that the table asks for, or malformed.
        """
        bases = table.bases(ids, width)
        groups = self._groups(table.known(ids))
        if len(groups) != len(payloads):
            raise CodecError(f"a value of known samples needs {len(groups)} payloads, got {len(payloads)}: the two ends disagree")
        for payload, (_, places) in zip(payloads, groups, strict=True):
            payload.expect("float32", (len(places), width))
        _add(bases, groups, payloads)
        table.put(ids, _finite(bases))
        return bases

    def _groups(self, known: NDArray[np.bool_]) -> list[tuple[Codec, NDArray[np.intp]]]:
        """Codecs and the places of the samples that they code."""
        if self.first is None:
            return [(self.codec, np.arange(len(known)))]
        groups = [(self.first, np.flatnonzero(~known)), (self.codec, np.flatnonzero(known))]
        return [(codec, places) for codec, places in groups if len(places)]


def sample_ids(arrays: Sequence[Array], samples: int) -> Ids:
    """A number for each of ``samples`` samples: BLAKE2b of what the arrays, (samples, ...), hold of it."""
    whole = [np.ascontiguousarray(array) for array in arrays if array.ndim and array.shape[0] == samples]
    found = np.empty(samples, np.uint64)
    for row in range(samples):
        digest = blake2b(digest_size=8)
        for array in whole:
            digest.update(array[row].tobytes())
        found[row] = int.from_bytes(digest.digest(), "little")
    return found


def _rows(array: Array, ids: Ids) -> Array:
    if not len(ids) or array.size % len(ids):
        raise CodecError(f"{array.size} elements are not those of {len(ids)} samples")
    return np.ascontiguousarray(array).reshape(len(ids), -1)


def _add(bases: Array, groups: Sequence[tuple[Codec, NDArray[np.intp]]], payloads: Sequence[Payload]) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        for payload, (_, places) in zip(payloads, groups, strict=True):
            bases[places] += decode_payload(payload)


def _finite(rows: Array) -> Array:
    """``rows`` with zeros in place of what is not finite, so that a NaN does not stay for ever."""
    bad = ~np.isfinite(rows)
    return np.where(bad, np.float32(0), rows) if bad.any() else rows
