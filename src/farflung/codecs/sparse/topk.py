"""Top-k by magnitude (FusionLLM section 5): the k = d / ratio largest elements travel, the others come back as zero.

How they are found is ``selection``'s matter (exact, by blocks, by a sampled threshold), how they travel ``values``'s. A receiver
needs to know neither.

Formats: ``compact`` (Golomb-Rice gaps, values as ``values``) and the text's own ``paper`` (int64 indices; 3 words of 4 bytes for
each kept float32). Where either would not be smaller than sending everything, everything is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, ClassVar

import numpy as np

from farflung.codecs.base import FLOATING, Array, Payload, as_section, flatten, is_number
from farflung.codecs.dense import HEAD_BYTES, decode_dense, dense_payload
from farflung.codecs.sparse.indices import MAX_SHIFT, CodedIndices, Indices, decode_indices, encode_indices, expected_bits
from farflung.codecs.sparse.selection import SELECTIONS
from farflung.codecs.sparse.values import VALUES, dense_values, read_values, value_bytes, value_error, write_values
from farflung.errors import CodecError, InputError
from farflung.wire.arrays import DTYPES

__all__ = ["FORMATS", "MAX_NUMEL", "TopK", "bytes_per_kept", "check_ratio"]

FORMATS = ("compact", "paper")
#: The largest array that a sparse codec takes apart.
MAX_NUMEL = (1 << 31) - 1
#: What a sparse payload's head may take beyond a dense one's.
_EXTRA_HEAD = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK:
    """The largest ``max(1, round(d / ratio))`` of d elements; ``values``: the widest form in which they travel."""

    ratio: float = 100.0
    values: str = "float32"
    format: str = "compact"
    selection: str = "exact"
    name: ClassVar[str] = "topk"
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_ratio("topk", self.ratio)
        if self.values not in VALUES:
            raise InputError(f"codec 'topk' needs values as {', '.join(VALUES)}, got {self.values!r}")
        if self.format not in FORMATS:
            raise InputError(f"codec 'topk' knows the formats {', '.join(FORMATS)}, got {self.format!r}")
        if self.selection not in SELECTIONS:
            raise InputError(f"codec 'topk' knows the selections {', '.join(SELECTIONS)}, got {self.selection!r}")

    @property
    def exact(self) -> bool:
        """Whether the selection has one result, however it is found."""
        return self.selection == "exact"

    def kept(self, numel: int) -> int:
        """How many of ``numel`` elements are kept."""
        return min(numel, max(1, round(numel / self.ratio)))

    def encode(self, array: Array) -> Payload:
        """See ``Codec``; gives a payload of ``identity`` or ``cast`` where that is smaller or the elements are not floating."""
        dtype, flat = flatten(array)
        numel, itemsize = flat.size, DTYPES[dtype].itemsize
        payload = None
        if dtype in FLOATING and numel <= MAX_NUMEL and self.pays(numel, itemsize):
            indices = SELECTIONS[self.selection](flat, self.kept(numel))
            payload = self.pack(dtype, array.shape, indices, flat[indices])
        return payload if payload is not None else dense_payload(array, dense_values(self.values))

    def pack(self, dtype: str, shape: tuple[int, ...], indices: Indices, values: Array) -> Payload | None:
        """The payload of ``values`` at ascending ``indices`` of an array of ``dtype`` and ``shape``; None if dense is smaller."""
        value_fields, value_sections = write_values(values, dtype, self.values)
        index_fields, sections = _write_indices(indices, self.format)
        sections += value_sections
        if sum(map(len, sections)) + _EXTRA_HEAD >= prod(shape) * self._dense_width(DTYPES[dtype].itemsize):
            return None
        fields = {"count": indices.size, **value_fields, **index_fields}
        return Payload(codec=self.name, dtype=dtype, shape=shape, fields=fields, sections=sections)

    def decode(self, payload: Payload) -> Array:
        """See ``Codec``; the payload says itself which format it has."""
        if payload.codec != self.name:
            if payload.codec in ("identity", "cast"):
                return decode_dense(payload)
            raise CodecError(f"topk can't decode a payload of {payload.codec!r:.40}; take the codec that the payload names")
        numel = payload.numel
        if numel > MAX_NUMEL:
            raise CodecError(f"bad topk payload: {numel} elements, the limit is {MAX_NUMEL}")
        count = payload.integer("count", 0, numel)
        used = 2 if "shift" in payload.fields else 1
        if len(payload.sections) <= used:
            raise CodecError(f"bad topk payload: it needs {used + 1} sections, got {len(payload.sections)}")
        indices = _coded_indices(payload, count) if used == 2 else _plain_indices(payload, count)
        values = read_values(payload, payload.sections[used:], count)
        array = np.zeros(numel, DTYPES[payload.dtype])
        array[indices] = values
        return array.reshape(payload.shape)

    def wire_bytes(self, numel: int, itemsize: int) -> float:
        """See ``Codec``."""
        dense = float(numel * self._dense_width(itemsize))
        if not self.pays(numel, itemsize):
            return HEAD_BYTES + dense
        kept = self.kept(numel) * self._kept_bytes(self.ratio, itemsize)
        return HEAD_BYTES + min(dense, _EXTRA_HEAD + kept)

    def error_bound(self, shape: tuple[int, ...]) -> float:
        """See ``Codec``: what is dropped, and how coarse the rest is (nothing is promised for the inexact selections)."""
        numel = prod(shape)
        dropped = 1.0 - self.kept(numel) / numel if numel and self.selection == "exact" else 1.0
        return sqrt(dropped + value_error(self.values) ** 2)

    def _dense_width(self, itemsize: int) -> int:
        return min(itemsize, DTYPES[dense_values(self.values)].itemsize)

    def _kept_bytes(self, ratio: float, itemsize: int) -> float:
        return value_bytes(self.values, itemsize) + _index_bytes(ratio, self.format)

    def pays(self, numel: int, itemsize: int) -> bool:
        """Whether the sparse form of ``numel`` elements of ``itemsize`` bytes is expected to be smaller than the dense one."""
        kept = self.kept(numel)
        if kept >= numel:
            return False
        return kept * self._kept_bytes(numel / kept, itemsize) + _EXTRA_HEAD < numel * self._dense_width(itemsize)


def bytes_per_kept(ratio: float, values: str, format: str) -> float:  # noqa: A002 - the codec's parameter has this name
    """Expected bytes for each kept element of a float32 array at density 1 / ``ratio``."""
    return value_bytes(values, 4) + _index_bytes(ratio, format)


def check_ratio(name: str, ratio: object) -> None:
    """Check the parameter ``ratio`` of codec ``name``.

    Raises:
        InputError: it is no finite number of at least 1.
    """
    if not isinstance(ratio, (int, float)) or not is_number(ratio) or not 1.0 <= ratio < float("inf"):
        raise InputError(f"codec {name!r} needs a ratio of at least 1, got {ratio!r}")


def _index_bytes(ratio: float, format: str) -> float:  # noqa: A002
    return 8.0 if format == "paper" else expected_bits(1.0 / ratio) / 8.0


def _write_indices(indices: Indices, format: str) -> tuple[dict[str, Any], tuple[memoryview, ...]]:  # noqa: A002
    if format == "paper":
        return {}, (as_section(indices),)
    coded = encode_indices(indices)
    return {"shift": coded.shift}, (as_section(coded.unary), as_section(coded.planes))


def _coded_indices(payload: Payload, count: int) -> Indices:
    unary, planes = payload.sections[:2]
    coded = CodedIndices(
        count=count,
        shift=payload.integer("shift", 0, MAX_SHIFT),
        unary=payload.elements(unary, "uint8", len(unary)),
        planes=payload.elements(planes, "uint8", len(planes)),
    )
    return decode_indices(coded, payload.numel)


def _plain_indices(payload: Payload, count: int) -> Indices:
    indices: Indices = payload.elements(payload.sections[0], "int64", count)
    if count and (int(indices[0]) < 0 or int(indices[-1]) >= payload.numel or bool((indices[1:] <= indices[:-1]).any())):
        raise CodecError(f"bad topk payload: indices must ascend from 0 to below {payload.numel}")
    return indices
