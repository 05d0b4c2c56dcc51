"""Several sources in fixed proportions, with an order that is a function of seed and position alone.

Positions run in blocks of ``BLOCK``. Each block has the same number of samples of each source, in proportion to the weights, in a
keyed order. So the number of samples of a source before any position is known without counting.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from farflung.data.base import Array, Source
from farflung.data.pixels import image_fields
from farflung.data.sampler import Permutation, Sampler
from farflung.errors import DataError, InputError
from farflung.graph.ir import TensorSpec
from farflung.ids import derive_seed

__all__ = ["BLOCK", "Mixture", "MixtureSampler", "shares"]

#: Samples after which proportions are exact to a sample.
BLOCK = 4096


def shares(weights: Sequence[float]) -> list[int]:
    """How many samples of a block each weight has (largest remainders).

    Raises:
        InputError: one has none.
    """
    exact = np.asarray(weights, np.float64) / sum(weights) * BLOCK
    found = np.floor(exact).astype(np.int64)
    order = np.argsort(found - exact, kind="stable")
    found[order[: BLOCK - int(found.sum())]] += 1
    if not found.all():
        index = int(np.argmin(found))
        raise InputError(
            f"data.mixture[{index}].weight = {weights[index]:g} is below 1/{BLOCK} of all weights: raise it, or remove it"
        )
    return [int(one) for one in found]


class Mixture:
    """The sources ``parts`` with ``weights``. Samples of all parts are numbered one part after the other."""

    def __init__(self, parts: Sequence[Source], weights: Sequence[float]) -> None:
        self.parts, self.weights = tuple(parts), tuple(weights)

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that all parts have."""
        first, *others = self.parts
        return tuple(name for name in first.names if all(name in part.names for part in others))

    @property
    def size(self) -> int:
        """Number of samples of all parts."""
        return sum(part.size for part in self.parts)

    def spec(self, field: str) -> TensorSpec:
        """Element type and shape of a sample's field, the same in all parts.

        Raises:
            DataError: they differ.
        """
        found = [part.spec(field) for part in self.parts]
        if len(set(found)) > 1:
            raise DataError(f"the datasets of data.mixture have {field!r} in different shapes or types: make them equal")
        return found[0]

    def sampler(self, seed: int) -> MixtureSampler:
        """The order of the samples under ``seed``."""
        return MixtureSampler([part.size for part in self.parts], self.weights, seed)

    def batch(self, indices: NDArray[np.int64], fields: Collection[str]) -> dict[str, Array]:
        """The samples ``indices``."""
        ends = np.cumsum([part.size for part in self.parts])
        owners = np.searchsorted(ends, indices, side="right")
        found: dict[str, Array] = {}
        for number in np.unique(owners).tolist():
            rows = owners == number
            part = self.parts[number]
            for field, values in part.batch(indices[rows] - (ends[number] - part.size), fields).items():
                whole = found.setdefault(field, np.empty((len(indices), *values.shape[1:]), values.dtype))
                whole[rows] = values
        return found

    def image_fields(self, fields: Collection[str]) -> frozenset[str]:
        """Those that hold images in all parts."""
        return frozenset(fields).intersection(*(image_fields(part, fields) for part in self.parts))

    def check(self, fields: Collection[str] | None = None) -> None:
        """See that the files of all parts are there."""
        for part in self.parts:
            part.check(fields)

    def fingerprint(self, fields: Collection[str] | None = None) -> dict[str, str]:
        """Those of the parts, by their places."""
        found = ((number, part.fingerprint(fields)) for number, part in enumerate(self.parts))
        return {f"mixture[{number}] {key}": value for number, keys in found for key, value in keys.items()}


class MixtureSampler(Sampler):
    """The order of the samples of a mixture: each source runs through its own epochs."""

    __slots__ = ("_block", "_ends", "_parts", "_shares")

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int) -> None:
        super().__init__(sum(sizes), seed)
        self._parts = [Sampler(size, derive_seed("mixture part", seed, number)) for number, size in enumerate(sizes)]
        self._shares = shares(weights)
        self._ends = np.cumsum(self._shares)
        self._block: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None

    def at(self, first: int, stop: int) -> NDArray[np.int64]:
        """The sample numbers at positions ``first`` to ``stop`` (exclusive)."""
        return np.array([self._sample(position) for position in range(first, stop)], np.int64)

    def _sample(self, position: int) -> int:
        block, place = divmod(position, BLOCK)
        owners, ranks = self._blocks(block)
        owner = int(owners[place])
        part = self._parts[owner]
        index = block * self._shares[owner] + int(ranks[place])
        before = sum(one.size for one in self._parts[:owner])
        return before + int(part.at(index, index + 1)[0])

    def _blocks(self, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The source of each place of a block, and how many places before it have the same source."""
        held = self._block  # read once: another thread may replace it
        if held is None or held[0] != block:
            places = Permutation(BLOCK, "mixture", self.seed, block)(np.arange(BLOCK, dtype=np.int64))
            owners = np.searchsorted(self._ends, places, side="right").astype(np.int64)
            ranks = np.zeros(BLOCK, np.int64)
            for number in range(len(self._shares)):
                ranks[owners == number] = np.arange(self._shares[number])
            held = self._block = (block, owners, ranks)
        return held[1], held[2]
