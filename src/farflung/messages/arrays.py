"""Arrays as parts of frames: as they are, or through a codec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farflung.codecs import decode_payload
from farflung.codecs.base import Codec, Payload
from farflung.errors import WireError
from farflung.messages.fields import whole
from farflung.wire.arrays import Array, ArrayMeta, compact, pack, restore, unpack
from farflung.wire.frames import Frame

__all__ = ["FLOATING", "decode_array", "encode_array", "pack_arrays", "pack_payloads", "packed_arrays"]

#: Element types that codecs take.
FLOATING = frozenset({"float64", "float32", "float16", "bfloat16"})

Sections = tuple[memoryview | bytes, ...]


def encode_array(array: Array, codec: Codec | None) -> tuple[dict[str, Any], Sections]:
    """(header, sections) of an array; ``codec`` None sends it as it is, strides included."""
    if codec is None or array.size == 0 or array.dtype.name not in FLOATING:
        meta, buffer = pack(array)
        return {"array": meta.to_header()}, (buffer,)
    meta, flat = compact(array)
    payload = codec.encode(flat.reshape(meta.shape) if meta.strides is None else flat)  # rows have a meaning to some codecs
    return {"array": meta.to_header(), "payload": payload.to_header()}, tuple(payload.sections)


def decode_array(header: Mapping[str, Any], sections: Sections, limit: int) -> Array:
    """What ``encode_array`` wrote.

    Raises:
        WireError: header and sections do not belong together, or the array is larger than ``limit`` bytes.
        CodecError: the payload is malformed.
    """
    meta = ArrayMeta.from_header(header.get("array"))
    if "payload" in header:
        decoded = decode_payload(Payload.from_header(header["payload"], sections, limit))
        return restore(meta, decoded.reshape(-1), limit)
    if len(sections) != 1:
        raise WireError(f"an uncompressed value has one section, this frame has {len(sections)}")
    return unpack(meta, sections[0], limit)


def pack_arrays(kind: str, head: Mapping[str, Any], arrays: Sequence[Array | None], codec: Codec | None) -> Frame:
    """A frame with several arrays, some of them missing (None); ``arrays`` in its header says which sections are whose."""
    headers: list[dict[str, Any] | None] = []
    sections: list[memoryview | bytes] = []
    for array in arrays:
        if array is None:
            headers.append(None)
            continue
        header, parts = encode_array(array, codec)
        headers.append(header | {"sections": len(parts)})
        sections += parts
    return Frame(kind, {**head, "arrays": headers}, tuple(sections))


def pack_payloads(kind: str, head: Mapping[str, Any], payloads: Sequence[Payload]) -> Frame:
    """A frame of payloads of arrays in C order, as ``pack_arrays`` writes those that it encodes."""
    headers: list[dict[str, Any]] = []
    sections: list[memoryview | bytes] = []
    for payload in payloads:
        meta = ArrayMeta(dtype=payload.dtype, shape=payload.shape, strides=None)
        headers.append({"array": meta.to_header(), "payload": payload.to_header(), "sections": len(payload.sections)})
        sections += payload.sections
    return Frame(kind, {**head, "arrays": headers}, tuple(sections))


def packed_arrays(frame: Frame, most: int) -> list[tuple[Mapping[str, Any], Sections] | None]:
    """What ``decode_array`` takes for each of at most ``most`` arrays of ``pack_arrays``; nothing is decoded yet.

    Raises:
        WireError: there are more, or a header is none.
    """
    headers, at = frame.header.get("arrays"), 0
    if not isinstance(headers, list) or len(headers) > most:
        raise WireError(f"a {frame.kind!r:.40} frame has a list of at most {most} arrays here")
    found: list[tuple[Mapping[str, Any], Sections] | None] = []
    for header in headers:
        if header is None:
            found.append(None)
            continue
        if not isinstance(header, dict):
            raise WireError(f"an array of a {frame.kind!r:.40} frame came without a header")
        end = at + whole(header, "sections", low=1, high=max(1, len(frame.sections)))
        found.append((header, tuple(frame.sections[at:end])))
        at = end
    return found
