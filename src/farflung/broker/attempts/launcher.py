"""The workers of a planned attempt prepare and begin; after a loss, the attempt ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import asdict

from farflung.broker.attempts.attempt_deadlines import worker_limits
from farflung.broker.attempts.retained_states import RetainedStates
from farflung.broker.links.routes import Routes
from farflung.broker.live_run import Attempt, TrainingTimes, WorkerFacts
from farflung.broker.notices import Notices
from farflung.broker.planning.attempt_start import Start
from farflung.broker.planning.planned import Planned
from farflung.broker.run_recorder import RecordedRun, RunRecorder
from farflung.broker.run_table import RunTable
from farflung.clock import monotonic
from farflung.errors import FarflungError
from farflung.job import JobSpec
from farflung.messages import commands
from farflung.messages.schema import UNSET, Message
from farflung.messages.watching import Note, Started
from farflung.plan.verification import secrets_for
from farflung.protocol.events import Event, RecoverRun, RunFailed
from farflung.telemetry.attempt_record import AttemptRecord
from farflung.telemetry.faults import fault_point
from farflung.telemetry.records import RecoveryRecord

__all__ = ["AttemptLauncher"]


class LaunchedRun(RecordedRun, Protocol):
    """What the beginning and the end of an attempt need of its run."""

    job: JobSpec
    attempt: Attempt
    workers: WorkerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLauncher:
    """All methods are called under ``RunTable.changed``; actions that they return run without it.

    ``send`` never waits. ``trains`` is called with the name of a run that trains from now on.
    """

    runs: RunTable
    notices: Notices
    routes: Routes
    recorder: RunRecorder
    retained: RetainedStates
    send: Callable[[str, Message], None]
    handle: Callable[[Event], None]
    trains: Callable[[str], None]

    def prepare(self, live: LaunchedRun, name: str) -> None:
        """Send job, graphs and plan to the worker ``name``; with the first worker, notify the lenders, too."""
        planned, start, preparation = live.attempt.planned, live.attempt.start, live.attempt.preparation
        bundle = live.submission.bundle
        assert planned is not None
        assert start is not None
        assert preparation is not None
        assert bundle is not None
        peers = {peer: address for peer, address in self.routes.addresses(planned.plan.devices).items() if peer != name}
        lenders = self.routes.addresses(start.moves.get(name, {}))  # a lender may have no part in the plan
        routes = self.routes.to_peers(planned.topology, name, {**lenders, **peers})
        if live.job.data.kind == "caller" and (through := self.routes.to_submitter([name]).get(name)):
            routes.relays[live.submission.submitter] = tuple(through)
        retained = start.live_start(name)
        self.send(
            name,
            commands.Prepare(
                **asdict(preparation),
                device=name,
                addresses=routes.addresses,
                relays=routes.relays,
                limits=worker_limits(planned, bundle, live.job),
                live=UNSET if retained is None else retained,
                secrets=self._secrets(live.workers.secret, planned, name) if live.job.verify.share else UNSET,
            ),
        )
        self.retained.assigned(name, live.run)
        if name == planned.plan.devices[0]:
            self._lend(live.run, planned, start)

    def _secrets(self, secret: str, planned: Planned, name: str) -> dict[str, str]:
        """Return what ``name`` needs to know which units of others it verifies."""
        members = self.runs.machine.members
        offers = {device: members[device].offer for device in planned.plan.devices if device in members}
        kinds = {device: (offer.versions.get("engine"), offer.kind, offer.description) for device, offer in offers.items()}
        return secrets_for(secret, planned.plan, name, kinds)

    def _lend(self, run: str, planned: Planned, start: Start) -> None:
        """Notify the workers that have states which others need, and that have no part in the plan."""
        for name in start.lenders - set(planned.plan.devices):
            routes = self.routes.to_peers(planned.topology, name, self.routes.addresses(planned.plan.devices))
            self.routes.introduce(name, routes, planned.topology)
            live = start.live_start(name)
            assert live is not None  # else there are no lenders
            lend = commands.Lend(run=run, attempt=start.attempt, addresses=routes.addresses, relays=routes.relays, live=live)
            self.send(name, lend)

    def start(self, live: LaunchedRun, name: str) -> Callable[[], None]:
        """Return the action that lets ``name`` begin. For the first worker it puts a recovery on record before that."""
        begun, times, progress = live.attempt, live.times, live.attempt.progress
        command = commands.Start(run=live.run, attempt=begun.number)
        if times.begun == begun.number or progress is None:
            return lambda: self.send(name, command)
        now = monotonic()
        elapsed = now - times.begin(begun.number, now)
        self.retained.forget(live.run, live.workers, begun.planned.plan.devices if begun.planned is not None else ())
        progress.begin(elapsed)
        seconds = now - begun.planned_at
        self.notices.watchers(live, Started(run=live.run, attempt=begun.number, seconds=seconds))
        self.trains(live.run)
        recovery = _recovery(begun, times, now) if times.lost else None
        times.recovered()

        def begin() -> None:
            fault_point("broker.before_start", run=live.run)
            try:
                live.records.unwritten.put(_attempted(begun, elapsed))
                if recovery is not None:
                    self.recorder.record(live, recovery)
            except FarflungError as error:
                self.handle(RunFailed(run=live.run, cause=str(error), kind=type(error).__name__))
                return
            self.notices.operator_of(live.run, str(recovery or "training begins"))
            self.send(name, command)

        return begin

    def lost(self, live: LaunchedRun, command: RecoverRun) -> Callable[[], None]:
        """An attempt is over; the pause lasts until training continues. Return the action that tells the operator."""
        live.times.lose(command.cause)
        self.notices.watchers(live, Note(text=command.text))
        return lambda: self.notices.operator_of(live.run, command.text)


def _recovery(attempt: Attempt, times: TrainingTimes, now: float) -> RecoveryRecord:
    """Return the record of a recovery that ends now, with ``attempt``."""
    planned, start = attempt.planned, attempt.start
    assert planned is not None
    assert start is not None
    assert times.started is not None
    return RecoveryRecord(
        step=attempt.first_step,
        attempt=attempt.number,
        replayed=max(times.furthest - attempt.first_step, 0),
        pause=now - times.lost_at,
        elapsed=now - times.started,
        cause=times.lost,
        devices=planned.plan.devices,
        source=start.came_from,
        moved=start.moved,
    )


def _attempted(attempt: Attempt, elapsed: float) -> AttemptRecord:
    """Return the record of an attempt that begins now, ``elapsed`` seconds after the run."""
    planned = attempt.planned
    assert planned is not None
    return AttemptRecord(
        number=attempt.number,
        step=attempt.first_step,
        elapsed=elapsed,
        plan=json.loads(planned.plan_json),
        topology=json.loads(planned.topology.to_json()),
    )
