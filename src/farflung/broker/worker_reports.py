"""What workers report: every frame of a worker's session is read here, once, and passed to the part that it concerns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from farflung.broker.attempts.retained_states import RetainedReport, RetainedStates
from farflung.broker.links.network import Network
from farflung.broker.planning.device_measurements import DeviceMeasurements
from farflung.broker.run_recorder import RunRecorder
from farflung.broker.run_reports import RunReports
from farflung.broker.run_table import RunTable
from farflung.broker.straggler_monitor import StragglerMonitor
from farflung.engines.probe import check_probe
from farflung.errors import WireError
from farflung.messages.commands import Beat, Forget
from farflung.messages.conversions.probes import probe_of
from farflung.messages.conversions.retained_states import retained_states_of
from farflung.messages.conversions.step_reports import report_of
from farflung.messages.reports import (
    Hello,
    Measured,
    NatDescribed,
    Probed,
    PunchEnded,
    PunchWanted,
    Reached,
    Relayed,
    RunReport,
    Wants,
)
from farflung.messages.router import Router
from farflung.messages.schema import Channel, Message, UnsetType
from farflung.messages.versions import check_session, version_warnings
from farflung.messages.wire_form import decode
from farflung.protocol.events import (
    Event,
    MemberJoined,
    MemberLost,
    MemberMeasured,
    MemberWants,
    Offer,
)
from farflung.units import Bytes, FlopsPerSecond
from farflung.wire.frames import Frame, run_of

__all__ = ["WorkerReports"]


@dataclass(frozen=True, kw_only=True)
class WorkerReports:
    """Implements ``SessionEvents``. ``handle`` receives events for the machine; ``send`` never waits."""

    runs: RunTable
    handle: Callable[[Event], None]
    send: Callable[[str, Message], None]
    network: Network
    measurements: DeviceMeasurements
    recorder: RunRecorder
    retained: RetainedStates
    of_runs: RunReports
    stragglers: StragglerMonitor
    #: Takes the name of a worker and the free bytes of its disks.
    disk: Callable[[str, float], None]

    # -- sessions -----------------------------------------------------------------------------------------------------

    def joined(self, name: str, generation: int, hello: Hello) -> tuple[str, list[str]]:
        """Add the worker ``name`` to the members. Return a text about it for people, and warnings for the worker.

        Raises:
            InputError: a worker of this name is connected, or its engine computes something else.
            VersionError: its farflung has another major or minor version.
        """
        address, offer, holds = hello.address, _offer(hello), hello.holds
        check_session(offer.versions.get("farflung", ""))
        check_probe(hello.offer.probe or (), name, offer.versions.get("engine", ""), offer.kind)
        if not isinstance(holds, UnsetType):
            states, steps = retained_states_of(holds.states), [report_of(one) for one in holds.steps]
            report = RetainedReport(run=holds.run, attempt=holds.attempt, states=states, steps=steps)
            if not self.retained.rejoin(name, report):
                self.send(name, Forget(run=holds.run))
        self._free(name, hello.offer.disk)
        self.network.reachability.joined(name, address, hello.address6 or "")
        wants = self._owner_limits(name, hello)  # with the same event: no run may begin on a paused worker
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
            run = run_of(frame)
            if not run:
                raise
            if self.runs.serves(name, run):
                self.of_runs.misbehaved(run, error, name)
            return
        if isinstance(message, RunReport):
            self.of_runs.report(name, message)
        else:
            self._of_workers.dispatch(name, message)

    @cached_property
    def _of_workers(self) -> Router[str, None]:
        """Reports that concern no attempt; the sender is the worker's name."""
        router, reachability = Router[str, None](Channel.REPORTS), self.network.reachability
        router.register(Beat, lambda name, message: self._free(name, message.disk))
        router.register(Measured, self._measured)
        router.register(Wants, lambda name, message: self.handle(self._owner_limits(name, message)))
        router.register(Probed, lambda name, found: self.network.probes.answer(name, found.question, probe_of(found)))
        router.register(Reached, lambda name, told: reachability.answer(name, told.question, told.found))
        router.register(NatDescribed, lambda name, told: reachability.holes.described(name, told.nat))
        router.register(PunchWanted, lambda name, wish: self.network.punching.request(name, wish.peer))
        router.register(PunchEnded, lambda name, end: reachability.holes.ended(name, end.peer, reached=end.reached))
        router.register(Relayed, self._relayed)
        return router

    def _free(self, name: str, disk: float | UnsetType) -> None:
        if not isinstance(disk, UnsetType):
            self.disk(name, disk)

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

    def _owner_limits(self, name: str, message: Hello | Wants) -> MemberWants:
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
        isolation=item.isolation or "",
        region=item.region or "",
        only=item.only or "",
        operators=None if isinstance(item.operators, UnsetType) else frozenset(item.operators),
        precisions=() if isinstance(item.precisions, UnsetType) else item.precisions,
        installed=item.installed or 0.0,
        ranks=item.ranks or 1,
        rank_latency=item.rank_latency or 0.0,
        rank_rate=item.rank_rate or 0.0,
        offload=item.offload or 0.0,
        offload_rate=item.offload_rate or 0.0,
    )


def _describe(offer: Offer) -> str:
    name = f"{offer.kind} ({offer.description})" if offer.description else offer.kind
    return f"{name}, {Bytes(offer.memory).written(3)}, {FlopsPerSecond(offer.speed)}{'' if offer.reliable else ', unreliable'}"
