"""Random-k: one element of each of k equal strata travels, without an index; the receiver draws the same places by the seed.

Stratum j of k holds the elements from floor(j d / k) to floor((j + 1) d / k) - 1; its element number ``(h * size) >> 32``
travels, h the upper 32 bits of word j of the seed (``keys``). Scaled by the stratum's size the result has the array as its
expectation (S. U. Stich et al., "Sparsified SGD with memory", 2018, rand-k; strata instead of a free choice have the same
expectation and expected squared error, (d / k - 1) |x|^2, and selection costs O(k), not O(d)). Unscaled it is a contraction,
which is what error feedback wants. An array with a NaN or an infinity sends NaN as its first value, so that neither is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from farflung.codecs.base import FLOATING, Array, Payload, flatten
from farflung.codecs.dense import HEAD_BYTES, decode_dense, dense_payload, finite_max
from farflung.codecs.keys import MAX_SEED, check_seed, words
from farflung.codecs.sparse.indices import Indices
from farflung.codecs.sparse.topk import MAX_NUMEL, check_ratio
from farflung.codecs.sparse.values import VALUES, dense_values, read_values, value_bytes, value_error, write_values
from farflung.errors import CodecError, InputError
from farflung.wire.arrays import DTYPES

__all__ = ["RandomK", "strata"]

_EXTRA_HEAD = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomK:
    """``max(1, round(d / ratio))`` of d elements at places drawn by ``seed``; ``scaled``: unbiased."""

    ratio: float = 100.0
    values: str = "float32"
    scaled: bool = True
    seed: int = 0
    name: ClassVar[str] = "randomk"
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_ratio("randomk", self.ratio)
        check_seed("randomk", self.seed)
        if self.values not in VALUES:
            raise InputError(f"codec 'randomk' needs values as {', '.join(VALUES)}, got {self.values!r}")
        if self.scaled not in (True, False):
            raise InputError(f"codec 'randomk' needs scaled true or false, got {self.scaled!r}")

    def kept(self, numel: int) -> int:
        """How many of ``numel`` elements are kept."""
        return min(numel, max(1, round(numel / self.ratio)))

    def encode(self, array: Array) -> Payload:
        """See ``Codec``; gives a payload of ``identity`` or ``cast`` where that is smaller or the elements are not floating."""
        dtype, flat = flatten(array)
        if dtype not in FLOATING or flat.size > MAX_NUMEL or not self._pays(flat.size, flat.itemsize):
            return dense_payload(array, dense_values(self.values))
        count = self.kept(flat.size)
        places, _ = strata(flat.size, count, self.seed)
        chosen = flat[places]
        with np.errstate(all="ignore"):
            if not np.isfinite(flat.max()) or not np.isfinite(flat.min()):
                chosen[0] = np.nan
        fields, sections = write_values(chosen, dtype, self.values)
        fields = {"count": count, "seed": self.seed, "scaled": int(self.scaled), **fields}
        return Payload(codec=self.name, dtype=dtype, shape=array.shape, fields=fields, sections=sections)

    def decode(self, payload: Payload) -> Array:
        """See ``Codec``."""
        if payload.codec != self.name:
            if payload.codec in ("identity", "cast"):
                return decode_dense(payload)
            raise CodecError(f"randomk can't decode a payload of {payload.codec!r:.40}; take the codec that the payload names")
        numel = payload.numel
        if not 0 < numel <= MAX_NUMEL:
            raise CodecError(f"bad randomk payload: {numel} elements, from 1 to {MAX_NUMEL} are possible")
        count, scaled = payload.integer("count", 1, numel), payload.integer("scaled", 0, 1)
        values = read_values(payload, payload.sections, count)
        places, sizes = strata(numel, count, payload.integer("seed", 0, MAX_SEED))
        if scaled:
            top = finite_max(payload.dtype)
            with np.errstate(all="ignore"):
                product = values.astype(np.float64) * sizes
                values = np.where(np.isfinite(values), product.clip(-top, top), values).astype(values.dtype)
        array = np.zeros(numel, DTYPES[payload.dtype])
        array[places] = values
        return array.reshape(payload.shape)

    def wire_bytes(self, numel: int, itemsize: int) -> float:
        """See ``Codec``."""
        if not self._pays(numel, itemsize):
            return HEAD_BYTES + float(numel * self._dense_width(itemsize))
        return HEAD_BYTES + _EXTRA_HEAD + self.kept(numel) * value_bytes(self.values, itemsize)

    def error_bound(self, shape: tuple[int, ...]) -> float:
        """See ``Codec``: all that is kept is times a stratum's size, all else is dropped."""
        numel = prod(shape)
        largest = -(-numel // self.kept(numel)) if numel else 1
        factor = float(largest) if self.scaled else 1.0
        return max(1.0, factor - 1.0) + factor * value_error(self.values)

    def _dense_width(self, itemsize: int) -> int:
        return min(itemsize, DTYPES[dense_values(self.values)].itemsize)

    def _pays(self, numel: int, itemsize: int) -> bool:
        sparse = self.kept(numel) * value_bytes(self.values, itemsize) + _EXTRA_HEAD
        return 0 < self.kept(numel) < numel and sparse < numel * self._dense_width(itemsize)


def strata(numel: int, count: int, seed: int) -> tuple[Indices, Indices]:
    """(the place drawn from each of ``count`` strata of ``numel`` elements, the strata's sizes); 0 < count <= numel < 2^31."""
    ends = np.arange(count + 1, dtype=np.int64) * numel // count
    sizes = np.diff(ends)
    offsets = ((words(seed, 0, count) >> np.uint64(32)) * sizes.astype(np.uint64)) >> np.uint64(32)
    return ends[:-1] + offsets.astype(np.int64), sizes
