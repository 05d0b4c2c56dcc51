"""The sessions of the workers: outgoing queues, leases, and workers that are about to join."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from farflung.clock import monotonic
from farflung.errors import ConnectionLost, InputError
from farflung.messages.commands import Beat
from farflung.messages.schema import Message
from farflung.protocol.leases import Leases
from farflung.units import Seconds

__all__ = ["BEAT", "Heartbeats", "Mailbox", "Session", "SessionTable"]

#: Seconds for which a worker counts as joining after it was given a certificate.
_JOINING = 60.0
#: Heartbeats that are due within this share of their period are sent together.
_TOGETHER = 1 / 8
BEAT = Beat()


class Mailbox:
    """Messages from any thread to one coroutine.

    ``put`` is for any thread and never waits; ``get`` is for the coroutine that called ``open``, and ``remind`` for its loop.
    """

    def __init__(self) -> None:
        self._messages: deque[Message | None] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None
        #: When the coroutine began to wait, by the clock of its loop.
        self._since = 0.0

    def open(self) -> None:
        """Messages wake the calling coroutine from now on."""
        self._loop = asyncio.get_running_loop()

    def put(self, message: Message | None) -> None:
        """Queue ``message``."""
        self._messages.append(message)
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and so has the coroutine
                self._loop.call_soon_threadsafe(self._wake)

    def take(self) -> list[Message | None]:
        """Return what is queued, without waiting."""
        found = []
        while self._messages:
            found.append(self._messages.popleft())
        return found

    async def get(self) -> Message | None:
        """Return the next message."""
        assert self._loop is not None
        while not self._messages:
            self._since, self._waiter = self._loop.time(), self._loop.create_future()
            await self._waiter
        return self._messages.popleft()

    def remind(self, message: Message, before: float) -> None:
        """Queue ``message`` if the coroutine has waited since ``before``, by the clock of its loop."""
        if self._waiter is not None and not self._waiter.done() and self._since <= before:
            self._messages.append(message)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Heartbeats:
    """Heartbeats for workers to which nothing else is sent, so that they know that this broker runs. For one loop's thread.

    One timer serves all sessions, and many heartbeats are sent at once: otherwise each of them would wake the loop.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        """``seconds`` returns after which time without a message a heartbeat is due."""
        self._seconds = seconds
        self._boxes: set[Mailbox] = set()
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def serving(self, box: Mailbox) -> Iterator[None]:
        """Queue ``BEAT`` in ``box`` from time to time."""
        self._boxes.add(box)
        if self._timer is None:
            self._remind(asyncio.get_running_loop())
        try:
            yield
        finally:
            self._boxes.discard(box)
            if not self._boxes and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _remind(self, loop: asyncio.AbstractEventLoop) -> None:
        due = self._seconds()
        before = loop.time() - due
        for box in self._boxes:
            box.remind(BEAT, before)
        self._timer = loop.call_later(due * _TOGETHER, self._remind, loop)


@dataclass(slots=True, eq=False)
class Session:
    """``generation``: its number. ``ended``: why nobody reads it any more (empty: somebody does).

    ``handling``: a report of it is being handled, which may take long. ``beginning``: so is its hello, and whoever handles that
    also handles the end if it comes meanwhile.
    ``begun``: when, in monotonic seconds. ``disk``: free bytes of the worker's disks, as it reported last (None: unknown).
    """

    name: str
    generation: int
    #: None ends the session.
    outgoing: Mailbox = field(default_factory=Mailbox)
    ended: str = ""
    handling: bool = False
    beginning: bool = False
    begun: float = field(default_factory=monotonic)
    disk: float | None = None

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Inside, a report of the worker is being handled."""
        self.handling = True
        try:
            yield
        finally:
            self.handling = False


class SessionTable:
    """Any thread may call; no method waits."""

    def __init__(self, advance: Callable[[str], int], leases: Leases | None = None) -> None:
        """``advance`` returns the number of a worker's next session."""
        self._advance = advance
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self.leases = leases or Leases()
        #: worker -> when it was given a certificate (monotonic seconds)
        self._admitted: dict[str, float] = {}
        self._closed = False

    @property
    def lease(self) -> Seconds:
        """How long a worker may be silent."""
        return self.leases.length

    @property
    def closed(self) -> bool:
        """Whether the broker ends."""
        return self._closed

    def send(self, name: str, message: Message) -> None:
        """Queue ``message`` for the worker ``name``, if it is connected."""
        session = self.session(name)
        if session is not None:
            session.outgoing.put(message)

    def session(self, name: str) -> Session | None:
        """Return the session of the worker ``name`` (None: it is not connected)."""
        with self._lock:
            return self._sessions.get(name)

    def connected(self) -> list[str]:
        """Return the names of the workers that are connected."""
        with self._lock:
            return list(self._sessions)

    def serves(self, name: str) -> bool:
        """Return whether a worker called ``name`` is connected."""
        return self.session(name) is not None

    def silence(self, name: str) -> Seconds:
        """Return the time since the worker ``name`` sent something."""
        with self._lock:
            return self.leases.silence(name, monotonic())

    def uptime(self, name: str) -> Seconds:
        """Return the time since the session of the worker ``name`` began (0: it has none)."""
        session = self.session(name)
        return Seconds(0.0 if session is None else monotonic() - session.begun)

    def disk(self, name: str) -> float | None:
        """Return the free bytes of the disks of the worker ``name`` (None: unknown)."""
        session = self.session(name)
        return None if session is None else session.disk

    def put_disk(self, name: str, free: float) -> None:
        """The worker ``name`` has reported its ``free`` bytes."""
        session = self.session(name)
        if session is not None:
            session.disk = free

    def admit(self, name: str) -> None:
        """``name`` was given a certificate: it will connect soon."""
        now = monotonic()
        with self._lock:
            self._admitted = {one: at for one, at in self._admitted.items() if now - at < _JOINING} | {name: now}

    def withdraw(self, name: str) -> None:
        """``name`` will not connect."""
        with self._lock:
            self._admitted.pop(name, None)

    def joining(self) -> list[str]:
        """Return the workers that were given a certificate recently and are not connected yet."""
        now = monotonic()
        with self._lock:
            return [name for name, at in self._admitted.items() if now - at < _JOINING and name not in self._sessions]

    def enter(self, name: str, *, beginning: bool = False) -> Session:
        """Begin a session of ``name``; ``beginning``: until ``renew``.

        Raises:
            ConnectionLost: the broker ends.
            InputError: a worker of this name is connected.
        """
        generation = None
        while True:
            with self._lock:
                if self._closed:
                    raise ConnectionLost("the broker is closing")
                if name in self._sessions:
                    raise InputError(f"a worker called {name!r} is connected already; choose another name with --name")
                if generation is not None:
                    session = self._sessions[name] = Session(name, generation, beginning=beginning)
                    self.leases.grant(name, generation, monotonic())
                    self._admitted.pop(name, None)
                    return session
            generation = self._advance(name)  # writes a file, so not for a name that is taken

    def renew(self, session: Session) -> bool:
        """Something came in ``session``, or its hello was handled; return whether it is still the session of its worker."""
        with self._lock:
            session.beginning = False
            return self.leases.renew(session.name, session.generation, monotonic()) and not session.ended

    def end(self, session: Session, cause: str) -> bool:
        """End ``session`` because of ``cause``. The name stays taken until ``leave``.

        Return whether the caller handles the end: it is the first one, and the hello was handled.
        """
        with self._lock:
            if session.ended:
                return False
            session.ended, handles = cause, not session.beginning
        session.outgoing.put(None)
        return handles

    def leave(self, session: Session) -> None:
        """Release the name of ``session``."""
        with self._lock:
            if self._sessions.get(session.name) is session:
                del self._sessions[session.name]
            self.leases.end(session.name, session.generation)

    def check_leases(self, now: float) -> tuple[list[Session], dict[str, float]]:
        """Return the sessions whose lease has expired, and for how many seconds each worker has been silent."""
        with self._lock:
            for session in self._sessions.values():
                if session.handling or session.beginning:  # its messages wait for this broker: that is no silence of the worker
                    self.leases.renew(session.name, session.generation, now)
            expired = [self._sessions[name] for name, _ in self.leases.expired(now) if name in self._sessions]
            return expired, {name: float(self.leases.silence(name, now)) for name in self._sessions}

    def close(self) -> None:
        """End all sessions, and refuse new ones."""
        with self._lock:
            self._closed = True
            sessions = list(self._sessions.values())
        for session in sessions:
            session.outgoing.put(None)
