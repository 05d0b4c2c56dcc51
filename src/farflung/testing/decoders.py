"""Every decoder that takes what another machine sent, each with a maker of damaged inputs for it (``fuzz``).

A case decodes once for each call of ``decode``; what it returns is empty, or says in what the result is not what was declared.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from farflung.codecs import Payload, decode_payload, get_codec, get_memory
from farflung.codecs.dense import Identity
from farflung.codecs.planes import expand, shrink
from farflung.codecs.samples import Ids, SampleCoder, SampleTable
from farflung.codecs.sparse.indices import CodedIndices, decode_indices, encode_indices
from farflung.errors import CodecError, VersionError, WireError
from farflung.messages.arrays import PackedArray, decode_array, encode_array, pack_arrays, packed_arrays
from farflung.messages.data import LayerExchange, UseKey, Value
from farflung.messages.schema import Channel
from farflung.messages.wire_form import decode, decode_as, encode, types_on
from farflung.testing.damage import INTEGERS, bent, damaged, hurt, resealed, some_array, some_payload
from farflung.testing.messages import damaged_frame, some_frame
from farflung.wire.arrays import DTYPES, ArrayMeta, pack, unpack
from farflung.wire.frames import Frame, FrameDecoder, FrameLimits, decode_frame, encode_frame
from farflung.wire.headers import pack_value, unpack_value

__all__ = ["DECODERS", "LIMIT", "Case", "some_case"]

#: The most bytes that a fuzzed input may decode to.
LIMIT = 1 << 22
_STREAM = FrameLimits(max_header=1 << 16, max_sections=64, max_bytes=1 << 19)
_DEPTH = 16
#: Share of the inputs that are payloads of codecs; the other decoders have equal shares of the rest.
_PAYLOADS = 0.5


@dataclass(slots=True, kw_only=True)
class Case:
    """One damaged input of ``nbytes``; ``refuses``: what its decoder may raise; ``declared``: bytes of what the input says that
    it decodes to, known after ``decode``."""

    decoder: str
    nbytes: int
    refuses: tuple[type[Exception], ...]
    run: Callable[[Case], str]
    declared: int = 0

    def decode(self) -> str:
        """Decode; a text if the result is not what was declared."""
        self.declared = 0
        return self.run(self)


Maker = Callable[[np.random.Generator], Case]


def some_case(generator: np.random.Generator) -> Case:
    """A damaged input for a random decoder."""
    names = list(DECODERS)
    name = names[0] if generator.random() < _PAYLOADS else names[int(generator.integers(1, len(names)))]
    return DECODERS[name](generator)


def _payload_case(generator: np.random.Generator) -> Case:
    data = damaged(some_payload(generator), generator).to_bytes()
    if generator.random() < 0.2:
        data = resealed(data, generator)

    def run(case: Case) -> str:
        payload = _read(case, data)
        return _compare(payload, decode_payload(payload))

    return Case(decoder="payload", nbytes=len(data), refuses=(CodecError, VersionError), run=run)


def _planes_case(generator: np.random.Generator) -> Case:
    width, count = int(generator.choice((1, 2, 4, 8))), int(generator.integers(600, 6000))
    older = generator.integers(0, 256, width * count, np.uint8)
    raw = (older.view(f"<u{width}") + generator.integers(0, 9, count).astype(f"<u{width}")).tobytes()
    base: bytes | None = older.tobytes()
    coded, nbytes = shrink(raw, width, base) or raw, len(raw)
    kind = int(generator.integers(6))
    if kind == 0:
        nbytes = int(INTEGERS[int(generator.integers(1, 15))]) if generator.random() < 0.5 else nbytes + width
    elif kind == 1:
        base = None if generator.random() < 0.5 else bytes(base or b"")[:-width]
    elif kind == 2:
        changed = bytearray(coded)
        changed[int(generator.integers(3 + 4 * width))] ^= 1 << int(generator.integers(8))
        coded = bytes(changed)
    elif kind == 3:
        coded = bent(coded, generator)
    else:
        coded = _bent_plane(coded, width, generator)

    def run(case: Case) -> str:
        case.declared = max(0, min(nbytes, LIMIT))
        found = expand(coded, nbytes, base)
        return "" if found.nbytes == nbytes else f"{found.nbytes} bytes instead of {nbytes}"

    return Case(decoder="planes", nbytes=len(coded), refuses=(CodecError,), run=run)


def _bent_plane(coded: bytes, width: int, generator: np.random.Generator) -> bytes:
    """One compressed plane bent, and the table of lengths made right again."""
    lengths = list(struct.unpack_from(f"<{width}I", coded, 3))
    parts, start = [], 3 + 4 * width
    for length in lengths:
        parts.append(coded[start : start + length])
        start += length
    place = int(generator.integers(width))
    front = int(generator.integers(4, 16))  # the head of zstd's frame says how much memory will be taken
    whole = generator.random() < 0.5
    parts[place] = bent(parts[place], generator) if whole else bent(parts[place][:front], generator) + parts[place][front:]
    return b"".join([coded[:3], struct.pack(f"<{width}I", *map(len, parts)), *parts])


def _indices_case(generator: np.random.Generator) -> Case:
    numel = int(generator.integers(1, 60_000))
    chosen = np.sort(generator.choice(numel, int(generator.integers(0, min(numel, 3000))), replace=False)).astype(np.int64)
    coded = encode_indices(chosen)
    kind = int(generator.integers(5))
    number = INTEGERS[int(generator.integers(len(INTEGERS)))]
    near = int(generator.integers(-3, 4))
    if kind == 0:
        coded = replace(coded, count=number if generator.random() < 0.5 else coded.count + near)
    elif kind == 1:
        coded = replace(coded, shift=number if generator.random() < 0.3 else coded.shift + near)
    elif kind == 2:
        coded = replace(coded, unary=_bytes(bent(coded.unary.tobytes(), generator)))
    elif kind == 3:
        coded = replace(coded, planes=_bytes(bent(coded.planes.tobytes(), generator)))
    else:
        numel = max(0, numel // int(generator.integers(1, 5)) + near)
    return Case(decoder="indices", nbytes=coded.nbytes, refuses=(CodecError,), run=lambda case: _run_indices(case, coded, numel))


def _run_indices(case: Case, coded: CodedIndices, numel: int) -> str:
    case.declared = 8 * numel
    found = decode_indices(coded, numel)
    right = found.size == coded.count and (
        not found.size or bool((np.diff(found) > 0).all() and 0 <= found[0] <= found[-1] < numel)
    )
    return "" if right else f"{found.size} indices for {coded.count} of {numel}, or not ascending"


def _bytes(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(data, np.uint8)


def _memory_case(generator: np.random.Generator) -> Case:
    """A message of a memory whose receiver holds what came before."""
    codec = get_codec(*generator.choice(("topk", "int8", "sign", "lowrank", "randomk"), 1).tolist())
    memory = get_memory(str(generator.choice(("difference", "econtrol", "error_feedback", "dgc"))), codec)
    array = some_array(generator)
    first, state = memory.encode(array, {})
    held = memory.decode(first, {})[1]
    data = damaged(memory.encode(array, state)[0], generator).to_bytes()

    def run(case: Case) -> str:
        payload = _read(case, data)
        return _compare(payload, memory.decode(payload, held)[0])

    nbytes = len(data) + sum(part.nbytes for part in held.values())
    return Case(decoder="memory", nbytes=nbytes, refuses=(CodecError, VersionError), run=run)


def _samples_case(generator: np.random.Generator) -> Case:
    """A message of a link that remembers samples: its payloads, the samples' numbers, or elements of a sample are wrong."""
    samples, width = int(generator.integers(1, 9)), int(generator.choice((1, 3, 64, 500)))
    first = Identity() if generator.random() < 0.3 else None
    coder = SampleCoder(codec=get_codec("topk", ratio=5), first=first)
    ids: Ids = generator.integers(0, 12, samples).astype(np.uint64)
    here, there = SampleTable(limit=1 << 16), SampleTable(limit=1 << 16)
    rows = generator.standard_normal((samples, width)).astype(np.float32)
    coder.decode(coder.encode(rows, ids, there), ids, here, width)
    sent = [damaged(payload, generator).to_bytes() for payload in coder.encode(rows + 1, ids, there)]
    if generator.random() < 0.2:
        ids = generator.integers(0, 24, samples).astype(np.uint64)
    if generator.random() < 0.1:
        width += int(generator.integers(1, 3))
    if generator.random() < 0.1:
        sent = (sent * 2)[: int(generator.integers(0, 3))]

    def run(case: Case) -> str:
        payloads = [_read(case, data) for data in sent]
        case.declared += 8 * samples * width
        copy = SampleTable(limit=here.limit, held=dict(here.held), messages=here.messages, nbytes=here.nbytes)
        found = coder.decode(payloads, ids, copy, width)
        right = (found.dtype.name, found.shape) == ("float32", (samples, width)) and copy.nbytes <= copy.limit
        return "" if right else f"{found.dtype} {found.shape} for {samples} samples of {width}, {copy.nbytes} bytes remembered"

    return Case(decoder="samples", nbytes=sum(map(len, sent)), refuses=(CodecError, VersionError), run=run)


def _value_case(generator: np.random.Generator) -> Case:
    """A value of a pipeline, plain or by a codec, or several arrays in one frame."""
    codec = get_codec(str(generator.choice(("topk", "int8", "lowrank")))) if generator.random() < 0.5 else None
    arrays = [_laid(some_array(generator), generator) for _ in range(int(generator.integers(1, 4)))]
    if len(arrays) == 1:
        packed = encode_array(arrays[0], codec)
        key = UseKey(step=0, stage=0, state="w", op="op")
        frame = encode(Value(run="r", key=key, array=packed.array, payload=packed.payload, sections=packed.sections))
    else:
        frame = encode(pack_arrays(partial(LayerExchange, run="r", stage=0, tag="t"), [*arrays, None], codec))
    if generator.random() < 0.7:
        frame = damaged_frame(frame, generator)
    data = b"".join(encode_frame(frame))
    if generator.random() < 0.2:
        data = bent(data, generator)
    return Case(
        decoder="value",
        nbytes=len(data),
        refuses=(WireError, CodecError, VersionError),
        run=lambda case: _run_value(case, data, single=len(arrays) == 1),
    )


def _run_value(case: Case, data: bytes, *, single: bool) -> str:
    frame = decode_frame(data, _STREAM)
    if single:
        value = decode_as(frame, Channel.DATA, Value)
        parts = [PackedArray(value.array, value.payload, value.sections)]
    else:
        parts = [part for part in packed_arrays(decode_as(frame, Channel.DATA, LayerExchange), 4) if part is not None]
    for part in parts:
        meta = part.array.meta
        case.declared += meta.memory_nbytes if meta.memory_nbytes <= LIMIT else 0
        array = decode_array(part, LIMIT)
        if (array.dtype, array.shape) != (DTYPES[meta.dtype], meta.shape):
            return f"declared {meta.dtype} {meta.shape}, got {array.dtype} {array.shape}"
    return ""


def _laid(array: np.ndarray[Any, Any], generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """``array``, or a view of it with other strides."""
    kind = int(generator.integers(4))
    if kind == 0:
        return array.T
    if kind == 1 and array.ndim:
        return array[::2]
    if kind == 2:
        return np.broadcast_to(array, (2, *array.shape))
    return array


def _message_case(generator: np.random.Generator) -> Case:
    """A frame of any message, on one of its channels."""
    channel = list(Channel)[int(generator.integers(len(Channel)))]
    known = sorted(types_on(channel).items())
    frame = damaged_frame(some_frame(known[int(generator.integers(len(known)))][1], generator), generator)
    data = b"".join(encode_frame(frame))
    if generator.random() < 0.2:
        data = resealed(data, generator)

    def run(case: Case) -> str:
        again = encode(decode(decode_frame(data, _STREAM), channel))
        return "" if again.kind == frame.kind else f"a {frame.kind!r} became a {again.kind!r}"

    return Case(decoder="message", nbytes=len(data), refuses=(WireError, VersionError), run=run)


def _array_case(generator: np.random.Generator) -> Case:
    meta, buffer = pack(_laid(some_array(generator), generator))
    header, data = hurt(meta.to_header(), generator), bytes(buffer)
    if generator.random() < 0.3:
        data = bent(data, generator)

    def run(case: Case) -> str:
        said = ArrayMeta.from_header(header)
        case.declared = said.memory_nbytes if said.memory_nbytes <= LIMIT else 0
        array = unpack(said, data, LIMIT)
        right = (array.dtype, array.shape) == (DTYPES[said.dtype], said.shape)
        return "" if right else f"declared {said.dtype} {said.shape}, got {array.dtype} {array.shape}"

    return Case(decoder="array", nbytes=len(data), refuses=(WireError,), run=run)


def _frame_case(generator: np.random.Generator) -> Case:
    """A whole frame, and the same bytes as a stream in pieces: both must come to the same end."""
    sections = tuple(generator.bytes(int(generator.integers(0, 3000))) for _ in range(int(generator.integers(0, 5))))
    checksum = generator.random() < 0.7
    data = b"".join(encode_frame(Frame("some", {"a": _some_value(generator, 3)}, sections), checksum=checksum))
    data = resealed(data, generator) if generator.random() < 0.6 else bent(data, generator)
    cuts = sorted(int(cut) for cut in generator.integers(0, len(data) + 1, int(generator.integers(0, 6))))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def run(case: Case) -> str:
        streamed = _streamed(pieces)
        try:
            frame = decode_frame(data, _STREAM)
        except (WireError, VersionError):
            if streamed is not None and len(streamed) == 1:
                return "refused as a whole, taken as a stream"
            raise
        if streamed is None or len(streamed) != 1 or repr(streamed[0].header) != repr(frame.header):
            return "taken as a whole, not as a stream"
        return "" if list(map(bytes, streamed[0].sections)) == list(map(bytes, frame.sections)) else "other sections as a stream"

    return Case(decoder="frame", nbytes=len(data), refuses=(WireError, VersionError), run=run)


def _streamed(pieces: list[bytes]) -> list[Frame] | None:
    """The frames of a stream; None: it is refused."""
    decoder, frames = FrameDecoder(_STREAM), []
    try:
        for piece in pieces:
            frames += decoder.feed(piece)
        decoder.close()
    except (WireError, VersionError):
        return None
    return frames


def _header_case(generator: np.random.Generator) -> Case:
    data = bent(pack_value(_some_value(generator, 4)), generator)
    if generator.random() < 0.3:
        data = generator.bytes(int(generator.integers(1, 200)))
    if generator.random() < 0.1:
        data = bytes([0x91]) * int(generator.integers(1, 5000)) + data

    def run(case: Case) -> str:
        pack_value(unpack_value(data, _DEPTH))  # plain values only
        return ""

    return Case(decoder="header", nbytes=len(data), refuses=(WireError,), run=run)


def _some_value(generator: np.random.Generator, depth: int) -> Any:
    kind = int(generator.integers(8 if depth else 6))
    if kind == 7:
        return {f"k{n}": _some_value(generator, depth - 1) for n in range(int(generator.integers(0, 20)))}
    if kind == 6:
        return [_some_value(generator, depth - 1) for _ in range(int(generator.integers(0, 20)))]
    plain = (None, True, int(generator.integers(-(1 << 62), 1 << 62)), float(generator.normal()), generator.bytes(9), "é" * 20)
    return plain[kind]


def _read(case: Case, data: bytes) -> Payload:
    payload = Payload.from_bytes(data, LIMIT)
    case.declared += payload.numel * DTYPES[payload.dtype].itemsize
    return payload


def _compare(payload: Payload, result: np.ndarray[Any, Any]) -> str:
    if (result.dtype, result.shape) == (DTYPES[payload.dtype], payload.shape):
        return ""
    return f"declared {payload.dtype} {payload.shape}, got {result.dtype} {result.shape}"


#: Decoders by name; payloads of codecs first.
DECODERS: Mapping[str, Maker] = {
    "payload": _payload_case,
    "planes": _planes_case,
    "indices": _indices_case,
    "memory": _memory_case,
    "samples": _samples_case,
    "value": _value_case,
    "message": _message_case,
    "array": _array_case,
    "frame": _frame_case,
    "header": _header_case,
}
