"""Planning an attempt: measure, plan, choose the start, and announce the plan. Each plan has a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from threading import Lock
from typing import Protocol

from farflung.broker.attempts.preparation import preparation_of
from farflung.broker.attempts.retained_states import RetainedStates
from farflung.broker.links.network import Network
from farflung.broker.live_run import Attempt, WorkerFacts
from farflung.broker.notices import Notices
from farflung.broker.planning import LimitedJudges, Planned, cluster_of, plan_run, strangers_of
from farflung.broker.planning.attempt_start import Start
from farflung.broker.records.bundle_file import read_bundle
from farflung.broker.run_recorder import RecordedRun, RunRecorder
from farflung.broker.run_table import RunTable
from farflung.broker.verification.run_verification import RunVerification
from farflung.clock import monotonic
from farflung.errors import DiskFull, FarflungError
from farflung.job import JobSpec
from farflung.messages import watching
from farflung.messages.conversions.relays import routes_of
from farflung.messages.submission import Bundle
from farflung.messages.versions import mixed_engines
from farflung.plan import Plan
from farflung.protocol.broker import RunState
from farflung.protocol.events import Event, MemberMeasured, PlanMade
from farflung.protocol.hosts import is_same_device
from farflung.protocol.members import Member
from farflung.protocol.retained_states import believable
from farflung.step.plugin_check import check_plugins
from farflung.telemetry.faults import fault_point
from farflung.telemetry.records import RunResult
from farflung.thread_group import ThreadGroup
from farflung.units import counted

__all__ = ["AttemptPlanner", "Journaled"]

#: Writes an event of a run to the journal: run, kind, fields.
Journaled = Callable[..., None]
#: Seconds that ``close`` waits: a planner can't be interrupted.
_END_SECONDS = 10.0
#: So many workers are listed by name.
_NAMED = 32
#: Seconds between two tries while the broker's disk is full.
_FULL_AGAIN = 2.0
#: Characters of a line that names pairs of workers.
_MOST_TEXT = 500


class PlannedRun(RecordedRun, Protocol):
    """A run for which an attempt is planned. ``files`` guards ``store``."""

    job: JobSpec
    files: Lock
    attempt: Attempt
    workers: WorkerFacts
    result: RunResult | None

    @property
    def running(self) -> Plan | None:
        """The plan that ran until now (None: there was none)."""

    @property
    def first_source(self) -> str:
        """Where first states come from."""

    def install(self, attempt: Attempt) -> None:
        """Make ``attempt`` the current one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlanner:
    """Plans attempts of runs. ``handle`` receives the outcome; ``measure`` measures members with that many threads."""

    runs: RunTable
    notices: Notices
    network: Network
    recorder: RunRecorder
    retained: RetainedStates
    handle: Callable[[Event], None]
    measure: Callable[[Sequence[Member], int], None]
    journal: Journaled
    judges: LimitedJudges = field(default_factory=LimitedJudges)
    threads: ThreadGroup = field(default_factory=ThreadGroup)

    def begin(self, live: PlannedRun, members: Sequence[Member], attempt: int) -> None:
        """Plan attempt number ``attempt`` for ``members`` on a thread of its own."""
        names = [member.name for member in members]
        who = ", ".join(names) if len(names) <= _NAMED else counted(len(names), "worker")
        self.notices.operator_of(live.run, f"planning for {who}")
        self.notices.watchers(live, watching.Planning(members=tuple(names)))
        failed = partial(self._failed, live.run, attempt)
        try:
            self.threads.spawn(f"plan-{live.run}", self._plan, live, members, attempt, on_error=failed)
        except RuntimeError as error:  # the system has no more threads
            failed(error)

    def close(self) -> None:
        """Join the threads. What they wait for must have been woken."""
        self.threads.join(_END_SECONDS)

    def _plan(self, live: PlannedRun, members: Sequence[Member], attempt: int) -> None:
        fault_point("broker.before_plan", run=live.run)
        made = self._make_patiently(live, members, attempt)
        if made is None:
            return  # the run was stopped meanwhile, or a newer attempt has begun
        planned = made.planned
        assert planned is not None
        with self.runs.changed:
            if current := self._waits(live.run, attempt):
                self._install(live, made, {member.name for member in members})
        if current:
            self.notices.operator_of(live.run, planned.summary)
        self.handle(PlanMade(run=live.run, attempt=attempt, devices=planned.plan.devices))

    def _waits(self, run: str, attempt: int) -> bool:
        """Whether ``run`` still waits for the plan of attempt number ``attempt``."""
        with self.runs.changed:
            found = self.runs.machine.runs.get(run)  # a run that is over may be forgotten
            return found is not None and found.state is RunState.PLANNING and found.attempts == attempt

    def _bundle(self, live: PlannedRun) -> Bundle | None:
        """Return the bundle of ``live``, from its file if it was dropped (None: the run is over).

        Raises:
            DataError, DiskFull: as ``read_bundle``.
        """
        found = live.submission.bundle or (read_bundle(live.store.root) if live.result is None else None)
        with self.runs.changed:
            live.submission.use_bundle(found if live.result is None else None)
            return live.submission.bundle

    def _failed(self, run: str, attempt: int, error: BaseException) -> None:
        """Planning has failed: with an error for people, or inside. Either way the run must not wait for a plan."""
        ours = isinstance(error, FarflungError)
        cause = str(error) if ours else f"planning failed inside: {type(error).__name__}: {error}"
        self.handle(PlanMade(run=run, attempt=attempt, error=cause, kind=type(error).__name__ if ours else "PlanError"))

    def _make_patiently(self, live: PlannedRun, members: Sequence[Member], attempt: int) -> Attempt | None:
        """Return as ``_make``; while the broker's disk is full, or no descriptor is free, try again."""
        told = False
        while True:
            try:
                bundle = self._bundle(live)
                return None if bundle is None else self._make(live, bundle, members, attempt)
            except DiskFull as error:
                if not told:
                    self.notices.everybody(live.run, f"warning: {error}; the run waits for that")
            told = True
            with self.runs.changed:
                if not self._waits(live.run, attempt):
                    return None
                self.runs.changed.wait(_FULL_AGAIN)

    def _make(self, live: PlannedRun, bundle: Bundle, members: Sequence[Member], attempt: int) -> Attempt | None:
        """Return the attempt (None: a newer one has begun meanwhile)."""
        self.measure(self._unmeasured(live, members), live.job.threads)
        with self.runs.changed:
            live.workers.measured.update(member.name for member in members)  # a plan that starts over measures newcomers only
            if self.runs.machine.runs[live.run].attempts != attempt:
                return None
            helpers = self.runs.machine.may_help(live.run)
        cluster = cluster_of(bundle, [*members, *helpers], self.network.table, self.network.reachability)
        check_plugins(live.job, "the broker", plans=True)
        judge = self.judges.until(lambda: self._waits(live.run, attempt))
        planned = plan_run(bundle, cluster, judge, running=live.running)
        planned = replace(planned, strangers=tuple(strangers_of(bundle, members)))
        with live.files:
            if attempt < live.store.attempt:
                return None  # somebody has left, and a newer plan was made
            start = self._take_over(live, attempt, planned, bundle)
        if warning := mixed_engines([member for member in members if member.name in planned.plan.devices]):
            self.notices.everybody(live.run, warning)
        if punched := self.network.reachability.holes.among(planned.plan.devices):
            pairs = ", ".join(" and ".join(pair) for pair in punched)
            self.notices.everybody(live.run, f"behind NATs, and connected directly by hole punching: {pairs}"[:_MOST_TEXT])
        protection = planned.protection(live.job)
        if protection.guards:
            self.notices.operator_of(live.run, str(protection), detail=True)
        elif text := planned.exposed(live.job):
            self.notices.everybody(live.run, text)
        progress = self.recorder.progress(live, planned.plan, planned.estimate.step_seconds, start.step)
        preparation = preparation_of(bundle, planned, start, submitter=live.submission.submitter, recovered=live.times.begun > 0)
        return Attempt(
            number=attempt,
            first_step=start.step,
            planned=planned,
            planned_at=monotonic(),
            preparation=preparation,
            progress=progress,
            verification=RunVerification(live.run, attempt, planned.plan) if live.job.verify.share else None,
            start=start,
        )

    def _unmeasured(self, live: PlannedRun, members: Sequence[Member]) -> list[Member]:
        """Return the members to measure before a plan.

        After a loss, training waits for the plan, and a measurement takes a second, more on a busy machine. So a newcomer on the
        processors of a measured worker counts as fast as that worker.
        """
        measured = [member for member in members if member.name in live.workers.measured]
        newcomers = [member for member in members if member.name not in live.workers.measured]
        if not live.times.begun:
            return newcomers
        unknown: list[Member] = []
        for newcomer in newcomers:
            known = next((member.offer for member in measured if is_same_device(member.offer, newcomer.offer)), None)
            if known is None:
                unknown.append(newcomer)
            else:
                self.handle(
                    MemberMeasured(
                        name=newcomer.name,
                        speed=known.speed,
                        factor=known.factor,
                        overhead=known.overhead,
                        convolution=known.convolution,
                    )
                )
        return unknown

    def _take_over(self, live: PlannedRun, attempt: int, planned: Planned, bundle: Bundle) -> Start:
        """Make attempt number ``attempt`` the current one: on disk, in the journal, and for reports of an older one.

        The caller has ``live.files``. So an older plan that is ready late changes none of that.
        """
        with self.runs.changed:
            trusted = live.workers.take_distrusted()
            copied = live.workers.copy_hashes()
        newest = live.store.begin(attempt, trusted)
        written = live.store.write_plan(planned.plan, planned.cluster.to_json())
        start = Start.of(attempt, newest, live.first_source)
        if trusted is None:
            held = believable(self.retained.of_members(live.workers), _reached(live))
            start = start.or_live(held, bundle.graph, planned.plan).with_hashes(copied)
        self.journal(live.run, "planned", attempts=attempt, devices=len(planned.plan.devices), plan=written)
        if (progress := live.attempt.progress) is not None:
            progress.settle(start.step, chain.from_iterable(live.workers.step_reports.values()))
            progress.close()
        return start

    def _install(self, live: PlannedRun, made: Attempt, measured: set[str]) -> None:
        """Make ``made`` the attempt of ``live`` and announce it (under ``RunTable.changed``)."""
        planned, start, routes = made.planned, made.start, self.network.routes
        assert planned is not None
        assert start is not None
        live.install(made)
        live.workers.retain_measured(measured)
        to_submitter = routes.to_submitter(planned.plan.devices) if live.job.data.kind == "caller" else {}
        relays = [(relay, live.submission.submitter, name) for name, through in to_submitter.items() for relay, _ in through]
        self.network.relays.assign(live.run, planned.topology, [*planned.plan.devices, *start.lenders], relays)
        announced = watching.Planned(
            plan=planned.plan_json,
            addresses=routes.addresses(planned.plan.devices),
            predicted=planned.estimate.step_seconds,
            summary=planned.summary,
            explanation=planned.explanation,
            first_step=made.first_step,
            attempt=made.number,
            recovered=live.times.begun > 0,
            relays=routes_of(to_submitter),
        )
        self.notices.watchers(live, announced)


def _reached(live: PlannedRun) -> dict[str, int]:
    """Return how many steps each worker of the last plan has reported."""
    devices, progress = () if live.running is None else live.running.devices, live.attempt.progress
    return {name: live.times.recorded if progress is None else progress.reported(name) for name in devices}
