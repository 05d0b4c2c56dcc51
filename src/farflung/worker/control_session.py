"""The session with the broker: messages both ways, heartbeats, and the lease after which the broker counts as lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from farflung.clock import monotonic
from farflung.errors import ConnectionLost
from farflung.messages.commands import Beat
from farflung.messages.reports import Hello, Wants
from farflung.messages.schema import Message
from farflung.messages.wire_form import encode
from farflung.protocol.leases import BEATS, LEASE
from farflung.thread_group import ThreadGroup
from farflung.transports.rpc import RpcClient, RpcSession
from farflung.units import Seconds
from farflung.wire.frames import Frame

__all__ = ["BrokerLease", "ControlSession"]

#: Reports that may wait for a slow broker before training waits.
_REPORTS = 1024
#: How long the broker may take to answer the end of a session.
_GOODBYE_SECONDS = 3.0


class BrokerLease:
    """How long the broker has been silent. Times are seconds of one monotonic clock.

    The thread of the session calls ``receive``, ``handled`` and ``resize``, the thread of the heartbeats calls ``silence``. Each
    field is written whole, so they need no lock.
    """

    def __init__(self, now: float, length: float = float(LEASE)) -> None:
        self.length = length
        self._heard, self._polled = now, now
        #: While a message is handled, later messages wait unread: this is no silence.
        self._handling = False

    def resize(self, length: float) -> None:
        """The lease lasts ``length`` seconds from now on."""
        self.length = length

    def receive(self) -> None:
        """A message has come and is handled now."""
        self._handling = True

    def handled(self, now: float) -> None:
        """The last message is handled."""
        self._heard, self._handling = now, False

    def silence(self, now: float) -> Seconds | None:
        """How long the broker has been silent, if this is longer than the lease.

        If this process was stopped, it has read nothing in that time, so the broker gets half a lease more.
        """
        stopped, self._polled = now - self._polled > self.length / 2, now
        if self._handling:
            self._heard = now
        elif stopped:
            self._heard = max(self._heard, now - self.length / 2)
        silent = now - self._heard
        return Seconds(silent) if silent > self.length else None


class ControlSession:
    """One session of a worker. ``open`` and ``frames`` belong to one thread; any thread may call the rest."""

    def __init__(
        self, client: RpcClient, log: Callable[[str], None], beats: Callable[[], Sequence[Message]] = lambda: [Beat()]
    ) -> None:
        """``beats``: the messages of a heartbeat."""
        self._client, self._log, self._beats = client, log, beats
        #: Guards ``_rpc`` and ``_limits``. Messages are sent after it was released: ``send`` waits while the queue is full.
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self._rpc: RpcSession | None = None
        self._threads = ThreadGroup()
        self._lease = BrokerLease(monotonic())
        #: What the machine's owner allows, as ``owner_limits`` writes it for the broker.
        self._limits: dict[str, Any] = {}
        #: Whether the broker has accepted this worker.
        self.welcomed = False
        #: Why the broker ended the session (empty: it did not).
        self.dismissed = ""
        #: Whether the broker has expired this worker's lease although the worker is running.
        self.fenced = False

    @property
    def leaving(self) -> bool:
        """Whether this worker has asked to leave."""
        return self._leaving.is_set()

    def open(self, hello: Callable[[Mapping[str, Any]], Hello]) -> bool:
        """Begin the session with ``hello``, which gets the owner's limits; returns False if this worker leaves already."""
        with self._lock:  # so ``leave`` finds either no session, or one that it can end
            if self.leaving:
                return False
            rpc = self._rpc = self._client.session("session", depth=_REPORTS)
        with suppress(ConnectionLost):  # the session is over already: ``frames`` raises why
            rpc.send(encode(hello(self._limits)))
        self._lease = BrokerLease(monotonic())
        self._threads.spawn("heartbeats", self._beat, rpc, self._lease)
        return True

    def frames(self) -> Iterator[Frame]:
        """The broker's messages, until the session ends.

        Raises:
            ConnectionLost: the broker is lost.
            InputError: the broker has a worker of this name already.
        """
        rpc, lease = self._rpc, self._lease
        assert rpc is not None
        for frame in rpc:
            lease.receive()
            yield frame
            lease.handled(monotonic())

    def welcome(self, lease: float) -> None:
        """The broker has accepted this worker, and expires it after ``lease`` seconds of silence."""
        self.welcomed = True
        self._lease.resize(lease)

    def fence(self) -> None:
        """The broker has expired this worker's lease although the worker is running."""
        self.fenced = True

    def dismiss(self, cause: str) -> None:
        """The broker ends the session because of ``cause``."""
        self.dismissed = cause

    def report(self, message: Message) -> None:
        """Send ``message`` to the broker.

        Raises:
            ConnectionLost: the session is over.
        """
        assert self._rpc is not None
        self._rpc.send(encode(message))

    def announce(self, limits: Mapping[str, Any]) -> None:
        """Report what the machine's owner allows from now on: ``paused``, ``parting``, ``memory`` (as ``MemberWants``)."""
        with self._lock:
            self._limits = dict(limits)
            rpc = self._rpc
        if rpc is not None:
            with suppress(ConnectionLost):  # the next session's hello reports it
                rpc.send(encode(Wants(**self._limits)))

    def leave(self) -> None:
        """End the session, from any thread; break it off if the broker does not answer in time."""
        self._leaving.set()  # before the lock: a session that opens later sees it
        with self._lock:
            rpc = self._rpc
        if rpc is None:
            return
        # before ``end``, which waits while the queue of reports is full
        self._threads.spawn("goodbye", _close_late, rpc)
        with suppress(ConnectionLost):
            rpc.end()

    def break_off(self) -> None:
        """End the session without a goodbye, from any thread."""
        self._leaving.set()
        with self._lock:
            rpc = self._rpc
        if rpc is not None:
            rpc.close()

    def close(self) -> None:
        """Break the session off, and wait for its threads."""
        self.break_off()
        self._threads.join()

    def _beat(self, rpc: RpcSession, lease: BrokerLease) -> None:
        """Send heartbeats; end the session when the broker was silent for the length of a lease."""
        while not rpc.over.wait(lease.length / BEATS):
            silent = lease.silence(monotonic())
            if silent is not None:
                self._log(f"no message from the broker for {silent}")
                rpc.close()
                return
            if not rpc.waiting:  # else reports wait, which renew the lease as well
                with suppress(ConnectionLost):
                    for message in self._beats():
                        rpc.send(encode(message))


def _close_late(rpc: RpcSession) -> None:
    """Break ``rpc`` off if the broker does not answer its end in time."""
    if not rpc.over.wait(_GOODBYE_SECONDS):
        rpc.close()
