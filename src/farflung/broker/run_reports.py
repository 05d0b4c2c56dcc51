"""Reports of a worker's part in the current attempt of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from farflung import errors
from farflung.broker.attempts.helper_assignment import HelperAssignment
from farflung.broker.attempts.replanner import Replanner
from farflung.broker.attempts.retained_states import RetainedReport, RetainedStates
from farflung.broker.links.network import Network
from farflung.broker.links.traffic_figures import update_from_traffic
from farflung.broker.live_run import LiveRun, WaitingWorker
from farflung.broker.notices import Notices
from farflung.broker.rate_limit import RateLimit
from farflung.broker.run_recorder import RunRecorder
from farflung.broker.run_table import RunTable
from farflung.broker.straggler_monitor import StragglerMonitor
from farflung.clock import monotonic
from farflung.data import compare_fingerprints, outvoted
from farflung.errors import DataError, FarflungError, WireError
from farflung.graph.cut import cut
from farflung.messages.conversions.failed_batches import failed_batch
from farflung.messages.conversions.link_reports import LinkReport, links_of
from farflung.messages.conversions.retained_states import retained_states_of
from farflung.messages.conversions.step_reports import StepReport, report_of, trace_of
from farflung.messages.reports import (
    CopyHashed,
    Dropped,
    Ended,
    Evaluated,
    Failed,
    Generated,
    Hashed,
    Helping,
    Noted,
    Prepared,
    RunReport,
    Stepped,
    Traced,
    Waits,
)
from farflung.messages.router import Router
from farflung.messages.schema import Channel, Message
from farflung.messages.watching import GeneratedText, MemberReady, Note
from farflung.protocol.events import (
    DATA_ERROR,
    Event,
    HelperMoves,
    MemberLate,
    MemberLied,
    RunDropped,
    RunEnded,
    RunFailed,
    RunPrepared,
)
from farflung.telemetry.trace import Span
from farflung.units import BytesPerSecond

__all__ = ["RunReports"]


#: Notes, and texts, of one worker in a minute that watchers receive; others are dropped.
_NOTES = 120.0
#: Copy intervals of a worker whose hashes are remembered: workers have at most two.
_MOST_COPIES = 4


class _Part(NamedTuple):
    """The sender of a report: the worker ``name``, which works on ``live``."""

    live: LiveRun
    name: str


@dataclass(frozen=True, kw_only=True)
class RunReports:
    """Passes each report to the part of the broker that it concerns. A bad report fails its run. ``send`` never waits."""

    runs: RunTable
    handle: Callable[[Event], None]
    notices: Notices
    network: Network
    recorder: RunRecorder
    retained: RetainedStates
    helpers: HelperAssignment
    replanner: Replanner
    stragglers: StragglerMonitor
    send: Callable[[str, Message], None]
    #: How often each worker sends notes (under ``RunTable.changed``).
    _notes: RateLimit = field(default_factory=lambda: RateLimit(_NOTES))

    @cached_property
    def _router(self) -> Router[_Part, None]:
        """Reports of a worker's part in the current attempt of a run."""
        router = Router[_Part, None](Channel.REPORTS)
        router.register(Prepared, self._prepared)
        router.register(Ended, self._ended)
        router.register(Failed, self._failed)
        router.register(Dropped, self._dropped)
        router.register(Helping, self._helping)
        router.register(Stepped, self._stepped)
        router.register(Hashed, self._hashed)
        router.register(CopyHashed, self._copied)
        router.register(Waits, self._waits)
        router.register(Evaluated, self._evaluated)
        router.register(Traced, self._traced)
        router.register(Generated, self._generated)
        router.register(Noted, self._noted)
        return router

    def report(self, name: str, message: RunReport) -> None:
        """Take a report of the worker ``name``, unless its run or its attempt is over."""
        run = message.run
        if not self.runs.serves(name, run):
            return  # the run is over, or this worker never worked on it
        live = self.runs.live(run)
        if message.attempt != live.attempt.number:
            return  # of a plan that is over
        try:
            self._router.dispatch(_Part(live, name), message)
        except WireError as error:
            self.misbehaved(run, error, name)
        except FarflungError as error:  # an error of the broker (a full disk) or of all workers (different data)
            self.fail(run, error)

    def fail(self, run: str, error: FarflungError, name: str = "") -> None:
        """Fail ``run`` because of ``error``, of the worker ``name`` (empty: of the broker or of all workers)."""
        self.handle(RunFailed(run=run, name=name, cause=str(error), kind=type(error).__name__))

    def misbehaved(self, run: str, error: WireError, name: str) -> None:
        """The worker ``name`` sent a report that no honest worker sends: ``run`` continues without it."""
        self.handle(MemberLied(run=run, name=name, cause=str(error)))

    def _prepared(self, part: _Part, message: Prepared) -> None:
        self.notices.watchers(part.live, MemberReady(name=part.name))
        failed = self._data_differ(part.live, part.name, message.fingerprints)
        self.handle(failed or RunPrepared(run=part.live.run, name=part.name, attempt=message.attempt))

    def _ended(self, part: _Part, message: Ended) -> None:
        self.handle(RunEnded(run=part.live.run, name=part.name, attempt=message.attempt, whole=message.whole))

    def _failed(self, part: _Part, message: Failed) -> None:
        kind = message.kind if message.kind in errors.__all__ else "TrainingError"
        plan = None if part.live.planned is None else part.live.planned.plan
        if message.blames and plan is not None and message.blames in plan.devices:
            with self.runs.changed:
                part.live.workers.blamed.add(message.blames)
        event = RunFailed(
            run=part.live.run,
            name=part.name,
            cause=message.cause,
            kind=kind,
            lost_peer=message.lost_peer is True,
            batch=failed_batch(message.batch),
            attempt=message.attempt,
            blames=message.blames or "",
        )
        self.handle(event)

    def _dropped(self, part: _Part, message: Dropped) -> None:
        run, attempt = part.live.run, message.attempt
        states, steps = retained_states_of(message.states), [report_of(one) for one in message.steps]
        self.retained.report(part.name, RetainedReport(run=run, attempt=attempt, states=states, steps=steps))
        self.handle(RunDropped(run=run, name=part.name, attempt=attempt))

    def _helping(self, part: _Part, message: Helping) -> None:
        del message
        with self.runs.changed:
            notice = self.helpers.ready(part.live.run, part.live.attempt.number, part.name)
            moves = self.helpers.move(part.live.helped)
        if notice:
            self.notices.operator_of(part.live.run, notice)
        if moves:
            self.handle(HelperMoves(run=part.live.run, name=moves))

    def _stepped(self, part: _Part, message: Stepped) -> None:
        live, report = part.live, report_of(message)
        if live.progress is not None:
            for late in live.progress.report(part.name, report):
                self.handle(MemberLate(run=live.run, name=late, attempt=message.attempt, what="reported no step for too long"))
            self.stragglers.step(live.run, live.attempt.number, part.name, message.busy)

        self._verify(live, part.name, report)

    def _verify(self, live: LiveRun, name: str, report: StepReport) -> None:
        """Compare digests. If a worker has forged some, the next attempt begins with a checkpoint from before that step."""
        if live.attempt.verification is None:
            return
        for step, event in live.attempt.verification.report(name, report, self.send):
            with self.runs.changed:
                live.workers.distrust(step)
            self.handle(event)

    def _hashed(self, part: _Part, message: Hashed) -> None:
        plan, of = None if part.live.planned is None else part.live.planned.plan, message.of or part.name
        stages = () if plan is None else [stage.devices for stage in plan.stages if stage.devices[0] == of]
        if of != part.name and not (stages and all(part.name in devices for devices in stages)):
            raise WireError(f"{part.name} is no replica of {of!r:.80}, and hashes its share of a checkpoint")
        part.live.store.hashes.report((message.attempt, message.step), part.name, of, message.sha256)

    def _copied(self, part: _Part, message: CopyHashed) -> None:
        planned, bundle = part.live.planned, part.live.submission.bundle
        if planned is None or bundle is None:
            return
        pieces = cut(bundle.graph, planned.plan.bounds)
        own = {name for stage in planned.plan.stages_of(part.name) for name in pieces[stage.index].states}
        if not message.hashes.keys() <= own:
            raise WireError(f"{part.name} hashes the state {min(message.hashes.keys() - own)!r:.80}, which it does not compute")
        with self.runs.changed:
            copied = part.live.workers.copied.setdefault(part.name, {})
            copied[message.step] = {**copied.pop(message.step, {}), **message.hashes}
            for old in list(copied)[:-_MOST_COPIES]:
                del copied[old]

    def _waits(self, part: _Part, message: Waits) -> None:
        with self.runs.changed:
            waits = part.live.workers.waits
            waits.pop(part.name, None)
            part.live.workers.fetched[part.name] = message.fetched or 0
            if message.peers:
                since = monotonic() - message.seconds
                waits[part.name] = WaitingWorker(attempt=message.attempt, peers=message.peers, since=since)

    def _evaluated(self, part: _Part, message: Evaluated) -> None:
        live = part.live
        if message.step > live.job.steps:
            raise WireError(f"an evaluation is of a step up to {live.job.steps}, got {message.step}")
        if live.progress is not None:
            live.progress.evaluation(message.step, message.outputs)

    def _traced(self, part: _Part, message: Traced) -> None:
        trace = trace_of(message)
        if trouble := part.live.store.add_trace(part.name, trace):
            self.notices.watchers(part.live, Note(text=f"warning: {trouble}"))
        self._learn(part.live, part.name, trace[0].spans, links_of(message.links))

    def _generated(self, part: _Part, message: Generated) -> None:
        if not self._notes.take(f"{part.name} text", monotonic()):
            part.live.show(message.text)
            self.notices.watchers(part.live, GeneratedText(text=message.text))

    def _noted(self, part: _Part, message: Noted) -> None:
        if not self._notes.take(f"{part.name} note", monotonic()):
            self.notices.watchers(part.live, Note(text=message.text, detail=message.detail is True))

    def _data_differ(self, live: LiveRun, name: str, fingerprints: Mapping[str, str]) -> RunFailed | None:
        """Compare the worker's data with that of the other workers. Return the failure of the one whose data differ.

        That is the one that the others outvote. If nobody is outvoted, it is ``name``, whose data are the last to be compared.
        """
        plan = None if live.planned is None else live.planned.plan
        with self.runs.changed:
            known = live.workers.fingerprints
            known[name] = fingerprints
            here = {one: known[one] for one in known if plan is None or one in plan.devices}
            odd, majority = outvoted(known)  # workers of earlier attempts have a voice, too
            while odd and odd not in here:
                del known[odd]
                odd, majority = outvoted(known)
        try:
            compare_fingerprints(here)
        except DataError as error:
            text = str(error)
        else:
            return None
        return RunFailed(
            run=live.run,
            name=odd or name,
            cause=text,
            kind=DATA_ERROR,
            attempt=live.attempt.number,
            outvoted_by=majority,
        )

    def _learn(self, live: LiveRun, name: str, spans: Sequence[Span], told: Mapping[str, LinkReport]) -> None:
        """Update the figures of links between members from training traffic of the worker ``name``."""
        with self.runs.changed:
            links = {peer: told[peer] for peer in told if peer in self.runs.machine.members}
        topology = live.planned.topology if live.planned is not None else None
        self.stragglers.spans(live.run, live.attempt.number, name, spans, links)
        relay = None if topology is None else lambda peer: topology.relay(name, peer)
        for (source, target), figures in update_from_traffic(self.network.table, name, links, relay).items():
            if self.network.table.slowdowns.recovered(source, target, figures.beta):
                cause = f"the link from {source} to {target} carries {BytesPerSecond(figures.beta)} now"
                self.notices.everybody(live.run, cause)
                self.replanner.wake(live.run, cause)
