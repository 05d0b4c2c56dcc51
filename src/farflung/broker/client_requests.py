"""What clients and workers ask a broker for: submit, status, stop, watch, and the transfer of weights and checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from farflung.broker.continuations import Continuations
from farflung.broker.live_run import LiveRun, new_run
from farflung.broker.planning import devices_of, linked
from farflung.broker.records.broker_log import find_log
from farflung.broker.records.mirror import Mirror
from farflung.broker.records.restore import keep_bundle
from farflung.broker.records.run_folders import RunFolders, safe_name
from farflung.broker.records.run_log import LogPosition
from farflung.broker.records.run_store import RunStore
from farflung.broker.run_manager import Runs
from farflung.broker.run_status import PRIVATE, run_status
from farflung.broker.sessions import Sessions
from farflung.clock import MonotonicClock
from farflung.cluster import Topology
from farflung.cluster.topology import Matrix
from farflung.errors import CheckpointError, ConnectionLost, FarflungError, InputError, SecurityError, WireError
from farflung.messages.array_stream import write_arrays
from farflung.messages.fields import text, texts, whole
from farflung.messages.submission import Bundle
from farflung.messages.versions import version_warnings
from farflung.protocol.broker import RunState
from farflung.protocol.events import RunFailed, StopRequested
from farflung.protocol.hosts import host_names
from farflung.protocol.members import Member, MemberState
from farflung.security import Caller
from farflung.step.run_setup import Committed
from farflung.step.sync.replica_slots import wanted_by
from farflung.transports.rpc import Call, RpcServer
from farflung.version import __version__
from farflung.wire.frames import Frame

__all__ = ["Methods"]

#: Lines of a log in one answer.
_MOST_LINES = 10_000
#: What relays call the measuring of links, which belongs to no run.
_PROFILE = "profile"


class Methods:
    """The broker's calls for members."""

    def __init__(self, runs: Runs, sessions: Sessions, folders: RunFolders, owner: Callable[[str], str]) -> None:
        """``owner`` tells the fingerprint of the key that a name belongs to."""
        self._runs, self._sessions, self._owner = runs, sessions, owner
        #: Copies checkpoints elsewhere, where the broker's owner wants that.
        self.mirror: Mirror | None = None
        self._folders = folders
        self._continuations = Continuations(runs, folders)
        self._closed = False
        self._clock = MonotonicClock()

    def register(self, server: RpcServer) -> None:
        """Serve the calls."""
        server.session("upload", self.upload)
        server.unary("clock", self.clock)
        server.stream("submit", self.submit)
        server.unary("resumable", self.resumable)
        server.stream("resume", self.resume)
        server.unary("status", self.status)
        server.unary("log", self.log)
        server.stream("profile", self.profile)
        server.unary("stop", self.stop)
        server.unary("member", self.member)
        server.stream("watch", self.watch)
        server.stream("states", self.states)

    def close(self) -> None:
        """Let watchers go."""
        with self._runs.changed:
            self._closed = True
            self._runs.changed.notify_all()

    def clock(self, call: Call, frame: Frame) -> Frame:
        """The broker's monotonic clock, by which traces are laid side by side."""
        return Frame("clock", {"now": float(self._clock.now())})

    def submit(self, call: Call, frame: Frame) -> Iterator[Frame]:
        """Take in a job. A stream, so that the check of a large checkpoint to go on from may take its time."""
        yield from self._take_in(_client(call, "submit jobs"), Bundle.from_frame(frame))

    def resume(self, call: Call, frame: Frame) -> Iterator[Frame]:
        """Take in a run that continues an earlier one; answers as ``submit``."""
        caller, header = _client(call, "resume runs"), frame.header
        steps = whole(header, "steps", low=1) if "steps" in header else None
        source, run = text(header, "source", limit=4000), text(header, "run", limit=200)
        yield from self._take_in(caller, self._continuations.bundle(source, caller, run, steps))

    def resumable(self, call: Call, frame: Frame) -> Frame:
        """Where a run that continues an earlier one would begin."""
        caller = _client(call, "resume runs")
        return Frame("resumable", self._continuations.describe(text(frame.header, "source", limit=4000), caller))

    def _take_in(self, caller: Caller, bundle: Bundle) -> Iterator[Frame]:
        root = self._folders.path(bundle.run)
        if (root / "job.json").exists():
            raise InputError(f"run {bundle.run!r} exists already; submit again for a new name")
        self._folders.claim(bundle.run, caller)
        live = new_run(bundle, root, caller.name)

        def write() -> None:
            self._resume(live, bundle, caller)
            live.store.write_bundle(bundle)
            keep_bundle(root, bundle)

        if self._has(live.job.checkpoint.resume, caller):  # else there is nothing to check, and ``write`` says why
            yield Frame("checking", {"source": live.job.checkpoint.resume})
        state = self._runs.submit(live, write)
        with self._runs.changed:
            run = self._runs.machine.runs[bundle.run]
            free = [run.plans_for(member) for member in self._runs.machine.members.values() if member.run is None]
        header = {"run": bundle.run, "state": state, "folder": str(root), "needs": bundle.job.workers or 1}
        header |= {"idle": sum(free), "helpers": len(free) - sum(free)}
        yield Frame("submitted", header)

    def _has(self, source: str, caller: Caller) -> bool:
        """Whether there is something of that name to go on from."""
        with suppress(FarflungError):
            return bool(source) and self._folders.source(source, caller).is_dir()
        return False

    def _resume(self, live: LiveRun, bundle: Bundle, caller: Caller) -> None:
        """Find the checkpoint that the job goes on from; a run's name or a folder on this machine."""
        source = live.job.checkpoint.resume
        if not source:
            return
        try:
            manifest = live.store.adopt(self._folders.source(source, caller), bundle)
            live.first_step, live.committed = manifest.step, manifest.ledger.get("steps", manifest.step)
        except FarflungError as error:
            raise type(error)(f"checkpoint.resume = {source!r}: {error}") from None

    def upload(self, call: Call, frames: Iterator[Frame]) -> Iterator[Frame]:
        """A checkpoint's shard from a worker, or first weights from a submitter."""
        head = next(frames, None)
        if head is None or head.kind not in ("weights", "shard"):
            raise WireError("an upload must begin with weights or shard")
        run = text(head.header, "run", limit=200)
        if head.kind == "weights":
            caller = _client(call, "send weights")
            root = self._folders.path(run)
            if (root / "job.json").exists():
                raise InputError(f"run {run!r} exists already; its weights can't be sent again")
            RunStore(self._folders.claim(run, caller)).write_weights(self._folders.counted(run, _pieces(frames)))
        else:
            self._shard(call, run, head, frames)
        yield Frame("kept")

    def _shard(self, call: Call, run: str, head: Frame, frames: Iterator[Frame]) -> None:
        assert call.caller is not None
        name = call.caller.name
        if not self._runs.serves(name, run):
            raise CheckpointError(f"{name!r} does not work on run {run!r} (any more); its share of a checkpoint is not kept")
        live = self._runs.live(run)
        step = whole(head.header, "step", low=live.first_step, high=live.job.steps)
        bundle, planned = live.bundle, live.planned
        if bundle is None or planned is None:
            raise CheckpointError(f"run {run!r} is over: no checkpoint is kept any more")
        steps, attempt = whole(head.header, "committed", high=step), whole(head.header, "attempt", low=1)
        committed = Committed(steps=steps, rested=whole(head.header, "rested", high=step * sum(live.job.micro_batch_sizes)))
        if attempt == live.attempt:
            live.store.add_shard(step, name, self._folders.counted(run, _pieces(frames)), committed, attempt)
        with live.files:
            if attempt != live.store.attempt:
                raise CheckpointError(f"run {run!r} was planned again meanwhile; the share of its older plan is not kept")
            whole_now = live.store.complete(step, bundle, planned.plan)
        if whole_now:
            self._runs.tell(live, Frame("checkpoint", {"step": step}))
            if self.mirror is not None:
                self.mirror.put(run, live.store.checkpoints, step, live.job.checkpoint)

    def states(self, call: Call, frame: Frame) -> Iterator[Frame]:
        """Tensors of a run by name: from its newest checkpoint, its optimizer, or the weights that were sent with it."""
        live = self._runs.live(text(frame.header, "run", limit=200))
        caller = call.caller
        assert caller is not None
        if caller.role != "worker":
            self._folders.check(live.run, caller, "fetch its weights")
        elif not self._runs.serves(caller.name, live.run):
            raise SecurityError(f"{caller.name!r} does not work on run {live.run!r} and may not fetch its weights")
        names = texts(frame.header, "names")
        source = text(frame.header, "source")
        if source == "weights":
            yield from write_arrays(live.store.sent_states(names))
        elif source in ("checkpoint", "optimizer"):
            wanted = wanted_by(None if live.planned is None else live.planned.plan, caller.name)
            yield from write_arrays(live.store.checkpoint_states(names, optimizer=source == "optimizer", wanted=wanted))
        else:
            raise InputError(f"unknown source of states {source!r}: known are checkpoint, optimizer, weights")

    def status(self, call: Call, frame: Frame) -> Frame:
        """Members and runs; where a run's folder is, how well it learns and what went wrong is for its owner."""
        assert call.caller is not None
        mine = {live.run for live in self._runs.all() if self._folders.owns(live.run, call.caller)}
        checkpoints = {live.run: live.store.newest_checkpoint() for live in self._runs.all()}  # reads folders: before the lock
        with self._runs.changed:
            machine = self._runs.machine
            warnings = version_warnings(list(machine.members.values()))
            hosts = host_names(list(machine.members.values()))
            members = [
                self._member_status(member, hosts) | {"warnings": warnings.get(member.name, [])}
                for member in machine.members.values()
            ]
            joining = [name for name in self._sessions.joining() if name not in machine.members]
            gone = [{"name": one.name, "generation": one.generation, "cause": one.cause} for one in machine.gone.values()]
            known = [live for live in self._runs.all() if live.run in machine.runs]
            runs = [self._run_status(live, checkpoints) | ({} if live.run in mine else PRIVATE) for live in known]
        states = dict.fromkeys(joining, MemberState.JOINING.value) | dict.fromkeys(machine.gone, MemberState.GONE.value)
        states |= {member["name"]: member["state"] for member in members}
        told = {"members": members, "joining": joining, "gone": gone, "states": states}
        return Frame("status", {"version": __version__, **told, "runs": runs})

    def _member_status(self, member: Member, hosts: Mapping[str, tuple[str, list[Member]]]) -> dict[str, Any]:
        machine = self._runs.machine
        trains = member.run is not None and machine.runs[member.run].state is RunState.RUNNING
        return {
            "name": member.name,
            "state": member.state(trains=trains, profiled=self._runs.profiled(member.name)).value,
            "generation": member.generation,
            "silence": float(self._sessions.silence(member.name)),
            "paused": member.paused,
            "parting": member.parting.value,
            "bandwidth": self._runs.links.owner_cap(member.name),
            "address": member.address,
            "run": member.run,
            "memory": member.offer.memory,
            "speed": member.speed,
            "speed_factor": member.offer.factor / member.drift,
            "overhead": member.offer.overhead,
            "kind": member.offer.kind,
            "versions": dict(member.offer.versions),
            "idle": self._runs.idle_reason(member),
            "shares_with": [one.name for one in hosts.get(member.name, ("", []))[1] if one is not member],
        }

    def _run_status(self, live: LiveRun, checkpoints: Mapping[str, str]) -> dict[str, Any]:
        machine = self._runs.machine
        return run_status(
            live,
            machine.runs[live.run],
            ahead=machine.ahead(live.run),
            slow=self._runs.watching.slow(live.run),
            checkpoint=checkpoints.get(live.run, ""),
            now=self._clock.now(),
        )

    def log(self, call: Call, frame: Frame) -> Frame:
        """Lines of the log of a run, of a worker, or of the broker (``name`` is empty)."""
        caller, header = call.caller, frame.header
        assert caller is not None
        name = safe_name(text(header, "name", limit=200)) if header.get("name") else ""
        found = find_log(self._folders.root.parent, name)
        if found.run is not None:
            self._folders.check(name, caller, "read its log")
        elif caller.role != "owner":
            raise SecurityError(
                "the broker's log, and what it says of workers, is for the broker's owner: use a ticket of scope owner, "
                "or run farflung logs on the broker's machine"
            )
        if "position" in header:
            part = found.more(whole(header, "position"))
        else:
            part = found.last(whole(header, "lines", high=_MOST_LINES))
        return Frame("log", {"position": part.position, "over": found.over}, ("\n".join(part.lines).encode(),))

    def profile(self, call: Call, frame: Frame) -> Iterator[Frame]:
        """Measure all links between the workers that are here; at last the topology, as a document."""
        _client(call, "measure links")
        runs = self._runs
        with runs.changed:
            members = list(runs.machine.members.values())
        if len(members) < 2:
            raise InputError(f"links are measured between two workers or more, {len(members)} joined (farflung join brings more)")
        devices = list(devices_of(members).values())
        plain = linked(Topology.from_matrices(*_blank(len(devices)), devices), members, runs.reaching, None)
        runs.relays.assign(_PROFILE, plain, plain.names)
        runs.ways.introduce_all(plain)
        try:
            yield from runs.probing.run([(one.name, one.address) for one in members], lambda a, b: runs.ways.way(plain, a, b))
        finally:
            runs.relays.assign(_PROFILE, None, ())
        found = runs.links.topology(devices, apart=plain.via)
        measured = None if found is None else linked(found, members, runs.reaching, runs.links)
        if measured is None:
            raise ConnectionLost("no worker reaches another one: see docs/machines.md for the ports, and farflung doctor")
        caps = {member.name: cap for member in members if (cap := runs.links.uplink(member.name)) is not None}
        yield Frame("topology", {"topology": measured.to_json(), "uplinks": caps})

    def stop(self, call: Call, frame: Frame) -> Frame:
        """End a run."""
        caller = _client(call, "stop runs")
        now = frame.header.get("now") is True
        run = text(frame.header, "run", limit=200)
        with self._runs.changed:
            known = self._runs.machine.runs.get(run)
            if known is not None and known.state.over:
                raise InputError(f"run {run!r} is over already: {known.state.value}{f', {known.cause}' if known.cause else ''}")
        if known is not None:
            self._folders.check(run, caller, "stop it")
        self._runs.handle(StopRequested(run=run, now=now))  # outside the lock: it may write files
        with self._runs.changed:
            over = run in self._runs.machine.runs and self._runs.machine.runs[run].state.over
        return Frame("stopping", {"over": over})

    def member(self, call: Call, frame: Frame) -> Frame:
        """Pass on to a worker what somebody with the right to it wants of it: the broker's owner, or who has the worker's key."""
        caller = call.caller
        assert caller is not None
        name = text(frame.header, "name", limit=100)
        with self._runs.changed:
            known = ", ".join(self._runs.machine.members) or "none"
            here = name in self._runs.machine.members
        if not here:
            raise InputError(f"no worker called {name!r} is connected; there are {known}")
        if caller.role != "owner" and (not caller.key or caller.key != self._owner(name)):
            raise SecurityError(f"worker {name!r} belongs to somebody else: only its owner, or the broker's owner, may do that")
        wanted = {key: frame.header[key] for key in ("paused", "parting") if key in frame.header}
        self._sessions.send(name, Frame("owner", wanted))
        return Frame("told")

    def watch(self, call: Call, frame: Frame) -> Iterator[Frame]:
        """Everything that was told of a run so far, then what comes, until it is over."""
        assert call.caller is not None
        live = self._runs.live(text(frame.header, "run", limit=200))
        self._folders.check(live.run, call.caller, "watch it")
        gone = threading.Event()
        call.on_end(lambda: self._watcher_left(call.caller, live, gone))
        yield Frame("job", {"name": live.job.name, "steps": live.job.steps, "workers": live.job.workers or 0})
        position = LogPosition(records=min(whole(frame.header, "records"), live.log.records) if "records" in frame.header else 0)
        live.attended = live.attended or call.caller.name == live.submitter
        while not gone.is_set():
            with self._runs.changed:
                while not (live.log.has_more(position) or live.result is not None or gone.is_set() or self._closed):
                    self._runs.changed.wait()
                over = (live.result is not None or self._closed) and not live.log.has_more(position)
            if over:
                return
            fresh, position = live.log.read(position)
            yield from fresh

    def _watcher_left(self, caller: Caller | None, live: LiveRun, gone: threading.Event) -> None:
        gone.set()
        with self._runs.changed:
            self._runs.changed.notify_all()
            feeds = live.job.data.kind == "caller" and caller is not None and caller.name == live.submitter
            orphan = feeds and live.result is None and not self._closed
        if orphan:
            cause = f"{live.submitter}, the process that submitted it and has the data, is gone"
            event = RunFailed(run=live.run, cause=cause, kind="ConnectionLost")
            # this is gRPC's own thread, which serves all calls: it must not write files
            threading.Thread(target=self._runs.handle, args=(event,), name=f"orphan-{live.run}", daemon=True).start()


def _blank(count: int) -> tuple[Matrix, Matrix]:
    """Links that nobody has measured: all alike."""
    return np.zeros((count, count)), np.ones((count, count))


def _client(call: Call, what: str) -> Caller:
    caller = call.caller
    assert caller is not None
    if caller.role not in ("client", "owner"):
        raise SecurityError(f"{caller.name!r} has no right to {what}: it joined as a {caller.role}; use a submit ticket")
    return caller


def _pieces(frames: Iterator[Frame]) -> Iterator[bytes | memoryview]:
    for frame in frames:
        if frame.kind == "end":
            return
        if frame.kind != "piece" or len(frame.sections) != 1:
            raise WireError("an upload is made of pieces with one section each")
        yield frame.sections[0]
    raise WireError("an upload was cut in transfer")
