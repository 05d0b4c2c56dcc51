"""A worker: one session with a broker, in which it offers its device and takes part in one run at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from farflung.data.base import Place
from farflung.data.files import default_cache
from farflung.errors import ConnectionLost, FarflungError, TrainingError
from farflung.memory_budget import MemoryBudget
from farflung.messages import commands
from farflung.messages.commands import (
    Abort,
    Beat,
    Dismissed,
    Fenced,
    Forget,
    Goodbye,
    HandOver,
    Help,
    HelperGone,
    Lend,
    Measure,
    Meet,
    Observe,
    OwnerRequest,
    Prepare,
    Probe,
    Punch,
    Reach,
    Relay,
    Start,
    Stop,
    Welcome,
)
from farflung.messages.conversions.retained_states import retained_state_items
from farflung.messages.conversions.step_reports import newest_messages
from farflung.messages.reports import Dropped, Hello, OfferItem, Relayed, RetainedRun, RetainedStateItem, Stepped
from farflung.messages.router import Router
from farflung.messages.schema import UNSET, Channel, Message, UnsetType
from farflung.protocol.leases import LEASE
from farflung.telemetry.faults import fault_point
from farflung.telemetry.log_line import Detail
from farflung.telemetry.shortage import free_space
from farflung.thread_group import ThreadGroup
from farflung.transports import TransportConfig
from farflung.transports.addresses import congestion_control
from farflung.transports.base import Endpoint, EndpointEvents
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.units import Bytes, FlopsPerSecond
from farflung.wire.frames import FrameLimits
from farflung.worker.broker_queries import BrokerQueries
from farflung.worker.broker_storage import BrokerStorage
from farflung.worker.control_session import ControlSession
from farflung.worker.device_measurement import MeasuredDevice, offered_disk, open_device
from farflung.worker.helper import Helper
from farflung.worker.links.mapped_port import mapped_port
from farflung.worker.links.peer_links import PeerLinks, RelayService
from farflung.worker.links.punching import Punching
from farflung.worker.links.second_address import listening_address, second_address
from farflung.worker.membership import Membership
from farflung.worker.observer import NoObserver, WorkObserver
from farflung.worker.options import WorkerOptions
from farflung.worker.peer_frames import PeerFrames
from farflung.worker.retained_states import Continuation, RetainedStates
from farflung.worker.run_part import CurrentPart, EndedAttempt, RunPart, RunServices
from farflung.worker.training_run import TrainingRun

__all__ = ["CarriedOver", "Worker"]

#: How long the part in a run may take to end, in seconds: when this worker leaves, and else.
_LEAVE_SECONDS, _END_SECONDS = 5.0, 30.0
#: A broker that was frozen may lack the step reports of so many seconds.
_UNREAD_SECONDS = 2 * LEASE
#: Bytes. A broker need not decode a heartbeat that is equal to the last one.
_DISK_STEP = 1e7
#: Bytes: a frame may be as large as this, even on a machine that offers less memory.
_MIN_FRAME = 64 << 20
#: Of what arrives, on a machine that offers less.
_LEAST_BUDGET = 2 * _MIN_FRAME
#: Bytes of small frames that may be under way to a peer.
_SMALL = 256 << 10
#: Of one link.
_MAX_CONNECTIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedOver:
    """What a worker's next session continues with: its measured device, the retained states, and the last attempt."""

    device: MeasuredDevice
    retained: RetainedStates
    ended: EndedAttempt | None = None


def _ignore_phase(text: str) -> None:
    del text


def _ignore(request: OwnerRequest) -> None:
    del request


class Worker:
    """Serves one broker in one session, until ``stop``.

    The session's thread calls ``serve``. Transport threads call ``PeerFrames``. Any thread may call ``stop``.
    """

    def __init__(
        self,
        membership: Membership,
        options: WorkerOptions,
        log: Callable[[str], None],
        *,
        carried: CarriedOver | None = None,
        on_owner: Callable[[OwnerRequest], None] = _ignore,
        observer: WorkObserver | None = None,
    ) -> None:
        """Measure the device (unless ``carried`` has it) and begin to listen for peers.

        ``log`` takes lines for the person at this machine. ``on_owner`` gets what the owner has changed through the broker.
        ``observer`` gets the steps and spans of runs.

        Raises:
            InputError: there is no such device, or the address can't be listened at.
        """
        if carried is None:
            carried = CarriedOver(device=open_device(options, log, _ignore_phase), retained=RetainedStates())
        self.membership = membership
        self._options, self._log, self._on_owner = options, log, on_owner
        self._device, self._retained = carried.device, carried.retained
        self._current = CurrentPart(carried.ended)
        self.session = ControlSession(membership.client, log, partial(_heartbeat, options, self._current))
        self._threads = ThreadGroup()
        budget = MemoryBudget(max(_LEAST_BUDGET, int(self._device.offer["memory"])))
        limits = FrameLimits(max_bytes=max(_MIN_FRAME, min(FrameLimits().max_bytes, int(self._device.offer["memory"]))))
        broker, report = membership.client.address, self.session.report
        punching = Punching(broker, report, lambda sock: endpoint.take_in(sock, relay=""), log)
        current = self._current
        endpoint = TcpEndpoint(
            membership.credentials,
            PeerFrames(current, lambda peer, wanted: self._retained.lend(self.endpoint, peer, wanted)).receive,
            listen=listening_address(options, membership.own_host),
            advertise=options.advertise or membership.own_host,
            config=TransportConfig(limits=limits, max_stripes=_MAX_CONNECTIONS, small=_SMALL, budget=budget, peers_only=True),
            events=EndpointEvents(on_lost=current.on_lost, on_arrival=current.on_arrival, log=log, punch=punching.dial),
        )
        links = PeerLinks(endpoint, punching, mapped_port(options, endpoint.address, log))
        self._relays = RelayService(endpoint, log)
        self._queries = BrokerQueries(self._device, links, broker, lambda: self._current.part is not None, report)
        self._services = RunServices(
            engine=self._device.engine,
            device=self._device.name,
            memory=int(self._device.offer["memory"]),
            budget=budget,
            place=Place(base=options.data, cache=default_cache(), confined=not options.any_path),
            links=links,
            retained=self._retained,
            storage=BrokerStorage(membership.client, budget),
            report=report,
            log=log,
            observer=observer or NoObserver(),
            disk=offered_disk(options),
        )

    def serve(self) -> None:
        """Open the session and carry out the broker's commands, until ``stop``.

        Raises:
            ConnectionLost: the broker is lost.
            InputError: the broker has a worker of this name already.
        """
        session = self.session
        if not session.open(self._hello):
            return
        router = self._command_router()
        try:
            for frame in session.frames():
                router.receive("broker", frame)
        except ConnectionLost:
            if not (session.leaving or session.dismissed):
                raise
        finally:
            self._end_part(ConnectionLost("the broker is gone"))
        if session.dismissed:
            raise ConnectionLost(
                f"the broker said goodbye: {session.dismissed}; when it is started again, join again with its ticket"
            )
        if not session.leaving:
            remedy = "" if session.fenced else "; start it again, then join again with its ticket"
            raise ConnectionLost(f"the broker ended the session{remedy}")

    @property
    def endpoint(self) -> Endpoint:
        """The data plane."""
        return self._services.links.endpoint

    @property
    def part(self) -> RunPart | None:
        """The part in a run that this worker works on now."""
        return self._current.part

    @property
    def carried(self) -> CarriedOver:
        """What the next session continues with; complete after ``close``."""
        return CarriedOver(device=self._device, retained=self._retained, ended=self._current.ended)

    def announce(self, limits: Mapping[str, Any]) -> None:
        """Report what this machine's owner allows from now on: ``paused``, ``parting``, ``memory`` (as ``MemberWants``),
        ``bandwidth`` (bytes per second; None: no limit)."""
        memory, rate = limits.get("memory"), limits.get("bandwidth")
        if isinstance(memory, (int, float)):
            limits = {**limits, "memory": self._device.at_most(memory)}
            self._services.budget.resize(max(_LEAST_BUDGET, int(limits["memory"])))
        self._services.links.limit_rate(rate if isinstance(rate, (int, float)) else None)
        self.session.announce(limits)

    def stop(self) -> None:
        """Leave, from any thread: end the session, and break it off if the broker does not answer."""
        self.session.leave()

    def close(self) -> None:
        """End everything that this worker opened, and wait for its threads."""
        self._end_part(ConnectionLost("the worker is closing"))
        self._services.links.close()
        self.session.close()
        self.membership.client.close()
        self._queries.join()
        self._retained.join()
        self._threads.join()

    # -- the session's thread -----------------------------------------------------------------------------------------

    def _hello(self, limits: Mapping[str, Any]) -> Hello:
        """The first message: the offer, and what was retained of a run whose broker went away."""
        fault_point("worker.before_join", device=self.membership.name)
        links, options, ended = self._services.links, self._options, self._current.ended
        address = links.address
        relay = options.relay and bool(address)
        free = _free(options)
        offer = OfferItem(
            **self._device.offer,
            relay=relay,
            reliable=options.reliable,
            region=options.region or UNSET,
            only=options.only or UNSET,
            disk=UNSET if free is None else free,
        )
        holds: RetainedRun | UnsetType = UNSET
        if ended is not None and ended.run == self._retained.run:
            states, steps = self._leftovers(ended.run, ended.attempt, _UNREAD_SECONDS)
            holds = RetainedRun(run=ended.run, attempt=ended.attempt, states=states, steps=steps)
        address6 = links.inner_address or second_address(options, self.membership.own_host, address) or UNSET
        return Hello(address=address, address6=address6, offer=offer, holds=holds, **limits)

    def _leftovers(
        self, run: str, attempt: int, seconds: float = 0.0
    ) -> tuple[tuple[RetainedStateItem, ...], tuple[Stepped, ...]]:
        """What is retained of ``run``, and the last reports of its attempt, at least those of the last ``seconds``."""
        ended = self._current.ended
        known = ended is not None and (ended.run, ended.attempt) == (run, attempt)
        reports = ended.reports if ended is not None and known else ()
        return retained_state_items(self._retained.retained_states(run)), newest_messages(reports, run, attempt, seconds)

    def _command_router(self) -> Router[str, None]:
        """The handlers of the broker's commands, all on the session's thread."""
        router = Router[str, None](Channel.COMMANDS)
        router.register(Beat, lambda _, command: None)  # the session has noted that the broker is alive
        router.register(Welcome, lambda _, command: self._welcome(command))
        router.register(Goodbye, lambda _, command: self.session.dismiss(command.cause))
        router.register(Dismissed, lambda _, command: self.stop())
        router.register(OwnerRequest, lambda _, command: self._on_owner(command))
        router.register(Fenced, self._fenced)
        router.register(Measure, lambda _, query: self._queries.measure(query))
        router.register(Probe, lambda _, query: self._queries.probe(query))
        router.register(Reach, lambda _, query: self._queries.reach(query))
        router.register(Observe, lambda _, order: self._services.links.punching.begin(order))
        router.register(Punch, lambda _, order: self._services.links.punching.go(order))
        router.register(Relay, lambda _, command: self._relay(command))
        router.register(Meet, lambda _, command: self._services.links.connect(command.addresses, command.relays))
        router.register(Prepare, lambda _, command: self._take_part(command))
        router.register(Help, lambda _, command: self._take_part(command))
        router.register(Abort, lambda _, command: self._end_attempt(command))
        router.register(Lend, lambda _, command: self._lend(command))
        router.register(Forget, lambda _, command: self._retained.forget(command.run))
        router.register(Start, lambda _, command: self._pass_on(command.run, command.attempt, lambda part: part.begin()))
        router.register(Stop, lambda _, command: self._pass_on(command.run, None, lambda part: part.stop()))
        router.register(HandOver, lambda _, command: self._pass_on(command.run, None, lambda part: part.drain()))
        router.register(commands.Helper, lambda _, c: self._pass_on(c.run, c.attempt, lambda part: part.on_command(c)))
        router.register(HelperGone, lambda _, c: self._pass_on(c.run, c.attempt, lambda part: part.on_command(c)))
        router.register(commands.Recheck, lambda _, c: self._pass_on(c.run, c.attempt, lambda part: part.on_command(c)))
        return router

    def _fenced(self, _: str, command: Fenced) -> None:
        self.session.fence()
        self._log(f"the broker has given this worker up: {command.cause}")

    def _lend(self, command: Lend) -> None:
        self._services.links.connect(command.addresses, command.relays)
        self._retained.settle(command.run, command.attempt, Continuation(command.live), command.addresses)

    def _pass_on(self, run: str, attempt: int | None, act: Callable[[RunPart], None]) -> None:
        """Let the current part ``act``, if it is of ``run`` and ``attempt`` (``None``: any); else the command comes too late."""
        part = self._current.part
        if part is not None and part.run == run and attempt in (None, part.attempt):
            act(part)

    def _welcome(self, command: Welcome) -> None:
        self.session.welcome(command.lease)
        name, offer, address = self.membership.name, self._device.offer, self._services.links.address
        offered = f"{Bytes(offer['memory']).written(3)}, {FlopsPerSecond(offer['speed'])}"
        self._log(
            f"{name}: joined the broker at {self.membership.client.address} with {offer['kind']} ({offered}); "
            f"{f'peers reach it at {address}' if address else 'it dials its peers'}"
        )
        if address:
            self._queries.describe_nat()
        congestion = congestion_control()
        if congestion:
            self._log(Detail(f"{name}: {congestion}"))
        for warning in command.warnings:
            self._log(f"{name}: warning: {warning}")

    def _relay(self, command: Relay) -> None:
        """Relay between pairs of peers for a run; without pairs the run is over, and the broker gets the relayed bytes."""
        if command.pairs:
            self._relays.allow(command.run, command.pairs)
            return
        carried = tuple(self._relays.end(command.run))
        with suppress(ConnectionLost):  # ``serve`` notices
            self.session.report(Relayed(run=command.run, carried=carried))

    def _take_part(self, command: Prepare | Help) -> None:
        """Begin a part in a run, in place of the current one."""
        self._end_part(TrainingError("replaced by another run"))
        over = self._current.over
        part: RunPart = (
            Helper(command, self._services, over) if isinstance(command, Help) else TrainingRun(command, self._services, over)
        )
        self._retained.keep_only(part.run)
        self._current.start(part)

    def _end_attempt(self, command: Abort) -> None:
        """The broker ends an attempt: end the part, then report what is retained of the run, if the broker asks for it."""
        run, part = command.run, self._current.part
        if part is not None and part.run == run:
            self._log(f"run {run}: this attempt has ended: {command.cause}")
            part.abort(TrainingError(command.cause), broker_knows=True, keep=command.keep)
        if command.keep:
            self._threads.spawn(f"drop-{run}", self._report_leftovers, run, command.attempt)

    def _report_leftovers(self, run: str, attempt: int) -> None:
        """Wait until the part has ended, and report what is retained (on a thread of its own)."""
        self._current.wait(run)
        with suppress(ConnectionLost):  # the broker is lost, and nobody waits for the report
            states, steps = self._leftovers(run, attempt)
            self.session.report(Dropped(run=run, attempt=attempt, states=states, steps=steps))

    def _end_part(self, error: FarflungError) -> None:
        part = self._current.end(error)
        if part is not None:
            self._services.storage.break_off()
            part.join(_LEAVE_SECONDS if self.session.leaving else _END_SECONDS)


def _free(options: WorkerOptions) -> float | None:
    """Free bytes of the fullest of the disks with the data, the cache and the scratch folders of jobs, in steps of 10 MB."""
    free = free_space((options.data, default_cache(), Path(tempfile.gettempdir())))
    return None if free is None else free - free % _DISK_STEP


def _heartbeat(options: WorkerOptions, current: CurrentPart) -> list[Message]:
    """What a heartbeat tells the broker."""
    free, waits = _free(options), current.waits()
    return [Beat(disk=UNSET if free is None else free), *([] if waits is None else [waits])]
