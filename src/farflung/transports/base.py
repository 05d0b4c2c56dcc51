"""What a transport must offer: frames between named peers, in order per peer, with back-pressure and bounded memory."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from farflung.errors import ConnectionLost, FarflungError
from farflung.units import Seconds
from farflung.wire.frames import Frame

__all__ = [
    "PUNCHED",
    "Arrival",
    "Endpoint",
    "EndpointEvents",
    "FrameHandler",
    "LinkStatistics",
    "LossHandler",
    "TransferHandler",
    "Urgency",
    "failure_of",
    "lost",
]

#: The address of a peer that only hole punching reaches (``transports.punching``).
PUNCHED = "hole-punching"
#: Called on a transport thread for each frame that arrives: (peer, frame). It may block: that is the back-pressure.
FrameHandler = Callable[[str, Frame], None]
#: Called on a transport thread when a peer that was sending breaks off without saying goodbye: (peer, why, run). ``run`` is what
#: the header of the last frame on that very connection said (empty: there was none). A peer that came back has new connections,
#: and the loss of its old ones, which may be noticed late, must not harm what they had no part in.
LossHandler = Callable[[str, ConnectionLost, str], None]


class Urgency(IntEnum):
    """Which frames overtake which on their way to a peer; frames of one urgency stay in order."""

    #: Small messages that others wait for.
    CONTROL = 0
    #: Activations and gradients.
    VALUES = 1
    #: What may take its time: data, parameters, checkpoints.
    BULK = 2
    #: What nobody waits for: copies for the case of a loss.
    SPARE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A frame of ``nbytes`` came from ``peer`` between ``start`` and ``end`` (seconds of the monotonic clock)."""

    peer: str
    nbytes: int
    start: float
    end: float


#: Told of each arrival on a transport thread, before the frame's handler; must not wait.
TransferHandler = Callable[[Arrival], None]


def _ignore(text: str) -> None:
    del text


def _cannot_punch(peer: str) -> socket.socket:
    raise ConnectionLost(f"cannot reach {peer}: this endpoint does no hole punching")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointEvents:
    """Who is called, on transport threads, when something happens at an endpoint.

    ``on_lost``: see ``LossHandler``. ``on_arrival``: see ``TransferHandler``. ``log`` takes lines about links. ``punch`` returns
    a plain connection with a peer whose address is ``PUNCHED`` (``tcp`` only); it may wait for some seconds.
    """

    on_lost: LossHandler | None = None
    on_arrival: TransferHandler | None = None
    log: Callable[[str], None] = _ignore
    punch: Callable[[str], socket.socket] = _cannot_punch


_NO_TIME = Seconds(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatistics:
    """Traffic with one peer since the endpoint began; bytes are those of frames, without encryption and packet headers.

    ``busy_seconds`` is the time during which at least one frame to the peer was on its way (sent, not yet taken).
    Where the transport knows: ``connections`` now, ``congestion`` control of the system, goodput ``rate`` while busy (bytes per
    second), ``round_trip`` seconds, how often a broken link was ``resumed``, and bytes that were ``repeated`` because of that;
    ``confirmed``: bytes that have arrived, parts of frames included.
    ``relay``: through whom the link goes. What its own traffic says of it (``goodput``): ``alpha`` seconds one way, ``beta``
    bytes per second, ``least`` what it carries at least; 0: not known.
    """

    frames_sent: int = 0
    bytes_sent: int = 0
    frames_received: int = 0
    bytes_received: int = 0
    busy_seconds: Seconds = _NO_TIME
    connections: int = 0
    congestion: str = ""
    rate: float = 0.0
    round_trip: Seconds = _NO_TIME
    resumed: int = 0
    repeated: int = 0
    confirmed: int = 0
    relay: str = ""
    alpha: Seconds = _NO_TIME
    beta: float = 0.0
    least: float = 0.0


def failure_of(what: str, call: Callable[..., object], *args: object) -> FarflungError | None:
    """Call ``call(*args)`` and return the error that it raises (None: none). ``what`` begins the text of a defect's error.

    For threads that serve many frames or links: a defect in one of them ends neither the thread nor the others.
    """
    try:
        call(*args)
    except FarflungError as error:
        return error
    except Exception as defect:  # noqa: BLE001 - a handler may have any defect: its frame's sender gets the error
        return FarflungError(f"{what} failed inside: {type(defect).__name__}: {defect}")
    return None


class Endpoint(Protocol):
    """One process's end of the data plane. ``post`` and ``send`` may be called by one thread per peer and urgency."""

    @property
    def address(self) -> str:
        """Where peers reach this endpoint (``host:port``)."""

    def connect(self, peer: str, address: str) -> None:
        """Tell where ``peer`` is; the connection itself is made at the first frame."""

    def post(self, peer: str, frame: Frame, urgency: Urgency = Urgency.VALUES) -> Future[None]:
        """Start to deliver ``frame`` and return; wait first while as many frames as the window allows are on their way.

        The future ends once the peer's handler has taken the frame, or with the error that ``send`` would raise. Frames of
        one urgency arrive in the order of the calls. The frame's buffers belong to the receiver from now on: inside one
        process they are not copied, so whoever sends them must never write into them again.

        Raises:
            ConnectionLost: the peer can't be reached.
            WireError: the frame is larger than the limits allow.
        """

    def send(self, peer: str, frame: Frame) -> None:
        """Deliver ``frame``: returns once the peer's handler has taken it.

        Raises:
            ConnectionLost: the peer can't be reached, or broke off; the text says which peer, where and why.
            WireError: the frame is larger than this side's or the peer's limits allow.
            FarflungError: the peer's handler raised it; class and text are the handler's.
        """

    def statistics(self) -> Mapping[str, LinkStatistics]:
        """Traffic so far, by peer."""

    def close(self) -> None:
        """End all connections and threads; pending sends raise ``ConnectionLost``. Handlers must not block for ever."""


def lost(peer: str, address: str, cause: str) -> ConnectionLost:
    """Return the error for a ``peer`` that cannot be reached at ``address``."""
    return ConnectionLost(
        f"cannot reach {peer} at {address}: {cause or 'the connection broke off'}; check that {peer} runs and the port is open"
    )
