"""A slow, long link without root: an endpoint that sends at a link's rate and delays by its latency.

Per directed link, at the sender: a link transmits one piece after another, ``free = max(ready, free) + bytes / rate``
(``ready`` is the moment at which the sender has the piece, so late wake-ups lose no rate), and a frame arrives ``latency``
after its last piece has left. While it is under way the next one is already being transmitted; its acknowledgement comes
back after the latency, like on a network. Peers with the same ``share`` share one rate, piece by piece.
Emulates the time that bytes take, nothing else: no loss, no slow start, no queues at routers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from farflung.clock import Clock, MonotonicClock
from farflung.errors import ConnectionLost, InputError
from farflung.transports.base import Endpoint, LinkStatistics, Urgency, failure_of
from farflung.transports.meter import Meter, frame_bytes
from farflung.units import BytesPerSecond, Seconds
from farflung.wire.frames import Frame

__all__ = ["LinkShape", "ShapedEndpoint", "Uplink"]

#: Waits until a clock shows the given time (seconds); may return late, never early unless the endpoint is closed.
WaitUntil = Callable[[float], None]

_PIECE_SECONDS = 0.01
_MIN_PIECE, _MAX_PIECE = 4096, 1 << 20
#: Seconds that a sender is not held for: a thread wakes up later than that. When the bytes arrive does not depend on it.
_SHORT = 2e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkShape:
    """One direction of a link; peers whose shapes name the same ``share`` share one rate."""

    latency_seconds: Seconds
    bytes_per_second: BytesPerSecond
    share: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.latency_seconds < 3600 or not 0 < self.bytes_per_second < float("inf"):
            raise InputError(
                f"a link needs a latency from 0 to 3600 s and a rate above 0, got {float(self.latency_seconds)} s "
                f"and {float(self.bytes_per_second)} B/s"
            )


class Uplink:
    """The virtual clock of one transmitter; thread-safe."""

    def __init__(self, rate: BytesPerSecond) -> None:
        self.rate = rate
        #: When the transmitter is free, in seconds of the endpoint's clock.
        self._free = 0.0
        #: Several links may share one transmitter.
        self._lock = threading.Lock()

    def reserve(self, ready: float, size: int) -> float:
        """Transmit ``size`` bytes that are there at time ``ready`` as soon as the link is free: the end in seconds."""
        with self._lock:
            self._free = max(self._free, ready) + size / self.rate
            return self._free

    def pieces(self, size: int) -> Iterator[int]:
        """``size`` cut into pieces of about 10 ms, so that sharers take turns."""
        piece = int(min(max(self.rate * _PIECE_SECONDS, _MIN_PIECE), _MAX_PIECE))
        while size > 0:
            yield min(piece, size)
            size -= piece


class _DelayLine:
    """Runs actions at given times, in the order in which they came, on a thread of its own."""

    def __init__(self, wait_until: WaitUntil, name: str) -> None:
        self._wait_until = wait_until
        #: Guards the next two; actions run without it.
        self._changed = threading.Condition()
        self._actions: deque[tuple[float, Callable[[], None]]] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"shaped-{name}", daemon=True)
        self._thread.start()

    def put(self, at: float, action: Callable[[], None]) -> None:
        """Run ``action`` at time ``at``; at once when the line is closed."""
        with self._changed:
            if not self._closed:
                self._actions.append((at, action))
                self._changed.notify_all()
                return
        action()

    def close(self) -> None:
        """Run what is left without delay and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._actions and not self._closed:
                    self._changed.wait()
                if not self._actions:
                    return
                at, action = self._actions.popleft()
            self._wait_until(at)
            action()


class _Link:
    """What the shaper keeps for one peer."""

    def __init__(self, shape: LinkShape, uplink: Uplink, window: int, wait_until: WaitUntil, peer: str) -> None:
        self.shape, self.uplink = shape, uplink
        #: One place for each frame on its way: a full window stops the sender, as a real link does.
        self.room = threading.Semaphore(window)
        self.outward = _DelayLine(wait_until, f"{peer}-out")
        self.back = _DelayLine(wait_until, f"{peer}-back")


class ShapedEndpoint:
    """``endpoint`` with the links to some peers slowed down; peers without a shape are reached as before."""

    def __init__(
        self,
        endpoint: Endpoint,
        links: Mapping[str, LinkShape],
        *,
        owns: bool = True,
        window: int = 4,
        clock: Clock | None = None,
        wait_until: WaitUntil | None = None,
    ) -> None:
        """``owns``: ``close`` closes ``endpoint``, too. ``window``: frames to a peer that are on their way at most.

        ``clock`` and ``wait_until`` are for tests.

        Raises:
            InputError: peers that share a link disagree on its rate.
        """
        self._inner, self._owns = endpoint, owns
        self._clock = clock or MonotonicClock()
        self._wait_until = wait_until or self._wait_really
        self._window = window
        #: What was sent to each peer.
        self.meter = Meter(self._clock)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._uplinks: dict[str, Uplink] = {}
        self._links: dict[str, _Link] = {}
        for peer, shape in links.items():
            self.shape(peer, shape)

    def shape(self, peer: str, shape: LinkShape) -> None:
        """Slow down the link to a further peer.

        Raises:
            InputError: the peer has a shape already, or those who share its link disagree on its rate.
        """
        with self._lock:
            if peer in self._links:
                raise InputError(f"the link to {peer} is shaped already; a shape can't change while frames travel")
            uplink = Uplink(shape.bytes_per_second)
            if shape.share is not None:
                uplink = self._uplinks.setdefault(shape.share, uplink)
            if uplink.rate != shape.bytes_per_second:
                raise InputError(
                    f"peers that share the link {shape.share!r} must name one rate: {peer} says {shape.bytes_per_second}, "
                    f"another one {uplink.rate}"
                )
            self._links[peer] = _Link(shape, uplink, self._window, self._wait_until, peer)

    @property
    def address(self) -> str:
        return self._inner.address

    def connect(self, peer: str, address: str) -> None:
        self._inner.connect(peer, address)

    def post(self, peer: str, frame: Frame, urgency: Urgency = Urgency.VALUES) -> Future[None]:
        link = self._links.get(peer)
        if link is None:
            return self._inner.post(peer, frame, urgency)
        size = frame_bytes(frame)
        link.room.acquire()
        future: Future[None] = Future()
        self.meter.begin(peer)
        future.add_done_callback(lambda done: self._finish(link, peer, size, done))
        left = self._transmit(link, size)
        link.outward.put(left + link.shape.latency_seconds, lambda: self._hand_over(link, peer, frame, future))
        return future

    def send(self, peer: str, frame: Frame) -> None:
        self.post(peer, frame).result()

    def statistics(self) -> Mapping[str, LinkStatistics]:
        mine, below = self.meter.snapshot(), self._inner.statistics()
        merged = dict(below)
        for peer, own in mine.items():
            received = below.get(peer, LinkStatistics())
            merged[peer] = LinkStatistics(
                frames_sent=own.frames_sent,
                bytes_sent=own.bytes_sent,
                frames_received=received.frames_received,
                bytes_received=received.bytes_received,
                busy_seconds=own.busy_seconds,
            )
        return merged

    def close(self) -> None:
        self._closing.set()
        if self._owns:
            self._inner.close()
        for link in list(self._links.values()):
            link.outward.close()
            link.back.close()

    def _transmit(self, link: _Link, size: int) -> float:
        """Hold the caller while the frame leaves: the moment at which its last byte has left."""
        left = float(self._clock.now())
        for piece in link.uplink.pieces(size):
            left = link.uplink.reserve(left, piece)
            if left - self._clock.now() > _SHORT:
                self._wait_until(left)
        return left

    def _hand_over(self, link: _Link, peer: str, frame: Frame, future: Future[None]) -> None:
        def post() -> None:
            if self._closing.is_set():
                raise ConnectionLost(f"the connection to {peer} was closed on this side")
            self._inner.post(peer, frame).add_done_callback(
                lambda done: link.back.put(self._clock.now() + link.shape.latency_seconds, lambda: _pass_on(done, future))
            )

        error = failure_of(f"the link to {peer}", post)
        if error is not None:
            future.set_exception(error)

    def _finish(self, link: _Link, peer: str, size: int, done: Future[None]) -> None:
        self.meter.end(peer, size, delivered=done.exception() is None)
        link.room.release()

    def _wait_really(self, until: float) -> None:
        while not self._closing.is_set() and (rest := until - self._clock.now()) > 0:
            self._closing.wait(rest)


def _pass_on(done: Future[None], future: Future[None]) -> None:
    error = done.exception()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
