"""Answers to ``farflung status`` and ``farflung logs``, and the broker's clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from farflung.broker.attempts.replanner import Replanner
from farflung.broker.links.network import Network
from farflung.broker.live_run import LiveRun
from farflung.broker.planning.cluster_view import devices_of
from farflung.broker.planning.device_measurements import DeviceMeasurements
from farflung.broker.records.broker_log import find_log
from farflung.broker.records.run_folders import RunFolders, safe_name
from farflung.broker.requests.idle_reasons import RunFacts, idle_reason
from farflung.broker.requests.permission import caller_of
from farflung.broker.requests.run_status import PRIVATE, run_status
from farflung.broker.run_table import RunTable
from farflung.broker.session_table import SessionTable
from farflung.broker.straggler_monitor import StragglerMonitor
from farflung.clock import MonotonicClock
from farflung.cluster.document import device_entry
from farflung.errors import SecurityError
from farflung.messages.calls import Clock, ClockAnswer, LogAnswer, LogRequest, Status, StatusAnswer
from farflung.messages.remote_calls import serve
from farflung.messages.schema import UNSET
from farflung.messages.versions import version_warnings
from farflung.protocol.broker import Run, RunState
from farflung.protocol.hosts import host_names
from farflung.protocol.members import Gone, Member, MemberState
from farflung.transports.rpc.calls import Call
from farflung.transports.rpc.server import RpcServer
from farflung.version import __version__

__all__ = ["StatusQueries"]

#: The most runs, and the most members, in one answer.
_PAGE = 500
#: Idle workers that may not have a waiting run: so many are named.
_NAMED = 8
_clock = MonotonicClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunCopy:
    """``ahead``: runs that wait for workers and were submitted before it. ``absent``: workers that it expects back.

    ``barred``: some of the idle workers whose owners do not allow a run of this kind, while it waits.
    """

    live: LiveRun
    run: Run
    ahead: int
    absent: list[str]
    barred: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemberCopy:
    """``facts``: the runs that could use the member, if it is idle. ``trains``: it trains now.

    ``standing``: why it has lost points; ``last``: it is planned last for that, or not at all.
    """

    member: Member
    trains: bool
    facts: list[RunFacts]
    standing: str
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A page of members and one of runs, at one moment.

    ``everyone``: all members; only what never changes of them may be read. ``more``: there are newer runs.
    ``more_members``: there are members whose names come after these.
    """

    members: list[_MemberCopy]
    everyone: list[Member]
    runs: list[_RunCopy]
    gone: list[Gone]
    more: bool
    more_members: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusQueries:
    """Reads only. ``RunTable.changed`` is held while members and runs are copied, not while the answer is made."""

    runs: RunTable
    sessions: SessionTable
    folders: RunFolders
    network: Network
    measurements: DeviceMeasurements
    replanner: Replanner
    stragglers: StragglerMonitor

    def register(self, server: RpcServer) -> None:
        """Serve the calls."""
        serve(server, Clock, self.clock)
        serve(server, Status, self.status)
        serve(server, LogRequest, self.log)

    def clock(self, call: Call, request: Clock) -> ClockAnswer:
        """Return the broker's monotonic clock, by which traces of several machines are aligned."""
        del call, request
        return ClockAnswer(now=float(_clock.now()))

    def status(self, call: Call, request: Status) -> StatusAnswer:
        """Return a page of members and one of runs. The folder, losses and errors of a run are for its owner only."""
        caller = caller_of(call)
        known = self._copy(request.skip or 0, request.after or "")
        here = {one.member.name: one.member for one in known.members}
        hosts, warnings = host_names(known.everyone), version_warnings(known.everyone)
        beside = {other.name: other for name in here for other in hosts.get(name, ("", []))[1] if other.name not in here}
        devices = devices_of([*here.values(), *beside.values()])
        rows = [
            self._member_status(one, [other.name for other in hosts.get(one.member.name, ("", []))[1]])
            | {"warnings": warnings.get(one.member.name, []), "device": device_entry(devices[one.member.name])}
            for one in known.members
        ]
        joining = self.sessions.joining()
        gone = [{"name": one.name, "generation": one.generation, "cause": one.cause} for one in known.gone]
        runs = [self._run_status(one) | ({} if self.folders.owns(one.live.run, caller) else PRIVATE) for one in known.runs]
        states = dict.fromkeys(joining, MemberState.JOINING.value) | {one.name: MemberState.GONE.value for one in known.gone}
        states |= {row["name"]: row["state"] for row in rows}
        return StatusAnswer(
            version=__version__,
            members=rows,
            joining=joining,
            gone=gone,
            states=states,
            runs=runs,
            more=True if known.more else UNSET,
            more_members=True if known.more_members else UNSET,
        )

    def _copy(self, skip: int, after: str) -> _Known:
        """Copy a page of members and one of runs; the time under the lock is linear in the pages, and in all runs."""
        with self.runs.changed:
            machine = self.runs.machine
            # a run that is not known to the machine yet is being written
            listed = [live for live in self.runs.all() if live.run in machine.runs]
            waiting = machine.waiting()
            ahead = {run.run: place for place, run in enumerate(waiting)}
            barred = {serves: machine.barred(serves=serves)[:_NAMED] for serves in (False, True)}
            runs = [
                _RunCopy(
                    live=live,
                    run=replace(machine.runs[live.run]),
                    ahead=ahead.get(live.run, 0),
                    absent=machine.absent(machine.runs[live.run]),
                    barred=barred[machine.runs[live.run].serves] if live.run in ahead else [],
                )
                for live in listed[skip : skip + _PAGE]
            ]
            training = [run for run in machine.runs.values() if run.state is RunState.RUNNING]
            everyone = list(machine.members.values())
            page = everyone
            if after or len(page) > _PAGE:  # by name: members that come and go meanwhile move no other member to another page
                page = sorted((one for one in page if one.name > after), key=lambda one: one.name)
            restored = machine.restored()
            members = [
                _MemberCopy(
                    member=replace(member),
                    trains=member.run is not None and machine.runs[member.run].state is RunState.RUNNING,
                    facts=self._facts(member, waiting, training, restored) if member.run is None else [],
                    standing=machine.standing(member.name),
                    last=machine.planned_last(member.name),
                )
                for member in page[:_PAGE]
            ]
            return _Known(
                members=members,
                everyone=everyone,
                runs=runs,
                gone=list(machine.gone.values()),
                more=len(listed) > skip + _PAGE,
                more_members=len(page) > _PAGE,
            )

    def _facts(self, member: Member, waiting: Sequence[Run], training: Sequence[Run], restored: Sequence[Run]) -> list[RunFacts]:
        """Return the first of the ``waiting`` runs that may take the idle ``member``, and the newest of those that train."""
        machine = self.runs.machine
        may_wait = waiting if member.ready else ()  # no run may take the others, however many wait
        first = next((run for run in may_wait if machine.may_take(run.run, member, restored)), None)
        newest = next((run for run in reversed(training) if run.allowed_by(member)), None)
        found = []
        for run in (one for one in (first, newest) if one is not None):
            live = self.runs.find(run.run)
            if live is not None:
                facts = RunFacts(
                    run=run.run,
                    needs=run.needs if run is first else 0,
                    trains=run.state is RunState.RUNNING,
                    replans=live.job.plan.again is not False,
                    gives_stage=run.plans_for(member),
                    findings=self.replanner.findings(run.run),
                    absent=machine.absent(run),
                )
                found.append(facts)
        return found

    def _member_status(self, one: _MemberCopy, host: Sequence[str]) -> dict[str, Any]:
        """``host``: the workers that share its processors."""
        member, name = one.member, one.member.name
        profiled = self.measurements.asks(name) or self.network.probes.asks(name)
        return {
            "name": name,
            "state": member.state(trains=one.trains, profiled=profiled).value,
            "generation": member.generation,
            "silence": float(self.sessions.silence(name)),
            "uptime": float(self.sessions.uptime(name)),
            "paused": member.paused,
            "parting": member.parting.value,
            "bandwidth": self.network.table.owner_cap(name),
            "address": member.address,
            "nat": self.network.reachability.nat_of(name),
            "run": member.run,
            "region": member.offer.region,
            "memory": member.offer.memory,
            "installed": member.offer.installed or None,
            "disk": self.sessions.disk(name),
            "speed": member.speed,
            "speed_factor": member.offer.factor / member.drift,
            "overhead": member.offer.overhead,
            "kind": member.offer.kind,
            "ranks": member.offer.ranks,
            "description": member.offer.description,
            "versions": dict(member.offer.versions),
            "precisions": list(member.offer.precisions),
            "isolation": member.offer.isolation,
            "idle": one.standing if one.last and member.run is None else idle_reason(member, one.facts),
            "standing": one.standing,
            "shares_with": [other for other in host if other != name],
        }

    def _run_status(self, one: _RunCopy) -> dict[str, Any]:
        return run_status(
            one.live,
            one.run,
            ahead=one.ahead,
            slow=self.stragglers.slow(one.live.run),
            checkpoint=one.live.store.newest_checkpoint(),
            now=_clock.now(),
        ) | {"absent": one.absent, "barred": one.barred}

    def log(self, call: Call, request: LogRequest) -> LogAnswer:
        """Return lines of the log of a run, of a worker, or of the broker (``name`` is empty)."""
        caller = caller_of(call)
        name = safe_name(request.name) if request.name else ""
        found = find_log(self.folders.root.parent, name)
        if found.run is not None:
            self.folders.check(name, caller, "read its log")
        elif caller.role != "owner":
            raise SecurityError(
                "the broker's log, and what it says of workers, is for the broker's owner: use a ticket of scope owner, "
                "or run farflung logs on the broker's machine"
            )
        part = found.last(request.lines or 0) if request.position is UNSET else found.more(request.position)
        return LogAnswer(position=part.position, over=found.over, sections=("\n".join(part.lines).encode(),))
