"""Decoders of what peers send while a run trains: frames, messages, values of codecs, states of links."""

from __future__ import annotations

import mmap
import socket
import struct
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import numpy as np

from benchmarks.faults.decoders.target import Form, Target
from farflung.codecs import CODECS, Payload, decode_payload, get_codec, get_memory
from farflung.codecs.planes import expand, shrink
from farflung.codecs.samples import SampleCoder, SampleTable
from farflung.codecs.sparse.indices import CodedIndices, decode_indices, encode_indices
from farflung.engines.isolated.arena import Arena, Slot, make_file
from farflung.engines.isolated.control import Answer, Done, Refused, Straight, receive
from farflung.engines.isolated.service import error_of, read_use
from farflung.errors import FarflungError, InputError
from farflung.memory_budget import MemoryBudget
from farflung.messages.calls import Exported
from farflung.messages.conversions.link_reports import links_of
from farflung.messages.conversions.probes import probe_of
from farflung.messages.conversions.step_reports import report_of, trace_of
from farflung.messages.exports import read_exported
from farflung.messages.reports import Probed, Stepped, Traced
from farflung.messages.schema import Channel
from farflung.messages.wire_form import decode, encode, types_on
from farflung.telemetry import SpanKind
from farflung.telemetry.trace import Span, pack_spans, unpack_spans
from farflung.testing.damage import some_array, some_payload
from farflung.testing.messages import some_frame
from farflung.transports.tcp.connection import MessageKind, build_message, read_message
from farflung.transports.tcp.halves import LANES
from farflung.transports.tcp.relay_calls import PROTOCOL, RelayRequest
from farflung.transports.tcp.state import named_error, read_state
from farflung.wire.arrays import ArrayMeta, pack, unpack
from farflung.wire.frames import Frame, FrameDecoder, FrameLimits, decode_frame, encode_frame
from farflung.wire.headers import pack_value, unpack_value

__all__ = ["TARGETS", "sealed"]

#: The most bytes that an input may decode to.
_LIMIT = 1 << 22
_FRAMES = FrameLimits(max_header=1 << 16, max_sections=64, max_bytes=1 << 19)
_HEAD, _ENTRY = struct.Struct("<4sBBHII"), struct.Struct("<QI")
_CHANNELS = tuple(Channel)
_WIDTHS = (1, 2, 4, 8)
_MEMORIES = tuple((memory, codec) for memory in ("difference", "econtrol", "error_feedback", "dgc") for codec in ("topk", "int8"))


def sealed(data: bytes) -> bytes:
    """Return the frame ``data`` with right checksums, as far as it is one: a hostile sender computes them, too."""
    if len(data) < _HEAD.size:
        return data
    magic, version, flags, count, header, _ = _HEAD.unpack_from(data)
    table = _HEAD.size + _ENTRY.size * count
    start = table + header
    if start > len(data):
        return data
    changed = bytearray(data)
    for at in range(_HEAD.size, table, _ENTRY.size):
        length, _ = _ENTRY.unpack_from(changed, at)
        if start + length > len(data):
            break
        _ENTRY.pack_into(changed, at, length, zlib.crc32(data[start : start + length]) if flags & 1 else 0)
        start += length
    check = zlib.crc32(changed[_HEAD.size : table + header], zlib.crc32(changed[: _HEAD.size - 4]))
    _HEAD.pack_into(changed, 0, magic, version, flags, count, header, check)
    return bytes(changed)


def _generator(number: int) -> np.random.Generator:
    return np.random.default_rng([11, number])


def _frame_bytes(frame: Frame) -> bytes:
    return b"".join(map(bytes, encode_frame(frame)))


# -- frames -------------------------------------------------------------------------------------------------------------


def _decode_frame(data: bytes) -> None:
    """As a whole, and as a stream in two pieces: both must end in the same way."""
    data = sealed(data)
    stream = FrameDecoder(_FRAMES)
    try:
        frames = [*stream.feed(data[: len(data) // 2]), *stream.feed(data[len(data) // 2 :])]
        stream.close()
    except FarflungError:
        frames = []
    frame = decode_frame(data, _FRAMES)
    if [_facts(one) for one in frames] != [_facts(frame)]:
        raise AssertionError("a frame differs from the same frame as a stream")


def _facts(frame: Frame) -> tuple[str, str, list[bytes]]:
    return frame.kind, repr(frame.header), [bytes(part) for part in frame.sections]


def _frames() -> Iterator[bytes]:
    yield _frame_bytes(Frame("some", {"a": [1, -1.5, None, True, "é", b"x", {"b": []}]}, (b"", b"abc", bytes(300))))
    yield b"".join(map(bytes, encode_frame(Frame("other", {}, (b"abc",)), checksum=False)))


def _decode_message(value: Any) -> None:
    """``[channel, kind, header, sections]``: decode, send again, and convert what is converted at its arrival."""
    number, kind, header, sections = _fields(value, int, str, dict, list)
    channel = _CHANNELS[number % len(_CHANNELS)]
    message = decode(Frame(kind, header, tuple(part for part in sections if isinstance(part, bytes))), channel)
    again = decode(decode_frame(_frame_bytes(encode(message))), channel)
    if type(again) is not type(message):
        raise AssertionError(f"a {type(message).__name__} became a {type(again).__name__}")
    match message:
        case Stepped():
            report_of(message)
        case Traced():
            trace_of(message)
            links_of(message.links)
        case Probed():
            probe_of(message)
        case Exported():
            read_exported(message)


def _messages() -> Iterator[list[Any]]:
    for number, channel in enumerate(_CHANNELS):
        for place, (kind, found) in enumerate(sorted(types_on(channel).items())):
            frame = some_frame(found, _generator(place))
            yield [number, kind, dict(frame.header), [bytes(part) for part in frame.sections]]
    names, packed = next(_spans())
    traced = encode(Traced(run="r", attempt=1, names=tuple(names), spans=packed, lost=0, clock=None, links=()))
    yield [_CHANNELS.index(Channel.REPORTS), "trace", dict(traced.header), []]


def _fields(value: Any, *kinds: type) -> list[Any]:
    """The items of ``value``, which has those of ``kinds``; else no input."""
    if not isinstance(value, list) or len(value) != len(kinds) or [type(item) for item in value] != [*kinds]:
        raise InputError("not an input")
    return value


def _decode_array(value: Any) -> None:
    header, data = value if isinstance(value, list) and len(value) == 2 else (value, b"")
    unpack(ArrayMeta.from_header(header), data if isinstance(data, bytes) else b"", _LIMIT)


def _arrays() -> Iterator[list[Any]]:
    for number in range(12):
        meta, buffer = pack(some_array(_generator(number)))
        yield [meta.to_header(), bytes(buffer)]
    meta, buffer = pack(np.arange(12.0).reshape(3, 4).T)
    yield [meta.to_header(), bytes(buffer)]


# -- codecs -------------------------------------------------------------------------------------------------------------


def _payload(value: Any) -> Payload:
    header, sections = _fields(value, dict, list)
    frame = Frame("payload", header, tuple(part for part in sections if isinstance(part, bytes)))
    return Payload.from_bytes(_frame_bytes(frame), _LIMIT)


def _plain(payload: Payload) -> list[Any]:
    return [payload.to_header(), [bytes(part) for part in payload.sections]]


def _decode_payload(value: Any) -> None:
    payload = _payload(value)
    found = decode_payload(payload)
    if (found.dtype.name, found.shape) != (payload.dtype, payload.shape):
        raise AssertionError(f"declared {payload.dtype} {payload.shape}, got {found.dtype} {found.shape}")


def _payloads() -> Iterator[list[Any]]:
    small = np.linspace(-2.0, 2.0, 60, dtype=np.float32).reshape(12, 5)
    for name in CODECS:
        yield _plain(get_codec(name).encode(small))
    for number in range(40):
        payload = some_payload(_generator(number))
        if payload.nbytes < 4000:
            yield _plain(payload)


def _decode_memory(value: Any) -> None:
    """``[which memory, payload]``, with the state after a first message."""
    number, payload = _fields(value, int, list)
    memory, _, state = _memory(number % len(_MEMORIES))
    memory.decode(_payload(payload), dict(state))


@cache
def _memory(number: int) -> tuple[Any, Any, Any]:
    """A memory, and the states of sender and receiver after a first message."""
    name, codec = _MEMORIES[number]
    memory = get_memory(name, get_codec(codec))
    first, sender = memory.encode(np.linspace(-1.0, 1.0, 24, dtype=np.float32), {})
    return memory, sender, memory.decode(first, {})[1]


def _memories() -> Iterator[list[Any]]:
    for number in range(len(_MEMORIES)):
        memory, sender, _ = _memory(number)
        payload, _ = memory.encode(np.linspace(1.0, -1.0, 24, dtype=np.float32), sender)
        yield [number, _plain(payload)]


def _decode_samples(value: Any) -> None:
    """``[numbers of samples, elements of each, payloads]`` at a link that knows some samples."""
    numbers, width, payloads = _fields(value, list, int, list)
    ids = np.array([number % (1 << 64) if type(number) is int else 0 for number in numbers[:64]], np.uint64)
    coder, table = _coder()
    held = SampleTable(limit=table.limit, held=dict(table.held), messages=table.messages, nbytes=table.nbytes)
    coder.decode([_payload(one) for one in payloads], ids, held, min(max(width, 1), 4096))


@cache
def _coder() -> tuple[SampleCoder, SampleTable]:
    coder, here, there = SampleCoder(codec=get_codec("topk", ratio=5)), SampleTable(limit=1 << 14), SampleTable(limit=1 << 14)
    ids, rows = np.arange(4, dtype=np.uint64), np.linspace(0.0, 1.0, 32, dtype=np.float32).reshape(4, 8)
    coder.decode(coder.encode(rows, ids, there), ids, here, 8)
    return coder, here


def _samples() -> Iterator[list[Any]]:
    coder, _ = _coder()
    for ids in ([0, 1], [2, 3, 9], [7]):
        table, rows = SampleTable(limit=1 << 14), np.ones((len(ids), 8), np.float32)
        yield [ids, 8, [_plain(one) for one in coder.encode(rows, np.array(ids, np.uint64), table)]]


def _decode_indices(value: Any) -> None:
    count, shift, numel, unary, planes = _fields(value, int, int, int, bytes, bytes)
    coded = CodedIndices(count=count, shift=shift, unary=np.frombuffer(unary, np.uint8), planes=np.frombuffer(planes, np.uint8))
    found = decode_indices(coded, min(max(numel, 0), _LIMIT))
    if found.size != count or (found.size and not (np.diff(found) > 0).all()):
        raise AssertionError(f"{found.size} indices for {count}, or not ascending")


def _indices() -> Iterator[list[Any]]:
    for chosen, numel in (([], 1), ([0], 1), ([1, 5, 6, 40], 64), (list(range(0, 3000, 7)), 3000)):
        coded = encode_indices(np.array(chosen, np.int64))
        yield [coded.count, coded.shift, numel, coded.unary.tobytes(), coded.planes.tobytes()]


def _decode_planes(value: Any) -> None:
    coded, nbytes, base = _fields(value, bytes, int, bytes)
    found = expand(coded, min(nbytes, _LIMIT), base or None)
    if found.nbytes != nbytes:
        raise AssertionError(f"{found.nbytes} bytes instead of {nbytes}")


def _planes() -> Iterator[list[Any]]:
    for width in _WIDTHS:
        older = np.arange(1200, dtype=f"<u{width}")
        for base in (b"", older.tobytes()):
            raw = (older + older.dtype.type(3)).tobytes()
            coded = shrink(raw, width, base or None)
            if coded:
                yield [bytes(coded), len(raw), base]


# -- links, traces, the process that computes ---------------------------------------------------------------------------


def _decode_greeting(data: bytes) -> None:
    """The first message of a connection: as it is after the first byte, or (first byte below 128) in a well-formed message."""
    here, there = socket.socketpair()
    with here, there:
        here.sendall(build_message(MessageKind.HELLO, [data[1:65536]]) if data[:1] < b"\x80" else data[1:65536])
        here.shutdown(socket.SHUT_WR)
        kind, body = read_message(there)
    value = unpack_value(bytes(body), 4)
    if kind == MessageKind.RELAY and isinstance(value, dict):
        RelayRequest.read(value)


def _greetings() -> Iterator[bytes]:
    hello = {"protocol": PROTOCOL, "name": "a", "link": "x", "knows": ""}
    relayed = {"protocol": PROTOCOL, "to": "b", "token": "", "name": "a"}
    for kind, value in ((MessageKind.HELLO, hello), (MessageKind.RELAY, relayed)):
        yield b"\x00" + pack_value(value)
        yield b"\xff" + build_message(kind, [pack_value(value)])


def _decode_link(value: Any) -> None:
    if isinstance(value, list):
        named_error(value)
    else:
        read_state(value)


def _links() -> Iterator[Any]:
    numbers = {"beat": 0.5, "wants": 2, "time": 1.5, "echo": [1.0, 0.1], "arrived": 12, "curve": [[1, 2.0]]}
    yield {"states": [[0, 0]] * LANES, "errors": [[0, 1, "WireError", "bad"]], **numbers}
    yield ["CodecError", "bad"]


def _decode_spans(value: Any) -> None:
    names, packed = _fields(value, list, bytes)
    unpack_spans(names, packed)


def _spans() -> Iterator[list[Any]]:
    spans = [Span(what=kind, name="F", start=1.0, seconds=0.5, stage=0, micro_batch=1, step=2, peer="b") for kind in SpanKind]
    yield list(pack_spans(spans))


def _decode_answer(data: bytes) -> None:
    """What the process that computes answers: it is the job's."""
    arena = _arena()
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        here.send(data[:65536] or b"\x80")
        answer = receive(there, Answer, arena)
    arena.begin()
    if isinstance(answer, Refused):
        error_of(answer.kind, answer.text)
    if isinstance(answer, Done):
        for name, slots in {**answer.values, **answer.outputs}.items():
            read_use(name)
            for slot in slots:
                arena.copy(slot, MemoryBudget(_LIMIT))


@cache
def _arena() -> Arena:
    return Arena(make_file(1 << 20), own=0)


def _answers() -> Iterator[bytes]:
    half = ((1 << 20) // mmap.PAGESIZE - 1) // 2 * mmap.PAGESIZE  # where the half of the other process begins
    slot = Slot(dtype="float32", shape=(2, 3), strides=(3, 1), offset=half)
    for answer in (
        Done(values={"a\0b": (slot,)}, outputs={"loss": (slot, slot)}, numbers={"x": 1.0}, names=("y",)),
        Refused(kind="GraphError", text="bad"),
        Straight(at=Slot(dtype="uint8", shape=(16,), strides=(1,), offset=half)),
    ):
        yield msgspec.msgpack.encode(answer)


TARGETS = {
    "frame": Target(decode=_decode_frame, seeds=_frames),
    "header": Target(decode=lambda data: pack_value(unpack_value(data, 16)), seeds=lambda: [pack_value(one) for one in _links()]),
    "message": Target(decode=_decode_message, seeds=_messages, form=Form.VALUE),
    "array": Target(decode=_decode_array, seeds=_arrays, form=Form.VALUE),
    "payload": Target(decode=_decode_payload, seeds=_payloads, form=Form.VALUE),
    "memory": Target(decode=_decode_memory, seeds=_memories, form=Form.VALUE),
    "samples": Target(decode=_decode_samples, seeds=_samples, form=Form.VALUE),
    "indices": Target(decode=_decode_indices, seeds=_indices, form=Form.VALUE),
    "planes": Target(decode=_decode_planes, seeds=_planes, form=Form.VALUE),
    "greeting": Target(decode=_decode_greeting, seeds=_greetings, refuses=(FarflungError, OSError)),
    "link": Target(decode=_decode_link, seeds=_links, form=Form.VALUE),
    "spans": Target(decode=_decode_spans, seeds=_spans, form=Form.VALUE),
    "answer": Target(decode=_decode_answer, seeds=_answers),
}
