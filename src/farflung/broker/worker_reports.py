"""What workers report: every frame of a worker's session is read here, once, and passed to the part that it concerns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from farflung import errors
from farflung.broker.attempts.helper_assignment import HelperAssignment
from farflung.broker.attempts.replanner import Replanner
from farflung.broker.attempts.retained_states import RetainedReport, RetainedStates
from farflung.broker.links.network import Network
from farflung.broker.links.traffic_figures import update_from_traffic
from farflung.broker.live_run import LiveRun
from farflung.broker.notices import Notices
from farflung.broker.planning.device_measurements import DeviceMeasurements
from farflung.broker.run_recorder import RunRecorder
from farflung.broker.run_table import RunTable
from farflung.broker.straggler_monitor import StragglerMonitor
from farflung.data import compare_fingerprints
from farflung.errors import FarflungError, WireError
from farflung.messages.commands import Beat, Forget
from farflung.messages.holdings import holdings_of
from farflung.messages.link_reports import Told, links_of
from farflung.messages.probes import probe_of
from farflung.messages.reports import (
    Dropped,
    Ended,
    Evaluated,
    Failed,
    Generated,
    Hello,
    Helping,
    Measured,
    Noted,
    Prepared,
    Probed,
    Reached,
    Relayed,
    RunReport,
    Stepped,
    Traced,
    Wants,
)
from farflung.messages.router import Router
from farflung.messages.schema import Channel, Message, UnsetType
from farflung.messages.step_reports import report_of, trace_of
from farflung.messages.versions import version_warnings
from farflung.messages.watching import GeneratedText, MemberReady, Note
from farflung.messages.wire_form import decode
from farflung.protocol.events import (
    Event,
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
from farflung.telemetry.trace import Span
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond
from farflung.wire.frames import Frame

__all__ = ["WorkerReports"]


class _Part(NamedTuple):
    """The sender of a report: the worker ``name``, which works on ``live``."""

    live: LiveRun
    name: str


@dataclass(frozen=True, kw_only=True)
class WorkerReports:
    """Implements ``SessionEvents``. ``handle`` receives events for the machine; ``send`` never waits."""

    runs: RunTable
    handle: Callable[[Event], None]
    send: Callable[[str, Message], None]
    notices: Notices
    network: Network
    measurements: DeviceMeasurements
    recorder: RunRecorder
    retained: RetainedStates
    helpers: HelperAssignment
    replanner: Replanner
    stragglers: StragglerMonitor

    # -- sessions -----------------------------------------------------------------------------------------------------

    def joined(self, name: str, generation: int, hello: Hello) -> tuple[str, list[str]]:
        """Add the worker ``name`` to the members. Return a text about it for people, and warnings for the worker.

        Raises:
            InputError: a worker of this name is connected.
        """
        address, offer, holds = hello.address, _offer(hello), hello.holds
        if not isinstance(holds, UnsetType):
            states, steps = holdings_of(holds.held), [report_of(one) for one in holds.told]
            report = RetainedReport(run=holds.run, attempt=holds.attempt, states=states, steps=steps)
            if not self.retained.rejoin(name, report):
                self.send(name, Forget(run=holds.run))
        self.network.reachability.joined(name, address)
        wants = self._owner_wishes(name, hello)  # with the same event: no run may begin on a paused worker
        self.handle(MemberJoined(name=name, address=address, offer=offer, generation=generation, wants=wants))
        with self.runs.changed:
            warnings = version_warnings(list(self.runs.machine.members.values())).get(name, [])
        return f"{address or 'an address that nobody can reach'}: {_describe(offer)}", warnings

    def lost(self, name: str, cause: str) -> None:
        """The session of ``name`` is over."""
        self.handle(MemberLost(name=name, cause=cause))

    def silent(self, silences: Mapping[str, float], lease: float) -> None:
        """Notify watchers of runs whose workers have been silent for ``silences`` seconds."""
        with self.runs.changed:
            members = [self.runs.machine.members.get(name) for name in silences]
            served = [(member.run, member.name) for member in members if member is not None and member.run is not None]
        for run, name in served:
            self.stragglers.silence(run, name, silences[name], lease)

    def report(self, name: str, frame: Frame) -> None:
        """Take one report of the worker ``name``. A bad report fails the run that it concerns; the session continues.

        Raises:
            WireError: a report that concerns no run is malformed.
        """
        try:
            message = decode(frame, Channel.REPORTS)
        except WireError as error:
            run = frame.header.get("run")
            if not isinstance(run, str):
                raise
            if self.runs.serves(name, run):
                self._fail(run, error, name)
            return
        if isinstance(message, RunReport):
            self._report_of_run(name, message)
        else:
            self._of_workers.dispatch(name, message)

    @cached_property
    def _of_workers(self) -> Router[str, None]:
        """Reports that concern no attempt; the sender is the worker's name."""
        router = Router[str, None](Channel.REPORTS)
        router.register(Beat, lambda name, message: None)  # the session has noted that the worker runs
        router.register(Measured, self._measured)
        router.register(Wants, lambda name, message: self.handle(self._owner_wishes(name, message)))
        router.register(Probed, lambda name, found: self.network.probes.answer(name, found.peer, probe_of(found)))
        router.register(Reached, lambda name, told: self.network.reachability.answer(name, told.question, told.found))
        router.register(Relayed, self._relayed)
        return router

    def _measured(self, name: str, message: Measured) -> None:
        event = MemberMeasured(
            name=name,
            speed=message.speed,
            factor=message.factor,
            overhead=message.overhead,
            convolution=message.convolution or 1.0,
            share=None if isinstance(message.share, UnsetType) else message.share,
        )
        self.handle(event)  # before the answer: planning waits for the answer and reads the member
        self.measurements.answer(event)

    def _relayed(self, name: str, message: Relayed) -> None:
        for record in self.network.relays.report(name, message):
            self.recorder.relayed(message.run, record)

    # -- runs ---------------------------------------------------------------------------------------------------------

    @cached_property
    def _of_runs(self) -> Router[_Part, None]:
        """Reports of a worker's part in the current attempt of a run."""
        router = Router[_Part, None](Channel.REPORTS)
        router.register(Prepared, self._prepared)
        router.register(Ended, self._ended)
        router.register(Failed, self._failed)
        router.register(Dropped, self._dropped)
        router.register(Helping, self._helping)
        router.register(Stepped, self._stepped)
        router.register(Evaluated, self._evaluated)
        router.register(Traced, self._traced)
        router.register(Generated, self._generated)
        router.register(Noted, self._noted)
        return router

    def _report_of_run(self, name: str, message: RunReport) -> None:
        run = message.run
        if not self.runs.serves(name, run):
            return  # the run is over, or this worker never worked on it
        live = self.runs.live(run)
        if message.attempt not in (0, live.attempt.number):
            return  # of a plan that is over
        try:
            self._of_runs.dispatch(_Part(live, name), message)
        except WireError as error:
            self._fail(run, error, name)
        except FarflungError as error:  # an error of the broker (a full disk) or of all workers (different data)
            self._fail(run, error)

    def _fail(self, run: str, error: FarflungError, name: str = "") -> None:
        self.handle(RunFailed(run=run, name=name, cause=str(error), kind=type(error).__name__))

    def _prepared(self, part: _Part, message: Prepared) -> None:
        self._check_data(part.live, part.name, message.fingerprints)
        self.handle(RunPrepared(run=part.live.run, name=part.name, attempt=message.attempt))

    def _ended(self, part: _Part, message: Ended) -> None:
        self.handle(RunEnded(run=part.live.run, name=part.name, attempt=message.attempt, whole=message.whole))

    def _failed(self, part: _Part, message: Failed) -> None:
        kind = message.kind if message.kind in errors.__all__ else "TrainingError"
        event = RunFailed(
            run=part.live.run,
            name=part.name,
            cause=message.cause,
            kind=kind,
            lost_peer=message.lost_peer is True,
            attempt=message.attempt,
        )
        self.handle(event)

    def _dropped(self, part: _Part, message: Dropped) -> None:
        run, attempt = part.live.run, message.attempt
        states, steps = holdings_of(message.held), [report_of(one) for one in message.told]
        self.retained.report(part.name, RetainedReport(run=run, attempt=attempt, states=states, steps=steps))
        self.handle(RunDropped(run=run, name=part.name, attempt=attempt))

    def _helping(self, part: _Part, message: Helping) -> None:
        del message
        with self.runs.changed:
            notice = self.helpers.ready(part.live, part.name)
        if notice:
            self.notices.operator_of(part.live.run, notice)

    def _stepped(self, part: _Part, message: Stepped) -> None:
        live = part.live
        if live.progress is not None:
            live.progress.report(report_of(message))
            self.stragglers.step(live.run, live.attempt.number, part.name, message.busy)

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
        part.live.sample = message.text
        self.notices.watchers(part.live, GeneratedText(text=message.text))

    def _noted(self, part: _Part, message: Noted) -> None:
        self.notices.watchers(part.live, Note(text=message.text, detail=message.detail is True))

    def _check_data(self, live: LiveRun, name: str, fingerprints: Mapping[str, str]) -> None:
        """Compare the worker's data with that of the other workers.

        Raises:
            DataError: they differ.
        """
        with self.runs.changed:
            live.workers.fingerprints[name] = fingerprints
            known = dict(live.workers.fingerprints)
        self.notices.watchers(live, MemberReady(name=name))
        compare_fingerprints(known)

    def _learn(self, live: LiveRun, name: str, spans: Sequence[Span], links: Mapping[str, Told]) -> None:
        """Update the figures of links from training traffic of the worker ``name``."""
        topology = live.planned.topology if live.planned is not None else None
        self.stragglers.spans(live.run, live.attempt.number, name, spans, links)
        relay = None if topology is None else lambda peer: topology.relay(name, peer)
        for (source, target), figures in update_from_traffic(self.network.table, name, links, relay).items():
            if self.network.table.slowdowns.recovered(source, target, figures.beta):
                cause = f"the link from {source} to {target} carries {BytesPerSecond(figures.beta)} now"
                self.replanner.wake(live.run, cause)

    def _owner_wishes(self, name: str, message: Hello | Wants) -> MemberWants:
        """Return what the owner of ``name`` wants; a bandwidth cap applies at once."""
        self.network.table.put_owner_cap(name, message.bandwidth or None)
        return MemberWants(name=name, paused=message.paused is True, parting=message.parting or "", memory=message.memory or None)


def _offer(message: Hello) -> Offer:
    item = message.offer
    return Offer(
        memory=item.memory,
        speed=item.speed,
        factor=item.factor,
        overhead=item.overhead,
        convolution=item.convolution or 1.0,
        host=item.host,
        processors=item.processors,
        kind=item.kind,
        description=item.description,
        versions=item.versions,
        relay=item.relay,
        reliable=item.reliable,
    )


def _describe(offer: Offer) -> str:
    name = f"{offer.kind} ({offer.description})" if offer.description else offer.kind
    return f"{name}, {Bytes(offer.memory)}, {FlopsPerSecond(offer.speed)}{'' if offer.reliable else ', unreliable'}"
