"""Transport inside one process, for workers that are threads: frames pass by reference, back-pressure is that of a network."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from farflung.clock import MonotonicClock
from farflung.errors import ConnectionLost, InputError
from farflung.transports.base import FrameHandler, LinkStatistics, Urgency, failure_of
from farflung.transports.config import TransportConfig
from farflung.transports.meter import Meter, frame_bytes
from farflung.wire.frames import Frame

__all__ = ["MemoryEndpoint", "MemoryHub"]

_PREFIX = "memory:"


class MemoryHub:
    """The endpoints of one process, by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endpoints: dict[str, MemoryEndpoint] = {}

    def endpoint(self, name: str, handler: FrameHandler, config: TransportConfig | None = None) -> MemoryEndpoint:
        """A new endpoint called ``name``; its address is ``memory:<name>``.

        Raises:
            InputError: the name is taken.
        """
        with self._lock:
            if name in self._endpoints:
                raise InputError(f"an endpoint called {name!r} exists already in this process; choose another name")
            made = self._endpoints[name] = MemoryEndpoint(self, name, handler, config or TransportConfig())
            return made

    def find(self, address: str) -> MemoryEndpoint | None:
        """The open endpoint at ``address``."""
        with self._lock:
            return self._endpoints.get(address.removeprefix(_PREFIX))

    def remove(self, endpoint: MemoryEndpoint) -> None:
        """Forget ``endpoint``."""
        with self._lock:
            if self._endpoints.get(endpoint.name) is endpoint:
                del self._endpoints[endpoint.name]


class _Lane:
    """Frames from one endpoint to another one, handled one after another on a thread of their own."""

    def __init__(self, sender: str, receiver: MemoryEndpoint, window: int) -> None:
        self._sender, self._receiver, self._window = sender, receiver, window
        #: Guards the next three; the handler runs without it.
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Frame, int, Future[None]]] = deque()
        self._handling: Future[None] | None = None
        self.closed = ""
        self._thread = threading.Thread(target=self._run, name=f"lane-{sender}-{receiver.name}", daemon=True)
        self._thread.start()

    def put(self, frame: Frame, size: int, future: Future[None]) -> None:
        """Queue a frame; waits while the window is full."""
        with self._changed:
            while not self.closed and len(self._waiting) + (self._handling is not None) >= self._window:
                self._changed.wait()
            if self.closed:
                raise ConnectionLost(self.closed)
            self._waiting.append((frame, size, future))
            self._changed.notify_all()

    def close(self, why: str) -> None:
        """Refuse further frames, fail those that wait, and end the thread once its handler returns."""
        with self._changed:
            self.closed = self.closed or why
            lost = [future for _, _, future in self._waiting] + ([self._handling] if self._handling else [])
            self._waiting.clear()
            self._changed.notify_all()
        for future in lost:
            _settle(future, ConnectionLost(self.closed))
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self.closed:
                    self._changed.wait()
                if self.closed:
                    return
                frame, size, future = self._waiting.popleft()
                self._handling = future
            error = failure_of(self._receiver.name, self._receiver.take, self._sender, frame, size)
            with self._changed:
                self._handling = None
                self._changed.notify_all()
            _settle(future, error)


def _settle(future: Future[None], error: BaseException | None) -> None:
    # a frame may be settled twice: by its handler's return and by a close meanwhile; the first word counts
    with suppress(InvalidStateError):
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


class MemoryEndpoint:
    """See ``transports.base.Endpoint``; made by ``MemoryHub.endpoint``."""

    def __init__(self, hub: MemoryHub, name: str, handler: FrameHandler, config: TransportConfig) -> None:
        self.name = name
        self._hub, self._handler, self._config = hub, handler, config
        #: What was sent to each peer and received from it.
        self.meter = Meter(MonotonicClock())
        self._lock = threading.Lock()
        self._addresses: dict[str, str] = {}
        self._outgoing: dict[str, _Lane] = {}
        self._incoming: list[_Lane] = []
        self._closed = False

    @property
    def address(self) -> str:
        return _PREFIX + self.name

    def connect(self, peer: str, address: str) -> None:
        with self._lock:
            self._addresses[peer] = address

    def post(self, peer: str, frame: Frame, urgency: Urgency = Urgency.VALUES) -> Future[None]:
        del urgency  # nothing is slow inside one process
        size = frame_bytes(frame, self._config.limits)
        lane = self._lane(peer)
        future: Future[None] = Future()
        self.meter.begin(peer)
        future.add_done_callback(lambda done: self.meter.end(peer, size, delivered=done.exception() is None))
        try:
            lane.put(frame, size, future)
        except ConnectionLost as error:
            _settle(future, error)
            raise
        return future

    def send(self, peer: str, frame: Frame) -> None:
        self.post(peer, frame).result()

    def statistics(self) -> Mapping[str, LinkStatistics]:
        return self.meter.snapshot()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            lanes = [(lane, f"this endpoint ({self.name}) was closed") for lane in self._outgoing.values()]
            lanes += [(lane, f"lost {self.name} at {self.address}: it was closed") for lane in self._incoming]
        self._hub.remove(self)
        for lane, why in lanes:
            lane.close(why)

    def open_lane(self, sender: str, window: int) -> _Lane | None:
        """A lane on which ``sender`` reaches this endpoint; None when it is closed."""
        with self._lock:
            if self._closed:
                return None
            lane = _Lane(sender, self, window)
            self._incoming.append(lane)
            return lane

    def take(self, sender: str, frame: Frame, size: int) -> None:
        """Hand an arrived frame to the handler."""
        self.meter.received(sender, size)
        self._handler(sender, frame)

    def _lane(self, peer: str) -> _Lane:
        with self._lock:
            if self._closed:
                raise ConnectionLost(f"cannot reach {peer}: this endpoint ({self.name}) was closed")
            lane = self._outgoing.get(peer)
            if lane is not None and not lane.closed:
                return lane
            address = self._addresses.get(peer)
        if address is None:
            raise ConnectionLost(f"cannot reach {peer}: its address is unknown; call connect({peer!r}, address) first")
        other = self._hub.find(address)
        lane = other.open_lane(self.name, self._config.window) if other else None
        if lane is None:
            raise ConnectionLost(f"cannot reach {peer} at {address}: no endpoint of that name is open in this process")
        with self._lock:
            self._outgoing[peer] = lane
        return lane
