"""Encoded values in messages: the sections of a payload lie in the shared memory, as arrays do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, prod
from typing import Any

import msgspec
import numpy as np

from farflung.codecs.base import Array, Payload, as_section
from farflung.engines.encoded_value import EncodedValue
from farflung.engines.isolated.arena import Arena, Slot
from farflung.errors import CodecError, VersionError, WireError
from farflung.wire.arrays import ArrayMeta

__all__ = ["Encoded", "copy_encoded", "write_encoded"]


class Encoded(msgspec.Struct, frozen=True, array_like=True):
    """An ``EncodedValue``. ``head``: the header of its payload. ``array``: where the value lies, if it comes along."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    head: dict[str, Any]
    sections: tuple[Slot, ...]
    seconds: float
    array: Slot | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the sections."""
        return sum(prod(section.shape) for section in self.sections)


def write_encoded(arena: Arena, value: EncodedValue) -> Encoded:
    """Copy ``value`` into the own half of ``arena``."""
    meta, payload = value.meta, value.payload
    sections = tuple(arena.write(np.frombuffer(section, np.uint8)) for section in payload.sections)
    array = None if value.array is None else arena.write(value.array)
    return Encoded(meta.dtype, meta.shape, meta.strides, payload.to_header(), sections, value.seconds, array)


def copy_encoded(found: Encoded, copy: Callable[[Slot], Array]) -> EncodedValue:
    """Return what ``write_encoded`` wrote; ``copy`` copies an array out of the shared memory.

    Raises:
        WireError: the parts do not belong together, or do not lie in the shared memory.
    """
    try:
        meta = ArrayMeta.from_header([found.dtype, found.shape, found.strides])
        bare = Payload.from_header(found.head, (b"",) * len(found.sections), max(meta.nbytes, 1))
    except (CodecError, VersionError, WireError) as error:
        raise WireError(f"the process that computes answered with a payload that is none: {error}") from None
    shape = meta.shape if meta.strides is None else (meta.packed_numel,)
    pieces = all(section.dtype == "uint8" and section.strides == (1,) for section in found.sections)
    beside = found.array is not None and (found.array.dtype, found.array.shape) != (meta.dtype, meta.shape)
    if (bare.dtype, bare.shape) != (meta.dtype, shape) or not pieces or beside or meta.memory_nbytes > meta.nbytes:
        raise WireError("the process that computes answered with a payload of another value")
    sections = tuple(as_section(copy(section)) for section in found.sections)
    array = None if found.array is None else copy(found.array)
    seconds = found.seconds if 0.0 <= found.seconds < inf else 0.0  # the broker adds it up
    return EncodedValue(meta=meta, payload=replace(bare, sections=sections), seconds=seconds, array=array)
