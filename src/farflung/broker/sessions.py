"""Members' sessions at the broker: reports in, commands out, until one side ends it, or says nothing for the length of a lease.

Each session has a number, its generation. A worker that was stopped or cut off, whose lease has run out, may still send: its
session is over by then, and nobody reads it.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from farflung.broker.links.reachability import read_reached
from farflung.broker.live_run import Holds, LiveRun
from farflung.broker.run_manager import Runs
from farflung.errors import ConnectionLost, FarflungError, InputError, SecurityError, WireError
from farflung.messages.fields import number, table, text, whole
from farflung.messages.holdings import read_holdings
from farflung.messages.link_reports import read_links
from farflung.messages.probes import read_probe
from farflung.messages.step_reports import StepReport, read_report, read_trace
from farflung.messages.versions import read_versions, version_warnings
from farflung.protocol.events import (
    MemberJoined,
    MemberLost,
    MemberMeasured,
    MemberWants,
    Offer,
    RunDropped,
    RunEnded,
    RunFailed,
    RunPrepared,
)
from farflung.protocol.leases import Leases
from farflung.protocol.members import Parting
from farflung.transports.rpc import Call
from farflung.units import Bytes, FlopsPerSecond, Seconds
from farflung.wire.frames import Frame

__all__ = ["Sessions"]

_MAX_SAMPLE = 1 << 20
_LEAST_FACTOR = 1e-9
_REPORTS = ("helping", "prepared", "dropped", "ended", "failed", "step", "evaluation", "text", "trace", "note")
_MAX_NOTE = 1000
_MAX_PROCESSORS = 4096
_MAX_TOLD = 64
#: How often leases are looked after, and how often in the length of one both sides say something.
_TICK, _BEATS = 0.5, 4
#: How long a worker that was given a certificate counts as joining.
_JOINING = 60.0
#: The cause of a session's end that its worker asked for.
_LEFT = "it left"


@dataclass(slots=True, eq=False)
class _Session:
    """``fenced``: why nobody listens to it any more (empty: somebody does)."""

    name: str
    generation: int
    outgoing: queue.SimpleQueue[Frame | None] = field(default_factory=queue.SimpleQueue)
    fenced: str = ""


class Sessions:
    """The outgoing queues of the members, their leases, and what becomes of their reports."""

    def __init__(
        self, say: Callable[[str], None], advance: Callable[[str], int] | None = None, leases: Leases | None = None
    ) -> None:
        """``advance`` gives the number of a member's next session."""
        count = itertools.count(1)
        self._advance = advance or (lambda name: next(count))
        self._say = say
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._leases = leases or Leases()
        self._admitted: dict[str, float] = {}
        self._closed = False
        self._ended = threading.Event()

    def send(self, name: str, frame: Frame) -> None:
        """Queue ``frame`` for the member ``name``, if it is there; never waits."""
        with self._lock:
            session = self._sessions.get(name)
        if session is not None:
            session.outgoing.put(frame)

    def serves(self, name: str) -> bool:
        """Whether a worker called ``name`` is connected."""
        with self._lock:
            return name in self._sessions

    def holds(self, name: str, generation: int) -> bool:
        """Whether the session number ``generation`` of ``name`` is the one that counts."""
        with self._lock:
            return self._leases.generation(name) == generation

    def silence(self, name: str) -> Seconds:
        """For how long nothing was heard of the worker ``name``."""
        with self._lock:
            return self._leases.silence(name, time.monotonic())

    def admitted(self, name: str) -> None:
        """``name`` was given a certificate: it will come soon."""
        now = time.monotonic()
        with self._lock:
            self._admitted = {one: at for one, at in self._admitted.items() if now - at < _JOINING} | {name: now}

    def withdrawn(self, name: str) -> None:
        """``name`` will not come after all."""
        with self._lock:
            self._admitted.pop(name, None)

    def joining(self) -> list[str]:
        """Workers that were let in a moment ago and are not here yet."""
        now = time.monotonic()
        with self._lock:
            return [name for name, at in self._admitted.items() if now - at < _JOINING and name not in self._sessions]

    def look(self, runs: Runs, now: float) -> None:
        """Give up the members whose lease has run out; to be called every half second."""
        with self._lock:
            silent = [self._sessions[name] for name, _ in self._leases.expired(now) if name in self._sessions]
            silences = {name: float(self._leases.silence(name, now)) for name in self._sessions}
        self._tell_silence(runs, silences)
        for session in silent:
            self._over(runs, session, f"nothing was heard of it for {self._leases.length}: it is frozen, or cut off")

    def _tell_silence(self, runs: Runs, silences: Mapping[str, float]) -> None:
        for name, seconds in silences.items():
            member = runs.machine.members.get(name)
            if member is not None and member.run is not None:
                runs.watching.silence(member.run, name, seconds, float(self._leases.length))

    def watch(self, runs: Runs) -> None:
        """Look after the leases until ``close``, on the calling thread."""
        while not self._ended.wait(_TICK):
            try:
                self.look(runs, time.monotonic())
            except Exception as error:  # noqa: BLE001 - whatever became of one member, the others must be looked after
                self._say(f"warning: the loss of a worker was not handled: {type(error).__name__}: {error}")

    def close(self) -> None:
        """End all sessions, and refuse new ones."""
        self._ended.set()
        with self._lock:
            self._closed = True
            waiting = list(self._sessions.values())
        for session in waiting:
            session.outgoing.put(None)

    def serve(self, runs: Runs, call: Call, frames: Iterator[Frame]) -> Iterator[Frame]:
        """A worker's session.

        Raises:
            SecurityError: the caller is not a worker.
            WireError: it does not begin with a proper hello.
            InputError: a worker of its name is there already.
        """
        assert call.caller is not None
        name = call.caller.name
        if call.caller.role != "worker":
            raise SecurityError(f"{name!r} has no right to work here: it joined as a {call.caller.role}")
        hello = next(frames, None)
        if hello is None or hello.kind != "hello":
            raise WireError("a worker's session must begin with hello")
        address, offer = text(hello.header, "address", limit=300), _offer(hello.header)
        holds = _read_holds(table(hello.header, "holds")) if "holds" in hello.header else None
        session = self._enter(name)
        try:
            if holds is not None and not runs.returns(name, holds):
                session.outgoing.put(Frame("forget", {"run": holds.run}))
            runs.reaching.joined(name, address)
            wants = _wishes(runs, name, hello.header)  # no run may begin on it that its owner does not want there
            runs.handle(MemberJoined(name=name, address=address, offer=offer, generation=session.generation, wants=wants))
        except BaseException as error:  # whatever it is: no member may stay behind whose session did not begin
            self._over(runs, session, f"its session did not begin: {error}")
            raise
        self._say(f"worker {name} joined from {address or 'an address that nobody can reach'}: {_describe(offer)}")
        reader = threading.Thread(target=self._read, args=(runs, session, frames), name=f"session-{name}", daemon=True)
        reader.start()
        call.on_end(lambda: session.outgoing.put(None))
        with runs.changed:
            warnings = version_warnings(list(runs.machine.members.values())).get(name, [])
        lease = float(self._leases.length)
        yield Frame("welcome", {"name": name, "generation": session.generation, "lease": lease, "warnings": warnings})
        yield from self._commands(session)
        if self._closed:
            yield Frame("goodbye", {"cause": "it was ended"})
        elif session.fenced != _LEFT:
            yield Frame("fenced", {"cause": session.fenced})

    def _commands(self, session: _Session) -> Iterator[Frame]:
        """What goes to the worker; where there is nothing to say, that this broker lives."""
        while True:
            try:
                command = session.outgoing.get(timeout=self._leases.length / _BEATS)
            except queue.Empty:
                command = Frame("beat")
            if command is None:
                return
            yield command

    def _enter(self, name: str) -> _Session:
        generation = self._advance(name)
        with self._lock:
            if self._closed:
                raise ConnectionLost("the broker is closing")
            if name in self._sessions:
                raise InputError(f"a worker called {name!r} is connected already; choose another name with --name")
            session = self._sessions[name] = _Session(name, generation)
            self._leases.grant(name, generation, time.monotonic())
            self._admitted.pop(name, None)
        return session

    def _leave(self, session: _Session) -> None:
        with self._lock:
            if self._sessions.get(session.name) is session:
                del self._sessions[session.name]
            self._leases.end(session.name, session.generation)

    def _read(self, runs: Runs, session: _Session, frames: Iterator[Frame]) -> None:
        cause = _LEFT
        try:
            for frame in frames:
                with self._lock:
                    heard = self._leases.hear(session.name, session.generation, time.monotonic())
                if not heard or session.fenced:
                    return  # it has come back too late: its place is given up
                if frame.kind != "beat":
                    _take(runs, session.name, frame)
        except ConnectionLost as error:
            cause = "this broker was ended" if self._closed else f"{error} (check that its machine is up)"
        except FarflungError as error:
            cause = str(error)
        except Exception as error:  # noqa: BLE001 - a defect here must end this session only, and be told
            cause = f"its session failed inside: {type(error).__name__}: {error}"
        finally:
            self._over(runs, session, cause)

    def _over(self, runs: Runs, session: _Session, cause: str) -> None:
        """The session is at its end, for the first reason that comes."""
        with self._lock:
            if session.fenced:
                return
            session.fenced = cause
        session.outgoing.put(None)
        self._say(f"worker {session.name} {'left' if cause == _LEFT else f'is gone: {cause}'}")
        try:
            runs.handle(MemberLost(name=session.name, cause=cause))
        finally:
            self._leave(session)  # else the name would be taken for ever


def _take(runs: Runs, name: str, frame: Frame) -> None:
    """One report of the member ``name``; a bad one fails the run that it is about, and the session goes on."""
    if frame.kind == "measured":
        runs.measured(_measured(name, frame.header))
        return
    if frame.kind == "wants":
        runs.handle(_wishes(runs, name, frame.header))
        return
    if frame.kind == "probed":
        runs.probing.answer(name, text(frame.header, "peer", limit=100), read_probe(frame.header))
        return
    if frame.kind == "reached":
        runs.reaching.answer(name, *read_reached(frame.header))
        return
    run = text(frame.header, "run", limit=200)
    if frame.kind == "relayed":
        runs.relays.told(name, run, frame.header)
        return
    if not runs.serves(name, run):
        return  # the run is over, or was never this worker's
    live = runs.live(run)
    try:
        _report(runs, live, name, frame)
    except WireError as error:
        runs.fail(run, error, name)
    except FarflungError as error:  # the broker's own trouble (a full disk), or that of all workers (different data)
        runs.fail(run, error)


def _report(runs: Runs, live: LiveRun, name: str, frame: Frame) -> None:
    header = frame.header
    attempt = whole(header, "attempt") if "attempt" in header else 0
    if attempt not in (0, live.attempt):
        return  # of a plan that is over
    match frame.kind:
        case "prepared" | "ended" | "failed":
            _report_state(runs, live, frame, (name, attempt))
        case "helping":
            runs.helps(live, name)
        case "dropped":
            runs.dropped(live, name, read_holdings(header.get("held")), _read_told(header.get("told")))
            runs.handle(RunDropped(run=live.run, name=name, attempt=attempt))
        case "step" if live.progress is not None:
            report = read_report(header)
            live.progress.report(report)
            runs.watching.step(live.run, live.attempt, name, report.busy)
        case "evaluation" if live.progress is not None:
            outputs = table(header, "outputs")
            step = whole(header, "step", high=live.job.steps)
            live.progress.evaluation(step, {key: number(outputs, key) for key in outputs})
        case "trace":
            _take_trace(runs, live, name, header)
        case "text":
            live.sample = text(header, "text", limit=_MAX_SAMPLE)
            runs.tell(live, Frame("text", {"text": live.sample}))
        case "note":
            runs.tell(
                live, Frame("note", {"text": text(header, "text", limit=_MAX_NOTE), "detail": header.get("detail") is True})
            )
        case _:
            raise WireError(f"unknown report {frame.kind!r:.40}: known are {', '.join(_REPORTS)}")


def _take_trace(runs: Runs, live: LiveRun, name: str, header: Mapping[str, Any]) -> None:
    trace = read_trace(header)
    if trouble := live.store.add_trace(name, trace):
        runs.tell(live, Frame("note", {"text": f"warning: {trouble}"}))
    runs.learn(name, trace[0].spans, read_links(header["links"]) if "links" in header else {})


def _report_state(runs: Runs, live: LiveRun, frame: Frame, who: tuple[str, int]) -> None:
    """Whether the worker is ready, done or failed (``who``: its name, and the number of the plan that it speaks of)."""
    header, run, (name, attempt) = frame.header, live.run, who
    if frame.kind == "prepared":
        fingerprints = table(header, "fingerprints")
        if not all(isinstance(value, str) for value in fingerprints.values()):
            raise WireError("bad message: fingerprints must be texts")
        runs.prepared(run, name, fingerprints)
        runs.handle(RunPrepared(run=run, name=name, attempt=attempt))
    elif frame.kind == "ended":
        runs.handle(RunEnded(run=run, name=name, attempt=attempt, whole=header.get("whole") is not False))
    else:
        lost, kind = header.get("lost_peer") is True, _kind(header)
        cause = text(header, "cause")
        runs.handle(RunFailed(run=run, name=name, cause=cause, kind=kind, lost_peer=lost, attempt=attempt))


def _read_holds(header: Mapping[str, Any]) -> Holds:
    return Holds(
        run=text(header, "run", limit=200),
        attempt=whole(header, "attempt", low=1),
        held=read_holdings(header.get("held")),
        told=_read_told(header.get("told")),
    )


def _read_told(told: object) -> list[StepReport]:
    if not isinstance(told, list) or len(told) > _MAX_TOLD or not all(isinstance(one, dict) for one in told):
        raise WireError(f"bad message: 'told' must be a list of at most {_MAX_TOLD} reports, got {told!r:.60}")
    return [read_report(one) for one in told]


def _wishes(runs: Runs, name: str, header: Mapping[str, Any]) -> MemberWants:
    """What the owner of ``name`` wants; its cap holds at once."""
    parting = text(header, "parting", limit=20) if "parting" in header else ""
    if parting not in list(Parting):
        raise WireError(f"bad message: 'parting' must be drain, leave or nothing, got {parting!r:.40}")
    memory = number(header, "memory", low=1.0) if header.get("memory") is not None else None
    runs.links.put_owner_cap(name, number(header, "bandwidth", low=1.0) if header.get("bandwidth") is not None else None)
    return MemberWants(name=name, paused=header.get("paused") is True, parting=parting, memory=memory)


def _measured(name: str, header: Mapping[str, Any]) -> MemberMeasured:
    return MemberMeasured(
        name=name,
        speed=number(header, "speed", low=1.0),
        factor=number(header, "factor", low=_LEAST_FACTOR),
        overhead=number(header, "overhead", low=0.0),
        convolution=number(header, "convolution", low=_LEAST_FACTOR) if "convolution" in header else 1.0,
        share=number(header, "share", low=0.0) if header.get("share") is not None else None,
    )


def _kind(header: Mapping[str, Any]) -> str:
    from farflung import errors

    kind = text(header, "kind", limit=40)
    return kind if kind in errors.__all__ else "TrainingError"


def _offer(header: Mapping[str, Any]) -> Offer:
    raw = table(header, "offer")
    return Offer(
        memory=number(raw, "memory", low=1.0),
        speed=number(raw, "speed", low=1.0),
        factor=number(raw, "factor", low=_LEAST_FACTOR),
        overhead=number(raw, "overhead", low=0.0),
        convolution=number(raw, "convolution", low=_LEAST_FACTOR) if "convolution" in raw else 1.0,
        host=text(raw, "host", limit=100),
        processors=_processors(raw),
        kind=text(raw, "kind", limit=20),
        description=text(raw, "description", limit=300),
        versions=read_versions(raw),
        relay=raw.get("relay") is not False,
        reliable=raw.get("reliable") is not False,
    )


def _processors(offer: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the processors that a worker computes on (none: it does not say)."""
    names = offer.get("processors", [])
    if not isinstance(names, list) or len(names) > _MAX_PROCESSORS or any(not isinstance(n, str) or len(n) > 100 for n in names):
        raise WireError(f"bad message: 'processors' must be a list of at most {_MAX_PROCESSORS} names, got {names!r:.60}")
    return tuple(names)


def _describe(offer: Offer) -> str:
    name = f"{offer.kind} ({offer.description})" if offer.description else offer.kind
    return f"{name}, {Bytes(offer.memory)}, {FlopsPerSecond(offer.speed)}{'' if offer.reliable else ', unreliable'}"
