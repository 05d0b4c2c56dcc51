"""Arrays as parts of frames: as they are, or through a codec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from farflung.codecs import decode_payload
from farflung.codecs.base import Codec, Payload
from farflung.errors import WireError
from farflung.messages.array_headers import ArrayHeader, ArrayItem, PayloadHeader
from farflung.messages.schema import UNSET, Sections, UnsetType
from farflung.wire.arrays import Array, ArrayMeta, compact, pack, restore, unpack
from farflung.wire.frames import Frame

__all__ = ["FLOATING", "PackedArray", "decode_array", "encode_array", "pack_arrays", "pack_payloads", "packed_arrays"]

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
    return PackedArray(ArrayHeader.of(meta), payload.to_header(), tuple(payload.sections))


def decode_array(packed: PackedArray, limit: int) -> Array:
    """Return what ``encode_array`` packed.

    Raises:
        WireError: header and sections do not belong together, or the array is larger than ``limit`` bytes.
        CodecError: the payload is malformed.
    """
    meta, sections = packed.array.meta, packed.sections
    if packed.payload is not UNSET:
        decoded = decode_payload(Payload.from_header(packed.payload, sections, limit))
        return restore(meta, decoded.reshape(-1), limit)
    if len(sections) != 1:
        raise WireError(f"an uncompressed value has one section, this frame has {len(sections)}")
    return unpack(meta, sections[0], limit)


def pack_arrays(kind: str, head: Mapping[str, Any], arrays: Sequence[Array | None], codec: Codec | None) -> Frame:
    """A frame with several arrays, some of them missing (None); ``arrays`` in its header says which sections are whose."""
    packed = [None if array is None else encode_array(array, codec) for array in arrays]
    headers = [None if one is None else msgspec.to_builtins(one.item) for one in packed]
    return Frame(kind, {**head, "arrays": headers}, tuple(part for one in packed if one is not None for part in one.sections))


def pack_payloads(kind: str, head: Mapping[str, Any], payloads: Sequence[Payload]) -> Frame:
    """A frame of payloads of arrays in C order, as ``pack_arrays`` writes those that it encodes."""
    headers: list[dict[str, Any]] = []
    sections: list[memoryview | bytes] = []
    for payload in payloads:
        meta = ArrayMeta(dtype=payload.dtype, shape=payload.shape, strides=None)
        headers.append({"array": meta.to_header(), "payload": payload.to_header(), "sections": len(payload.sections)})
        sections += payload.sections
    return Frame(kind, {**head, "arrays": headers}, tuple(sections))


def packed_arrays(frame: Frame, most: int) -> list[PackedArray | None]:
    """What ``decode_array`` takes for each of at most ``most`` arrays of ``pack_arrays``; nothing is decoded yet.

    Raises:
        WireError: there are more, or a header is none.
    """
    headers, at = frame.header.get("arrays"), 0
    if not isinstance(headers, list) or len(headers) > most:
        raise WireError(f"a {frame.kind!r:.40} frame has a list of at most {most} arrays here")
    found: list[PackedArray | None] = []
    for header in headers:
        if header is None:
            found.append(None)
            continue
        try:
            item = msgspec.convert(header, ArrayItem)
        except msgspec.ValidationError as error:
            raise WireError(f"bad array of a {frame.kind!r:.40} frame: {error}") from None
        end = at + item.sections
        if end > len(frame.sections):
            raise WireError(f"the arrays of a {frame.kind!r:.40} frame need {end} sections, it has {len(frame.sections)}")
        found.append(PackedArray(item.array, item.payload, tuple(frame.sections[at:end])))
        at = end
    return found
