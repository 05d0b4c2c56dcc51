"""Settings of a transport, and how it proves who it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from farflung.errors import InputError
from farflung.memory_budget import MemoryBudget
from farflung.units import Seconds
from farflung.wire.frames import FrameLimits

__all__ = ["Insecure", "Pinned", "TransportConfig"]

_MAX_CHUNK = 1 << 20
_CONNECT, _KEEPALIVE, _PATIENCE = Seconds(10.0), Seconds(5.0), Seconds(15.0)
_HEARTBEAT, _RESUME, _REDIAL = Seconds(0.5), Seconds(20.0), Seconds(0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """Settings of an endpoint; both ends of a link should have the same.

    ``window``: frames per peer on their way at once (so that others travel while one is handled and its confirmation waits behind
    what the peer sends: with 2 a link of 24 Mbit/s and 34 ms stood still for a fifth of the time).
    ``small``: more frames may be under way while all of a lane together have fewer bytes; two frames of 16 kB would leave a link
    idle for most of the time in which their acknowledgement waits behind what goes the other way (``tcp`` only).
    ``chunk_bytes``: largest piece of a frame in one message. ``stripes``: connections per link, for links whose bandwidth
    times delay one connection can't carry (about 3.9 MB per round trip with Linux's default buffers).
    ``max_stripes``: up to how many the ``tcp`` transport may raise that number while goodput grows. ``credit``: bytes of one
    urgency that may be unconfirmed. ``heartbeat``: how often a link says that it lives; ``resume``: how long a broken link is
    taken up again, a try every ``redial`` seconds (``tcp`` only).
    ``budget``: from which frames that arrive take their memory. ``peers_only``: only members that this side was told of
    (``connect``) get past the greeting (``tcp`` only).
    ``connect_timeout``: how long a peer that does not answer yet is tried. A silent peer is given up about
    ``keepalive`` (at least 1 s; asked after so much silence) + ``keepalive_timeout`` seconds later; the latter must exceed
    the time in which the link drains its send buffer, else a busy slow link is taken for dead.
    """

    window: int = 4
    small: int = 0
    chunk_bytes: int = _MAX_CHUNK
    stripes: int = 1
    max_stripes: int = 1
    credit: int = 32 << 20
    limits: FrameLimits = field(default_factory=FrameLimits)
    connect_timeout: Seconds = _CONNECT
    keepalive: Seconds = _KEEPALIVE
    keepalive_timeout: Seconds = _PATIENCE
    heartbeat: Seconds = _HEARTBEAT
    resume: Seconds = _RESUME
    redial: Seconds = _REDIAL
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    peers_only: bool = False

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("window", self.window, 1, 64),
            ("small", self.small, 0, self.credit),
            ("chunk_bytes", self.chunk_bytes, 1024, _MAX_CHUNK),
            ("stripes", self.stripes, 1, 64),
            ("max_stripes", self.max_stripes, 1, 64),
            ("credit", self.credit, _MAX_CHUNK, 1 << 40),
        ):
            if not low <= value <= high:
                raise InputError(f"transport setting {name} must be from {low} to {high}, got {value}")
        for name, seconds in (
            ("connect_timeout", self.connect_timeout),
            ("keepalive_timeout", self.keepalive_timeout),
            ("heartbeat", self.heartbeat),
            ("resume", self.resume),
            ("redial", self.redial),
        ):
            if not 0.001 <= seconds < 86400:
                raise InputError(f"transport setting {name} must be from 0.001 to 86400 seconds, got {float(seconds)}")
        if not 1.0 <= self.keepalive < 86400:
            raise InputError(f"transport setting keepalive must be from 1 to 86400 seconds, got {float(self.keepalive)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Insecure:
    """No encryption and no proof of anybody's name: for tests on one machine only."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """The caller has only a ticket yet: it accepts the one ``certificate`` (PEM) and shows none itself."""

    certificate: bytes
