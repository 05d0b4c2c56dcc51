"""Sessions of workers: reports in, commands out, until one side ends it or is silent for the length of a lease.

Each session has a number, its generation. A worker that was stopped or cut off, and whose lease has expired, may still send: its
session is over by then, and nobody reads it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from farflung.broker.links.advertised_address import check_advertised
from farflung.broker.session_table import BEAT, Heartbeats, Session, SessionTable
from farflung.clock import monotonic
from farflung.errors import ConnectionLost, FarflungError, SecurityError, WireError
from farflung.messages.commands import Beat, Fenced, Goodbye, Welcome
from farflung.messages.reports import Hello
from farflung.messages.schema import Channel
from farflung.messages.wire_form import decode_as, encode, holds
from farflung.protocol.leases import BEATS
from farflung.security import Caller
from farflung.thread_group import ThreadGroup
from farflung.transports.base import failure_of
from farflung.transports.rpc.calls import Call, FrameStream
from farflung.wire.frames import Frame, run_of

__all__ = ["SessionEvents", "Sessions"]

#: Seconds between two checks of the leases.
_TICK = 0.5
#: Sessions that begin at the same time, and such that end.
_TURNS = 4
#: Seconds that a caller has for its hello.
_HELLO_SECONDS = 30.0
_BEAT_FRAME = encode(BEAT)
_T = TypeVar("_T")
#: The cause of the end of a session when its worker asked for it.
_LEFT = "it left"


class SessionEvents(Protocol):
    """What happens in sessions."""

    def joined(self, name: str, generation: int, hello: Hello) -> tuple[str, list[str]]:
        """A session begins with ``hello``. Return a text about the worker for people, and warnings for the worker."""

    def report(self, name: str, frame: Frame) -> None:
        """The worker ``name`` sent ``frame``."""

    def silent(self, silences: Mapping[str, float], lease: float) -> None:
        """The seconds for which each worker has been silent; a session ends after ``lease`` seconds."""

    def lost(self, name: str, cause: str) -> None:
        """The session of ``name`` is over."""


class Sessions:
    """Serves the sessions of workers. Thread: "leases".

    A session has two coroutines, one for each direction, and no thread. Heartbeats are handled in the coroutine. Any other
    report has a thread while it is handled, and the next one waits for that: this is the back-pressure.
    """

    def __init__(
        self,
        table: SessionTable,
        events: SessionEvents,
        say: Callable[[str], None],
        unwelcome: Callable[[Callable[[], Sequence[str]]], Mapping[str, str]] = lambda connected: {},
        welcome: Callable[[Caller], None] = lambda caller: None,
    ) -> None:
        """``unwelcome`` returns which of the connected workers must go, and why; it is asked until they are gone.

        ``welcome`` raises an error for a caller who may not have a session any more.
        """
        self._table, self._events, self._say, self._unwelcome, self._welcome = table, events, say, unwelcome, welcome
        self._threads = ThreadGroup()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heartbeats = Heartbeats(lambda: table.lease / BEATS)
        #: The readers of all sessions: asyncio alone does not keep a task alive.
        self._reading: set[asyncio.Task[None]] = set()
        #: For those that begin, and for those that end: a member that left must not wait for a thousand that come.
        self._begins, self._ends = asyncio.Semaphore(_TURNS), asyncio.Semaphore(_TURNS)
        self._ended = threading.Event()

    def start(self) -> None:
        """Check the leases from now on."""
        self._threads.spawn("leases", self.watch)

    def close(self) -> None:
        """End all sessions, and refuse new ones. ``join`` waits for the threads."""
        self._ended.set()
        self._table.close()

    def join(self) -> None:
        """Join the threads, after the server that serves the sessions was closed."""
        self._threads.join()

    def watch(self) -> None:
        """Check the leases until ``close``, on the calling thread."""
        while not self._ended.wait(_TICK):
            self._await_loop()
            checks = {"the handling of a lost worker": self.check_leases, "a check of tickets": self._check_tickets}
            for what, check in checks.items():
                if error := failure_of(what, check, monotonic()):
                    self._say(f"warning: {error}")  # the leases of other workers still count

    def _await_loop(self) -> None:
        """Wait until the loop that reads the sessions has had a turn.

        While planning takes the processor, messages wait to be read. Then the check comes late, and ``Leases`` allows for that.
        """
        passed = threading.Event()
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(passed.set)
                while not (passed.wait(_TICK) or self._ended.is_set()):
                    continue

    def check_leases(self, now: float) -> None:
        """Remove the workers whose lease has expired; to be called every half second."""
        expired, silences = self._table.check_leases(now)
        self._events.silent(silences, float(self._table.lease))
        cause = f"no message from it for {self._table.lease}: it is frozen, or cut off"
        self._end_all(dict.fromkeys(expired, cause))

    def _check_tickets(self, now: float) -> None:
        """Remove the workers that are not welcome any more; to be called every half second."""
        del now
        causes = self._unwelcome(self._table.connected)
        self._end_all({session: causes[session.name] for session in self._sessions(causes)})

    def remove(self, chosen: Callable[[str], bool], cause: str) -> list[str]:
        """End the sessions of the workers whose names are ``chosen``, because of ``cause``; return their names."""
        found = self._sessions([name for name in self._table.connected() if chosen(name)])
        self._end_all(dict.fromkeys(found, cause))
        return [session.name for session in found]

    def _sessions(self, names: Iterable[str]) -> list[Session]:
        sessions = [self._table.session(name) for name in names]
        return [session for session in sessions if session is not None]

    def _end_all(self, causes: Mapping[Session, str]) -> None:
        """End each session for its cause: first nobody reads them any more, then each loss is handled, whatever another does."""
        ended = [(session, cause) for session, cause in causes.items() if self._table.end(session, cause)]
        for session, cause in ended:
            if error := failure_of("the handling of a lost worker", self._lose, session, cause):
                self._say(f"warning: {error}")

    async def serve(self, call: Call, stream: FrameStream) -> None:
        """Serve a worker's session: receive reports, send commands.

        Raises:
            SecurityError: the caller is not a worker.
            WireError: it does not begin with a proper hello.
            InputError: a worker of this name is connected, or other members must not dial its address.
            ConnectionLost: the worker broke off.
        """
        caller = call.caller
        assert caller is not None
        name = caller.name
        if caller.role != "worker":
            raise SecurityError(f"{name!r} has no right to work here: it joined as a {caller.role}")
        first = await _first(stream)
        if first is None:
            raise WireError("a worker's session must begin with hello")
        hello = decode_as(first, Channel.REPORTS, Hello)
        beginning = asyncio.create_task(self._in_turn(self._begins, call, lambda: self.begin(call, caller, hello)))
        # its own task: the end of the call cancels this coroutine, and the reader ends after the report that it handles
        reading = asyncio.create_task(self._read_begun(beginning, call, stream))
        self._reading.add(reading)
        reading.add_done_callback(self._has_read)
        lease = float(self._table.lease)
        while not (await asyncio.wait((beginning,), timeout=lease / BEATS))[0]:
            await stream.send(_BEAT_FRAME)  # many wait for their turn: the worker shall know that this broker runs
        session, warnings = beginning.result()
        session.outgoing.open()
        self._loop = asyncio.get_running_loop()
        welcome = Welcome(name=name, generation=session.generation, lease=lease, warnings=tuple(warnings))
        await stream.send(encode(welcome))
        await self._send_commands(session, stream)
        if self._table.closed:
            await stream.send(encode(Goodbye(cause="it was ended")))
        elif session.ended != _LEFT:
            await stream.send(encode(Fenced(cause=session.ended)))

    def begin(self, call: Call, caller: Caller, hello: Hello) -> tuple[Session, list[str]]:
        """Begin the session of the worker ``caller``; return it with warnings for the worker.

        Raises:
            ConnectionLost: the ``call`` ended before its turn came.
            InputError: a worker of this name is connected, or other members must not dial its address.
            SecurityError: it was kicked, or its ticket was revoked, since it called.
        """
        if not call.active:
            raise ConnectionLost(f"lost {caller.name}: the connection broke off")
        for address in (hello.address, hello.address6 or ""):
            check_advertised(address, call.address)
        session = self._table.enter(caller.name, beginning=True)
        cause = "its session did not begin"
        try:
            self._welcome(caller)  # again: only from now on it is found among those that are connected
            text, warnings = self._events.joined(caller.name, session.generation, hello)
            self._say(f"worker {caller.name} joined from {text}")
            cause = ""
        finally:  # whatever happened: no member may remain without a session
            if not self._table.renew(session):
                cause = session.ended
            if cause:
                self._table.end(session, cause)
                self._lose(session, cause)
        return session, warnings

    async def _send_commands(self, session: Session, stream: FrameStream) -> None:
        """Send the worker's commands, until None comes."""
        with self._heartbeats.serving(session.outgoing):
            while (command := await session.outgoing.get()) is not None:
                await stream.send(_BEAT_FRAME if command is BEAT else encode(command))

    async def _read_begun(self, beginning: Awaitable[tuple[Session, list[str]]], call: Call, stream: FrameStream) -> None:
        try:
            session, _ = await beginning
        except Exception:  # noqa: BLE001 - ``serve`` raises it
            return
        await self.read(session, call, stream)

    async def read(self, session: Session, call: Call, stream: FrameStream) -> None:
        """Report the frames of ``session`` to the broker, one after the other; then end the session."""
        cause = _LEFT
        beat: Frame | None = None
        try:
            while (frame := await stream.receive()) is not None:
                if not self._table.renew(session):
                    return  # its lease has expired: the worker came back too late
                if frame is beat:
                    continue  # nothing has changed
                if holds(frame, Beat) and not run_of(frame):  # nearly all frames of an idle cluster; this waits for nothing
                    self._events.report(session.name, frame)
                    beat = frame
                    continue
                with session.reporting():
                    await call.on_thread(partial(self._events.report, session.name, frame))
        except ConnectionLost as error:
            cause = "this broker was ended" if self._table.closed else f"{error} (check that its machine is up)"
        except FarflungError as error:
            cause = str(error)
        except Exception as error:  # noqa: BLE001 - outermost level of a task: a defect ends this session only
            cause = f"its session failed inside: {type(error).__name__}: {error}"
        finally:
            await self._in_turn(self._ends, call, lambda: self._end(session, cause))

    def _has_read(self, reading: asyncio.Task[None]) -> None:
        self._reading.discard(reading)
        if not reading.cancelled() and (error := reading.exception()) is not None:
            self._say(f"warning: the end of a session failed inside: {type(error).__name__}: {error}")

    @staticmethod
    async def _in_turn(turns: asyncio.Semaphore, call: Call, work: Callable[[], _T]) -> _T:
        """Return the result of ``work``, which writes files: a thousand members that come or go at once must wait in line."""
        async with turns:
            return await call.on_thread(work)

    def _end(self, session: Session, cause: str) -> None:
        """End the session, for the first cause that comes."""
        if self._table.end(session, cause):
            self._lose(session, cause)

    def _lose(self, session: Session, cause: str) -> None:
        """Handle the loss of the worker whose ``session`` has ended."""
        self._say(f"worker {session.name} {'left' if cause == _LEFT else f'is gone: {cause}'}")
        try:
            self._events.lost(session.name, cause)
        finally:
            self._table.leave(session)  # else the name would be taken for ever


async def _first(stream: FrameStream) -> Frame | None:
    """Return the caller's first frame (None: it said goodbye, or nothing for long).

    Raises:
        ConnectionLost: the caller broke off.
    """
    try:
        async with asyncio.timeout(_HELLO_SECONDS) as limit:
            return await stream.receive()
    except (ConnectionLost, TimeoutError):  # the end of a wait looks like the end of the call there
        if not limit.expired():
            raise
        return None
