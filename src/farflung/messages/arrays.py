"""Arrays as parts of frames: as they are, or through a codec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from farflung.codecs import decode_payload
from farflung.codecs.base import Codec, Payload
from farflung.errors import WireError
from farflung.graph.ir import TensorSpec
from farflung.memory_budget import MemoryBudget
from farflung.messages.array_headers import ArrayHeader, ArrayItem, PayloadHeader
from farflung.messages.data import ArraysMessage
from farflung.messages.schema import UNSET, Sections, UnsetType, kind_of
from farflung.wire.arrays import DTYPES, Array, ArrayMeta, compact, pack, restore, unpack

__all__ = [
    "FLOATING",
    "PackedArray",
    "all_arrays",
    "decode_array",
    "decode_exact",
    "encode_array",
    "pack_arrays",
    "pack_encoded",
    "pack_payloads",
    "packed_arrays",
    "packed_payload",
]

ArraysT = TypeVar("ArraysT", bound=ArraysMessage)

#: Element types that codecs take.
FLOATING = frozenset({"float64", "float32", "float16", "bfloat16"})


class PackedArray(NamedTuple):
    """An array as messages carry it. ``payload``: its codec's header (none: uncompressed)."""

    array: ArrayHeader
    payload: PayloadHeader | UnsetType
    sections: Sections

    @property
    def item(self) -> ArrayItem:
        """Its place in a message with several arrays."""
        return ArrayItem(array=self.array, payload=self.payload, sections=len(self.sections))


def encode_array(array: Array, codec: Codec | None) -> PackedArray:
    """Return ``array`` packed; ``codec`` None sends it as it is, strides included."""
    if codec is None or array.size == 0 or array.dtype.name not in FLOATING:
        meta, buffer = pack(array)
        return PackedArray(ArrayHeader.of(meta), UNSET, (buffer,))
    meta, flat = compact(array)
    payload = codec.encode(flat.reshape(meta.shape) if meta.strides is None else flat)  # rows have a meaning to some codecs
    return packed_payload(meta, payload)


def packed_payload(meta: ArrayMeta, payload: Payload) -> PackedArray:
    """Return the array with the layout ``meta`` that ``payload`` encodes."""
    return PackedArray(ArrayHeader.of(meta), payload.to_header(), tuple(payload.sections))


def decode_array(packed: PackedArray, limit: int, budget: MemoryBudget | None = None) -> Array:
    """Return what ``encode_array`` packed. What a codec decodes takes memory from ``budget``; other arrays lie in their frame.

    Raises:
        WireError: header and sections do not belong together, or the array is larger than ``limit`` bytes.
        CodecError: the payload is malformed.
        MemoryExceeded: ``budget`` has no room.
    """
    meta, sections = packed.array.meta, packed.sections
    if packed.payload is not UNSET:
        payload = Payload.from_header(packed.payload, sections, limit)
        nbytes = payload.numel * DTYPES[payload.dtype].itemsize
        with (budget or MemoryBudget()).transferred(nbytes, "a decoded value") as owns:
            decoded = decode_payload(payload)
            owns(_owner(decoded))
        return restore(meta, decoded.reshape(-1), limit)
    if len(sections) != 1:
        raise WireError(f"an uncompressed value has one section, this one has {len(sections)}")
    return unpack(meta, sections[0], limit)


def _owner(array: Array) -> Array:
    """Return the array whose memory ``array`` shows: views of views refer to it alone."""
    while isinstance(array.base, type(array)):
        array = array.base
    return array


def pack_arrays(head: Callable[..., ArraysT], arrays: Sequence[Array | None], codec: Codec | None) -> ArraysT:
    """Return a message with several arrays, some of them missing (None). ``head`` makes it from ``arrays`` and ``sections``."""
    return pack_encoded(head, [None if array is None else encode_array(array, codec) for array in arrays])


def pack_encoded(head: Callable[..., ArraysT], packed: Sequence[PackedArray | None]) -> ArraysT:
    """Return the message of ``pack_arrays`` for arrays that ``encode_array`` has packed."""
    items = tuple(None if one is None else one.item for one in packed)
    return head(arrays=items, sections=tuple(part for one in packed if one is not None for part in one.sections))


def pack_payloads(head: Callable[..., ArraysT], payloads: Sequence[Payload]) -> ArraysT:
    """Return a message with payloads of arrays in C order, as ``pack_arrays`` makes those that it encodes."""
    items = []
    for payload in payloads:
        array = ArrayHeader(dtype=payload.dtype, shape=payload.shape, strides=None)
        items.append(ArrayItem(array=array, payload=payload.to_header(), sections=len(payload.sections)))
    return head(arrays=tuple(items), sections=tuple(section for payload in payloads for section in payload.sections))


def packed_arrays(message: ArraysMessage, most: int) -> list[PackedArray | None]:
    """Return what ``decode_array`` takes for each of at most ``most`` arrays of ``message``. Nothing is decoded yet.

    Raises:
        WireError: there are more arrays, or they need more sections than the message has.
    """
    if len(message.arrays) > most:
        raise WireError(f"a {kind_of(message)!r} message has at most {most} arrays here, {len(message.arrays)} came")
    found: list[PackedArray | None] = []
    at = 0
    for item in message.arrays:
        if item is None:
            found.append(None)
            continue
        end = at + item.sections
        if end > len(message.sections):
            had = len(message.sections)
            raise WireError(f"the arrays of a {kind_of(message)!r} message need {end} sections, it has {had}")
        found.append(PackedArray(item.array, item.payload, tuple(message.sections[at:end])))
        at = end
    return found


def all_arrays(message: ArraysMessage, count: int) -> list[PackedArray | None]:
    """Return the arrays of ``message`` as ``packed_arrays`` does.

    Raises:
        WireError: there are not ``count`` of them, or as ``packed_arrays``.
    """
    if len(message.arrays) != count:
        raise WireError(f"a {kind_of(message)!r} message has {count} arrays here, {len(message.arrays)} came")
    return packed_arrays(message, count)


def decode_exact(
    packed: Sequence[PackedArray | None], specs: Sequence[TensorSpec], names: Sequence[str], budget: MemoryBudget | None = None
) -> list[Array | None]:
    """Return arrays of exactly ``specs``, some of them missing. Shapes and types are checked before memory is taken.

    Raises:
        WireError: one is another array; the text says its name.
        CodecError: a payload is malformed.
        MemoryExceeded: ``budget`` has no room.
    """
    found: list[Array | None] = []
    for one, spec, name in zip(packed, specs, names, strict=True):
        if one is None:
            found.append(None)
            continue
        sent = one.array
        if sent.shape != spec.shape or sent.dtype != spec.dtype:
            raise WireError(f"{name!r} is {spec.dtype}{list(spec.shape)}, {sent.dtype}{list(sent.shape)} came")
        found.append(decode_array(one, max(spec.nbytes, 1), budget))
    return found
