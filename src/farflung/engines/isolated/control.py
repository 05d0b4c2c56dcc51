"""The messages between a worker, the process that forks for it, and the processes that compute, over Unix sockets.

A message is one packet: MessagePack of one of the types below. A longer message lies in the shared memory, and the packet
says where. Arrays lie there too. Nothing is unpickled.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import msgspec

from farflung.engines.base import DeviceReport, EngineSupport, MicroBatch
from farflung.engines.devices import ComputeDevice
from farflung.engines.encoded_value import Coding
from farflung.engines.isolated.arena import Arena, Slot
from farflung.engines.isolated.encoded import Encoded
from farflung.errors import WireError
from farflung.graph.cut import Edge
from farflung.wire.struct_types import prepare

__all__ = [
    "Answer",
    "Arrays",
    "Call",
    "Done",
    "EngineCall",
    "EngineMethod",
    "Exited",
    "Fold",
    "Locked",
    "Message",
    "OpenStage",
    "Piece",
    "Reached",
    "Refused",
    "Resume",
    "Settings",
    "Spawn",
    "Started",
    "Straight",
    "receive",
    "receive_with_files",
    "send",
]

#: Arrays by name; several where a name has several.
Arrays = dict[str, tuple[Slot, ...]]
_INLINE, _PACKET = 48 << 10, 64 << 10
#: Bytes of an answer, without its arrays: some for each name of a state.
_MOST_ANSWER = 64 << 20


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """A message; the name of its class goes with it."""


# -- the worker and the process that forks -------------------------------------------------------------------------------


class Started(Message, frozen=True, kw_only=True):
    """The process that forks has loaded the engine of this version."""

    version: str


class Spawn(Message, frozen=True, kw_only=True):
    """Fork the processes that compute. These files come along: the ends of the channels, the shared memories, the status.

    ``memory``: bytes for the tensors of each process. ``ranks``: how many processes (1: no site).
    ``disk``: bytes that a file may have that the worker passes to them.
    """

    memory: int
    accelerator: bool
    scratch: str
    ranks: int = 1
    disk: int = 0


class Exited(Message, frozen=True, kw_only=True):
    """A process that computes has ended, by ``signal`` (0: by itself, with ``code``). ``resident``: its most bytes."""

    signal: int
    code: int
    resident: int
    rank: int = 0


# -- the worker and the process that computes ----------------------------------------------------------------------------


class Locked(Message, frozen=True, kw_only=True):
    """The process that computes is ready; ``holds``: those of ``lockdown.PROTECTIONS`` that hold."""

    holds: tuple[str, ...]


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A ``SubGraph`` without its graph."""

    stage: int
    start: int
    stop: int
    positions: tuple[int, ...]
    states: tuple[str, ...]
    placeholders: tuple[str, ...]
    requires_activations: tuple[Edge, ...]
    sends_activations: tuple[Edge, ...]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """``EngineSettings``; the optimizer as its document."""

    device: str
    seed: int
    precision: str
    recompute: bool
    split_backward: bool
    training: bool
    optimizer: str
    #: The total of its budget (``None``: no limit).
    memory: int | None
    any_order: bool = False
    #: Bytes of the file for optimizer states, which comes along (0: there is none).
    offload: int = 0
    sharded: bool = False
    tensor: bool = False
    part_ends: tuple[int, ...] = ()
    codings: tuple[Coding, ...] = ()


class Fold(msgspec.Struct, frozen=True, array_like=True):
    """In the sum of a site: add the gradients of micro-batch ``index``, which ``rank`` computed; then end a part of the sum.

    ``index`` -1: add nothing. ``close``: ``StageRunner.close_part`` follows, with ``last``.
    """

    step: int
    index: int
    rank: int
    close: bool = False
    last: bool = False


class OpenStage(Message, frozen=True, kw_only=True):
    """Open a runner, numbered by the worker. ``graph``: its document (``None``: the one that came last)."""

    runner: int
    graph: Slot | None
    piece: Piece
    settings: Settings
    share: int | None = None


Method = Literal[
    "initialize", "load", "forward", "backward", "backward_weights", "close_part", "take_gradients", "put_gradients",
    "use_gradients", "finish_gradients", "gradients", "gradient_views", "set_gradients", "gradient_norms", "spoilt_gradients",
    "update", "watch", "discard", "states", "optimizer_states", "load_optimizer", "close", "fold", "assist_forward",
    "assist_backward",
]  # fmt: skip


class Call(Message, frozen=True, kw_only=True):
    """Call a method of a runner. The fields are its arguments; ``names`` are of states, ``groups`` those that ``watch`` takes."""

    runner: int
    method: Method
    key: MicroBatch = MicroBatch(0, 0)
    values: Arrays = {}
    data: Arrays = {}
    names: tuple[str, ...] | None = None
    groups: tuple[tuple[str, ...], ...] = ()
    rates: tuple[float, ...] = ()
    scale: Slot | None = None
    weight: float = 0.0
    last: bool = False
    folds: tuple[Fold, ...] = ()
    more: bool = False


EngineMethod = Literal[
    "verify", "initial_states", "clip_scale", "set_threads", "devices", "support", "measure", "share", "connect"
]


class EngineCall(Message, frozen=True, kw_only=True):
    """Call a method of the engine. The fields are its arguments."""

    method: EngineMethod
    graph: Slot | None = None
    seed: int = 0
    names: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()
    limit: float | None = None
    threads: int = 1
    device: str = ""


class Resume(Message, frozen=True, kw_only=True):
    """Go on with the backward: what was ready has been taken."""


class Straight(Message, frozen=True, kw_only=True):
    """A message that lies in the shared memory."""

    at: Slot


class Done(Message, frozen=True, kw_only=True):
    """A call has succeeded; the fields that it fills depend on its method."""

    values: Arrays = {}
    encoded: dict[str, Encoded] = {}
    outputs: Arrays = {}
    numbers: dict[str, float] = {}
    names: tuple[str, ...] = ()
    devices: tuple[ComputeDevice, ...] = ()
    support: EngineSupport | None = None
    report: DeviceReport | None = None


class Refused(Message, frozen=True, kw_only=True):
    """A call has failed with an error: the name of its class and its text."""

    kind: str
    text: str


class Reached(Message, frozen=True, kw_only=True):
    """Inside a backward: the gradients of the watched group ``index`` are complete. ``Resume`` ends the wait."""

    index: int


Answer = Locked | Done | Refused | Reached | Straight
Order = OpenStage | Call | EngineCall | Resume | Straight
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def send(channel: socket.socket, message: Message, arena: Arena | None = None, files: Sequence[int] = ()) -> None:
    """Send ``message``, through ``arena`` if it is long; ``files`` are descriptors that the receiver gets copies of.

    Raises:
        OSError: the other end is closed.
    """
    packet = _ENCODER.encode(message)
    if len(packet) > _INLINE:
        assert arena is not None
        packet = _ENCODER.encode(Straight(at=arena.write_bytes(packet)))
    if files:
        socket.send_fds(channel, [packet], list(files))
    else:
        channel.send(packet)


def receive(channel: socket.socket, kind: Any, arena: Arena | None = None) -> Any:
    """Wait for a message of ``kind`` (a type, or a union of types); ``None``: the other end is closed.

    Raises:
        WireError: it is something else, or too long.
    """
    try:
        packet = channel.recv(_PACKET)
    except OSError:
        return None
    return _decode(packet, kind, arena) if packet else None


def receive_with_files(channel: socket.socket, kind: Any, count: int, arena: Arena | None = None) -> tuple[Any, list[int]]:
    """As ``receive``, with at most ``count`` descriptors that came along."""
    try:
        packet, files, _, _ = socket.recv_fds(channel, _PACKET, count)
    except OSError:
        return None, []
    return (_decode(packet, kind, arena) if packet else None), files


def _decode(packet: bytes, kind: Any, arena: Arena | None) -> Any:
    decoder = _DECODERS.get(kind)
    if decoder is None:
        prepare(kind)
        decoder = _DECODERS[kind] = msgspec.msgpack.Decoder(kind)
    try:
        message = decoder.decode(packet)
        if isinstance(message, Straight) and arena is not None:
            if prod(message.at.shape) > _MOST_ANSWER:
                raise WireError(f"a message of the process that computes has {prod(message.at.shape)} bytes")
            message = decoder.decode(arena.read_bytes(message.at))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"a message of the process that computes is malformed: {error}") from None
    return message
