"""Deadlines of attempts: who does not prepare, train or drop in time is named, and the run continues without it.

A deadline is a floor, which covers starting programs and reading files, plus a multiple of what the plan predicts: the time of a
step, of an evaluation, and of sending the states over the slowest link. It begins anew with whatever happens in its phase.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from farflung.broker.live_run import AttemptedRun, RunRecords, WaitingWorker
from farflung.broker.planning.planned import Planned
from farflung.broker.progress import Progress
from farflung.broker.records.run_store import RunStore
from farflung.clock import monotonic
from farflung.job import JobSpec
from farflung.messages.commands import PhaseLimits
from farflung.messages.submission import Bundle
from farflung.protocol.broker import BrokerMachine, Run, RunState
from farflung.protocol.deadlines import Deadlines, Phase, origin
from farflung.protocol.events import Event, MemberLate, RunStalled
from farflung.thread_group import ThreadGroup
from farflung.transports.base import failure_of
from farflung.units import Seconds

__all__ = ["AttemptDeadlines", "DeadlineSettings", "Predicted", "worker_limits"]

#: Seconds between two checks.
_TICK = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineSettings:
    """Floors in seconds, by phase; ``times``: how much longer than predicted a phase may last.

    ``data`` and ``compute`` are for one micro-batch, and ``checkpoint`` for the last share after the first one. They are shorter
    than ``step``, so that the worker that hangs reports itself first. ``fetch``: how long fetched data count as progress.
    """

    prepare: float = 600.0
    fetch: float = 86400.0
    step: float = 300.0
    drop: float = 120.0
    data: float = 120.0
    compute: float = 150.0
    exchange: float = 200.0
    checkpoint: float = 200.0
    times: float = 30.0


_SETTINGS = DeadlineSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What a plan predicts, in seconds: a step, an evaluation, and sending all states over the slowest link."""

    step: float = 0.0
    evaluation: float = 0.0
    moving: float = 0.0

    @classmethod
    def of(cls, planned: Planned | None, bundle: Bundle | None, job: JobSpec) -> Predicted:
        """Return the figures of ``planned``; states have two optimizer slots each."""
        if planned is None or bundle is None:
            return cls()
        step = planned.estimate.step_seconds
        rates = planned.topology.beta[planned.topology.beta > 0]
        slowest = float(rates.min()) if rates.size else float("inf")
        moving = 3 * sum(state.spec.nbytes for state in bundle.graph.states) / slowest
        return cls(step=step, evaluation=step * job.evaluate.batches / max(len(job.micro_batch_sizes), 1), moving=moving)


def worker_limits(planned: Planned, bundle: Bundle, job: JobSpec) -> PhaseLimits:
    """Return what a worker of ``planned`` watches by itself."""
    settings, predicted = _SETTINGS, Predicted.of(planned, bundle, job)
    return PhaseLimits(
        data=settings.data + settings.times * predicted.step, compute=settings.compute + settings.times * predicted.step
    )


class TimedRun(AttemptedRun, Protocol):
    """A run that has deadlines."""

    store: RunStore
    records: RunRecords

    @property
    def serves(self) -> bool:
        """Whether it serves a model, so that it makes no steps."""


class TimedRuns(Protocol):
    """The runs in memory. ``changed`` guards them and ``machine``."""

    machine: BrokerMachine
    changed: threading.Condition

    def all(self) -> Sequence[TimedRun]:
        """Return all runs."""


@dataclass(frozen=True, kw_only=True)
class AttemptDeadlines:
    """``handle`` receives the events of deadlines that are over. The thread "deadlines" checks them."""

    runs: TimedRuns
    handle: Callable[[Event], None]
    warn: Callable[[str], None]
    settings: DeadlineSettings = field(default_factory=lambda: _SETTINGS)
    _deadlines: Deadlines = field(default_factory=Deadlines)
    #: Of checkpoints whose shares are incomplete.
    _shares: Deadlines = field(default_factory=Deadlines)
    #: When each run made its last step.
    _steps: Deadlines = field(default_factory=Deadlines)
    _threads: ThreadGroup = field(default_factory=ThreadGroup)
    _closed: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Check from now on."""
        self._threads.spawn("deadlines", self._watch)

    def close(self) -> None:
        """Check no more, and join the thread."""
        self._closed.set()
        self._threads.join()

    def check(self, now: float) -> None:
        """Report what is late at ``now`` (monotonic seconds)."""
        events: list[Event] = []
        with self.runs.changed:
            known = {live.run: (live, self.runs.machine.runs[live.run]) for live in self.runs.all() if self._trains(live)}
            phases = [phase for live, run in known.values() if (phase := self._phase(live, run, now)) is not None]
            expired = self._deadlines.expired(phases, now)
            for phase in expired:
                live, run = known[phase.run]
                events += _late(live.progress, run, Seconds(phase.seconds))
            others = [pair for pair in known.values() if pair[1].run not in {phase.run for phase in expired}]
            running = {live.run: (live, run) for live, run in others if run.state is RunState.RUNNING}
            self._steps.expired([_made(live.progress, run) for live, run in running.values()], now)
            for live, run in running.values():
                events += self._waited(live.workers.waits, run, self._wait_limit(live), now)
            for phase in self._shares.expired([self._share(*pair) for pair in running.values()], now):
                live, run = running[phase.run]
                events += _unshared(_open_share(live), run, Seconds(phase.seconds))
        for event in events:
            self.handle(event)

    def _watch(self) -> None:
        while not self._closed.wait(_TICK):
            if error := failure_of("the check of deadlines", self.check, monotonic()):
                self.warn(f"warning: {error}")

    def _trains(self, live: TimedRun) -> bool:
        run = self.runs.machine.runs.get(live.run)
        return run is not None and live.result is None and not run.state.over

    def _phase(self, live: TimedRun, run: Run, now: float) -> Phase | None:
        """Return what ``run`` waits for (None: for more workers, or for a plan)."""
        settings, predicted = self.settings, _predicted(live)
        if live.records.unwritten.waits:
            return None  # the broker's disk is full, and the reports of all workers wait
        if run.state is RunState.PREPARING:
            seconds = settings.prepare + settings.times * predicted.moving
            early = now - live.attempt.planned_at < settings.fetch
            fetched = sum(live.workers.fetched.get(name, 0) for name in run.devices) if early else 0
            return Phase(run=run.run, progress=(run.attempts, len(run.prepared), fetched), seconds=seconds)
        if run.state is RunState.RUNNING and live.serves:
            return None  # it makes no steps, and may wait for requests for any time
        if run.state is RunState.RUNNING and live.progress is not None:
            seconds = settings.step + settings.times * (predicted.step + predicted.evaluation + predicted.moving)
            done = (run.attempts, live.progress.count, live.progress.missing(), len(run.ended), live.store.arrived)
            return Phase(run=run.run, progress=done, seconds=seconds)
        if run.state is RunState.WAITING and run.awaited:
            seconds = settings.drop + settings.times * predicted.step
            return Phase(run=run.run, progress=(run.attempts, len(run.awaited)), seconds=seconds)
        return None

    def _wait_limit(self, live: TimedRun) -> float:
        """Return how many seconds a worker may wait for the messages of others."""
        predicted, settings = _predicted(live), self.settings
        return settings.exchange + settings.times * (predicted.step + predicted.evaluation + predicted.moving)

    def _waited(self, waits: dict[str, WaitingWorker], run: Run, limit: float, now: float) -> list[Event]:
        """Return what follows if a worker has waited for more than ``limit`` seconds for the messages of others.

        While the run makes steps, everybody receives what they need: whoever says something else is not believed.
        """
        facts = {name: one for name, one in waits.items() if name in run.devices and one.attempt == run.attempts}
        if not facts:
            return []
        first = min(facts, key=lambda name: facts[name].since)
        if now - max(facts[first].since, self._steps.since(run.run, now)) < limit:
            return []
        waits.clear()
        culprit, circle = origin(first, {name: set(one.peers) & set(run.devices) for name, one in facts.items()})
        what = f"did not send within {Seconds(limit)} what worker {first} waits for"
        if culprit and culprit != first:
            return [MemberLate(run=run.run, name=culprit, what=what, attempt=run.attempts)]
        cause = f"{' and '.join(sorted(circle))} have waited for each other for {Seconds(limit)}"
        return [RunStalled(run=run.run, attempt=run.attempts, cause=cause, suspects=tuple(sorted(circle)))] if circle else []

    def _share(self, live: TimedRun, run: Run) -> Phase:
        """Return the phase in which the shares of a checkpoint come."""
        seconds = self.settings.checkpoint + self.settings.times * _predicted(live).moving
        return Phase(run=run.run, progress=(run.attempts, _open_share(live), live.store.arrived), seconds=seconds)


def _made(progress: Progress | None, run: Run) -> Phase:
    """Return the phase of one step."""
    count = 0 if progress is None else progress.count
    return Phase(run=run.run, progress=(run.attempts, count), seconds=math.inf)


def _open_share(live: TimedRun) -> tuple[int, frozenset[str]] | None:
    return None if live.planned is None else live.store.incomplete(live.planned.plan)


def _unshared(share: tuple[int, frozenset[str]] | None, run: Run, seconds: Seconds) -> list[Event]:
    """Return what follows if shares of a checkpoint have not come in time, and others have."""
    step, names = share or (0, frozenset())
    what = f"did not send its share of the checkpoint of step {step} within {seconds}"
    return [MemberLate(run=run.run, name=name, what=what, attempt=run.attempts) for name in sorted(names)]


def _predicted(live: TimedRun) -> Predicted:
    """Return what the plan of ``live`` predicts; a step lasts as long as the last one, if that took longer."""
    found, last = Predicted.of(live.planned, live.submission.bundle, live.job), live.records.latest.step
    return found if last is None else replace(found, step=max(found.step, float(last.seconds)))


def _late(progress: Progress | None, run: Run, seconds: Seconds) -> list[Event]:
    if run.state is RunState.PREPARING:
        names, what = sorted(set(run.devices) - run.prepared), f"did not prepare within {seconds}"
    elif run.state is RunState.WAITING:
        names, what = sorted(run.awaited), f"did not leave the attempt within {seconds}"
    else:
        if run.ended:
            names = sorted(set(run.devices) - run.ended)
            what = f"did not end its part within {seconds} after the others"
            return [MemberLate(run=run.run, name=name, what=what, attempt=run.attempts) for name in names]
        missing = frozenset(run.devices) if progress is None else progress.missing()
        names, what = sorted(missing), f"reported no step for {seconds}"
        if missing >= set(run.devices) - run.ended:  # nobody says because of whom
            return [RunStalled(run=run.run, attempt=run.attempts, cause=f"no step was made for {seconds}")]
    return [MemberLate(run=run.run, name=name, what=what, attempt=run.attempts) for name in names]
