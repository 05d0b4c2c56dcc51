"""What workers report: every frame of a worker's session is read here, once, and passed to the part that it concerns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farflung import errors
from farflung.broker.attempts.helper_assignment import HelperAssignment
from farflung.broker.attempts.replanner import Replanner
from farflung.broker.attempts.retained_states import RetainedReport, RetainedStates
from farflung.broker.links.network import Network
from farflung.broker.links.reachability import read_reached
from farflung.broker.links.traffic_figures import update_from_traffic
from farflung.broker.live_run import LiveRun
from farflung.broker.notices import Notices
from farflung.broker.planning.device_measurements import DeviceMeasurements
from farflung.broker.run_recorder import RunRecorder
from farflung.broker.run_table import RunTable
from farflung.broker.straggler_monitor import StragglerMonitor
from farflung.data import compare_fingerprints
from farflung.errors import FarflungError, WireError
from farflung.messages.fields import number, table, text, whole
from farflung.messages.holdings import read_holdings
from farflung.messages.link_reports import Told, read_links
from farflung.messages.probes import read_probe
from farflung.messages.step_reports import StepReport, read_report, read_trace
from farflung.messages.versions import read_versions, version_warnings
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
from farflung.protocol.members import Parting
from farflung.telemetry.trace import Span
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond
from farflung.wire.frames import Frame

__all__ = ["WorkerReports"]

#: Characters of a generated text, and of a note.
_MAX_SAMPLE, _MAX_NOTE = 1 << 20, 1000
_MAX_RUN, _MAX_NAME, _MAX_ADDRESS = 200, 100, 300
_MAX_PROCESSORS = 4096
_MAX_STEP_REPORTS = 64
_LEAST_FACTOR = 1e-9
_REPORTS = ("helping", "prepared", "dropped", "ended", "failed", "step", "evaluation", "text", "trace", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReports:
    """Implements ``SessionEvents``. ``handle`` receives events for the machine; ``send`` never waits."""

    runs: RunTable
    handle: Callable[[Event], None]
    send: Callable[[str, Frame], None]
    notices: Notices
    network: Network
    measurements: DeviceMeasurements
    recorder: RunRecorder
    retained: RetainedStates
    helpers: HelperAssignment
    replanner: Replanner
    stragglers: StragglerMonitor

    # -- sessions -----------------------------------------------------------------------------------------------------

    def joined(self, name: str, generation: int, hello: Frame) -> tuple[str, list[str]]:
        """Add the worker ``name`` to the members. Return a text about it for people, and warnings for the worker.

        Raises:
            WireError: its hello is malformed.
            InputError: a worker of this name is connected.
        """
        header = hello.header
        address, offer = text(header, "address", limit=_MAX_ADDRESS), _offer(header)
        if "holds" in header:
            retained = _retained(table(header, "holds"))
            if not self.retained.rejoin(name, retained):
                self.send(name, Frame("forget", {"run": retained.run}))
        self.network.reachability.joined(name, address)
        wants = self._owner_wishes(name, header)  # with the same event: no run may begin on a paused worker
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
        header = frame.header
        if frame.kind == "measured":
            event = _measured(name, header)
            self.handle(event)  # before the answer: planning waits for the answer and reads the member
            self.measurements.answer(event)
        elif frame.kind == "wants":
            self.handle(self._owner_wishes(name, header))
        elif frame.kind == "probed":
            self.network.probes.answer(name, text(header, "peer", limit=_MAX_NAME), read_probe(header))
        elif frame.kind == "reached":
            self.network.reachability.answer(name, *read_reached(header))
        else:
            self._report_of_run(name, frame, text(header, "run", limit=_MAX_RUN))

    # -- runs ---------------------------------------------------------------------------------------------------------

    def _report_of_run(self, name: str, frame: Frame, run: str) -> None:
        if frame.kind == "relayed":
            for record in self.network.relays.report(name, run, frame.header):
                self.recorder.relayed(run, record)
            return
        if not self.runs.serves(name, run):
            return  # the run is over, or this worker never worked on it
        try:
            self._take(self.runs.live(run), name, frame)
        except WireError as error:
            self._fail(run, error, name)
        except FarflungError as error:  # an error of the broker (a full disk) or of all workers (different data)
            self._fail(run, error)

    def _fail(self, run: str, error: FarflungError, name: str = "") -> None:
        self.handle(RunFailed(run=run, name=name, cause=str(error), kind=type(error).__name__))

    def _take(self, live: LiveRun, name: str, frame: Frame) -> None:
        header = frame.header
        attempt = whole(header, "attempt") if "attempt" in header else 0
        if attempt not in (0, live.attempt.number):
            return  # of a plan that is over
        match frame.kind:
            case "prepared" | "ended" | "failed" | "dropped":
                self._take_state(live, name, frame, attempt)
            case "helping":
                with self.runs.changed:
                    notice = self.helpers.ready(live, name)
                if notice:
                    self.notices.operator_of(live.run, notice)
            case "step" if live.progress is not None:
                report = read_report(header)
                live.progress.report(report)
                self.stragglers.step(live.run, live.attempt.number, name, report.busy)
            case "evaluation" if live.progress is not None:
                outputs = table(header, "outputs")
                step = whole(header, "step", high=live.job.steps)
                live.progress.evaluation(step, {key: number(outputs, key) for key in outputs})
            case "trace":
                self._take_trace(live, name, header)
            case "text":
                live.sample = text(header, "text", limit=_MAX_SAMPLE)
                self.notices.watchers(live, Frame("text", {"text": live.sample}))
            case "note":
                note = {"text": text(header, "text", limit=_MAX_NOTE), "detail": header.get("detail") is True}
                self.notices.watchers(live, Frame("note", note))
            case _:
                raise WireError(f"unknown report {frame.kind!r:.40}: known are {', '.join(_REPORTS)}")

    def _take_state(self, live: LiveRun, name: str, frame: Frame, attempt: int) -> None:
        """The worker has prepared, ended, failed or dropped its part of plan number ``attempt``."""
        header, run = frame.header, live.run
        match frame.kind:
            case "prepared":
                self._check_data(live, name, _fingerprints(header))
                self.handle(RunPrepared(run=run, name=name, attempt=attempt))
            case "ended":
                self.handle(RunEnded(run=run, name=name, attempt=attempt, whole=header.get("whole") is not False))
            case "dropped":
                states, steps = read_holdings(header.get("held")), _step_reports(header.get("told"))
                self.retained.report(name, RetainedReport(run=run, attempt=attempt, states=states, steps=steps))
                self.handle(RunDropped(run=run, name=name, attempt=attempt))
            case _:
                lost, kind = header.get("lost_peer") is True, _error_kind(header)
                cause = text(header, "cause")
                self.handle(RunFailed(run=run, name=name, cause=cause, kind=kind, lost_peer=lost, attempt=attempt))

    def _check_data(self, live: LiveRun, name: str, fingerprints: Mapping[str, str]) -> None:
        """Compare the worker's data with that of the other workers.

        Raises:
            DataError: they differ.
        """
        with self.runs.changed:
            live.workers.fingerprints[name] = fingerprints
            known = dict(live.workers.fingerprints)
        self.notices.watchers(live, Frame("ready", {"name": name}))
        compare_fingerprints(known)

    def _take_trace(self, live: LiveRun, name: str, header: Mapping[str, Any]) -> None:
        trace = read_trace(header)
        if trouble := live.store.add_trace(name, trace):
            self.notices.watchers(live, Frame("note", {"text": f"warning: {trouble}"}))
        self._learn(live, name, trace[0].spans, read_links(header["links"]) if "links" in header else {})

    def _learn(self, live: LiveRun, name: str, spans: Sequence[Span], links: Mapping[str, Told]) -> None:
        """Update the figures of links from training traffic of the worker ``name``."""
        topology = live.planned.topology if live.planned is not None else None
        self.stragglers.spans(live.run, live.attempt.number, name, spans, links)
        relay = None if topology is None else lambda peer: topology.relay(name, peer)
        for (source, target), figures in update_from_traffic(self.network.table, name, links, relay).items():
            if self.network.table.slowdowns.recovered(source, target, figures.beta):
                cause = f"the link from {source} to {target} carries {BytesPerSecond(figures.beta)} now"
                self.notices.everybody(live.run, cause)
                self.replanner.wake(live.run, cause)

    def _owner_wishes(self, name: str, header: Mapping[str, Any]) -> MemberWants:
        """Return what the owner of ``name`` wants; a bandwidth cap applies at once."""
        parting = text(header, "parting", limit=20) if "parting" in header else ""
        if parting not in list(Parting):
            raise WireError(f"bad message: 'parting' must be drain, leave or nothing, got {parting!r:.40}")
        memory = number(header, "memory", low=1.0) if header.get("memory") is not None else None
        cap = number(header, "bandwidth", low=1.0) if header.get("bandwidth") is not None else None
        self.network.table.put_owner_cap(name, cap)
        return MemberWants(name=name, paused=header.get("paused") is True, parting=parting, memory=memory)


def _fingerprints(header: Mapping[str, Any]) -> Mapping[str, str]:
    fingerprints = table(header, "fingerprints")
    if not all(isinstance(value, str) for value in fingerprints.values()):
        raise WireError("bad message: fingerprints must be texts")
    return fingerprints


def _retained(header: Mapping[str, Any]) -> RetainedReport:
    return RetainedReport(
        run=text(header, "run", limit=_MAX_RUN),
        attempt=whole(header, "attempt", low=1),
        states=read_holdings(header.get("held")),
        steps=_step_reports(header.get("told")),
    )


def _step_reports(found: object) -> list[StepReport]:
    if not isinstance(found, list) or len(found) > _MAX_STEP_REPORTS or not all(isinstance(one, dict) for one in found):
        raise WireError(f"bad message: 'told' must be a list of at most {_MAX_STEP_REPORTS} reports, got {found!r:.60}")
    return [read_report(one) for one in found]


def _measured(name: str, header: Mapping[str, Any]) -> MemberMeasured:
    return MemberMeasured(
        name=name,
        speed=number(header, "speed", low=1.0),
        factor=number(header, "factor", low=_LEAST_FACTOR),
        overhead=number(header, "overhead", low=0.0),
        share=number(header, "share", low=0.0) if header.get("share") is not None else None,
    )


def _error_kind(header: Mapping[str, Any]) -> str:
    kind = text(header, "kind", limit=40)
    return kind if kind in errors.__all__ else "TrainingError"


def _offer(header: Mapping[str, Any]) -> Offer:
    raw = table(header, "offer")
    return Offer(
        memory=number(raw, "memory", low=1.0),
        speed=number(raw, "speed", low=1.0),
        factor=number(raw, "factor", low=_LEAST_FACTOR),
        overhead=number(raw, "overhead", low=0.0),
        host=text(raw, "host", limit=100),
        processors=_processors(raw),
        kind=text(raw, "kind", limit=20),
        description=text(raw, "description", limit=300),
        versions=read_versions(raw),
        relay=raw.get("relay") is not False,
        reliable=raw.get("reliable") is not False,
    )


def _processors(offer: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the processors on which a worker computes (empty: unknown)."""
    names = offer.get("processors", [])
    if not isinstance(names, list) or len(names) > _MAX_PROCESSORS or any(not isinstance(n, str) or len(n) > 100 for n in names):
        raise WireError(f"bad message: 'processors' must be a list of at most {_MAX_PROCESSORS} names, got {names!r:.60}")
    return tuple(names)


def _describe(offer: Offer) -> str:
    name = f"{offer.kind} ({offer.description})" if offer.description else offer.kind
    return f"{name}, {Bytes(offer.memory)}, {FlopsPerSecond(offer.speed)}{'' if offer.reliable else ', unreliable'}"
