"""From a job and the machines that are there to a plan with its estimate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from farflung.broker.links.reachability import Reaching
from farflung.broker.links.table import LinkTable
from farflung.cluster import Device, Topology, with_relays
from farflung.cluster.device import DeviceKind
from farflung.cluster.topology import Pair
from farflung.errors import InputError, PlanError
from farflung.graph.ir import Graph
from farflung.job.check import decided
from farflung.job.spec import CodecSpec, JobSpec, LimitSpec, SyncSpec
from farflung.messages.submission import Bundle
from farflung.plan import Estimate, Plan, check_memory, check_plan, estimate, explain
from farflung.plan.allowed import allowed_devices
from farflung.plan.document import plan_to_json
from farflung.plan.fault_tolerance.protection import Protection, protect
from farflung.plan.reduction_choice import adding_lines
from farflung.plan.report.helper_traffic import helped_lines
from farflung.plan.report.summary import listed, plan_line
from farflung.planners import Constrained, Evaluate, Judged, Planner, get_planner
from farflung.planners.finish import Problem
from farflung.protocol.broker import Member
from farflung.protocol.events import Offer
from farflung.protocol.hosts import host_capacity, host_names
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds

__all__ = ["Judge", "Planned", "RelayUse", "cluster_of", "devices_of", "linked", "plan_run", "strangers_of"]


#: Seconds per operator that a device may have.
_MOST_OVERHEAD = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayUse:
    """``pair`` reaches each other through ``relays[0]``; the others stand by. Seconds and bytes per second of both directions."""

    pair: tuple[str, str]
    relays: tuple[str, ...]
    latency: tuple[Seconds, Seconds]
    bandwidth: tuple[BytesPerSecond, BytesPerSecond]

    @classmethod
    def of(cls, topology: Topology, pair: tuple[str, str]) -> RelayUse:
        """What ``topology`` says of ``pair``."""
        ways = [topology.link(*ends) for ends in (pair, pair[::-1])]
        return cls(
            pair=pair,
            relays=topology.via[pair],
            latency=(ways[0].latency, ways[1].latency),
            bandwidth=(ways[0].bandwidth, ways[1].bandwidth),
        )

    def __str__(self) -> str:
        """For people, in one line."""
        a, b = self.pair
        ways = [f"{rate}, {late} {way}" for rate, late, way in zip(self.bandwidth, self.latency, ("there", "back"), strict=True)]
        backup = f"; backup: {', '.join(self.relays[1:])}" if self.relays[1:] else ""
        return f"{a} and {b} cannot connect directly: their traffic goes through {self.relays[0]} ({'; '.join(ways)}{backup})"


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan, the topology that it stands on, and what it is predicted to cost."""

    plan: Plan
    topology: Topology
    estimate: Estimate
    codec: CodecSpec
    #: What the job asks for.
    workers: int | None = None
    limits: LimitSpec
    #: Into how many stages the model can be cut at most.
    parts: int
    #: The job with what it left open (None: it leaves nothing open).
    decided: JobSpec | None = None
    #: Workers that are there, but not in the submitted topology.
    strangers: tuple[str, ...] = ()
    #: How replicas sum where the job leaves the order open, as lines.
    sums: tuple[str, ...] = ()
    #: What helpers are sent, as lines.
    helped: tuple[str, ...] = ()

    @property
    def plan_json(self) -> str:
        """The plan as a document."""
        return plan_to_json(self.plan)

    def protection(self, job: JobSpec) -> Protection:
        """Who keeps copies of whose states."""
        return protect(self.plan, self.topology, job, self.estimate)

    @property
    def summary(self) -> str:
        """Stages, devices, predicted step and bottleneck in one line; unused devices are named, with a short reason."""
        unused = [f"; unused: {listed(names)} ({why.partition(';')[0]})" for names, why in self._unused()]
        return plan_line(self.plan, self.estimate) + "".join(unused)

    @property
    def explanation(self) -> str:
        """The whole estimate as tables, and the notes."""
        return "\n".join([explain(self.estimate), *self.notes])

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know beside the estimate, as lines: decisions, dense links, helpers, relays, hosts, devices."""
        lines = [
            *self._decisions(),
            *self._dense_links(),
            *self.sums,
            *self.helped,
            *map(str, self.relays),
            *self._shared_hosts(),
        ]
        return (*lines, *(f"unused: {listed(names)} ({why})" for names, why in self._unused()))

    def _unused(self) -> list[tuple[Sequence[str], str]]:
        """The devices without a stage, and why."""
        allowed = {device.name for device in allowed_devices(self.topology, self.limits)}
        idle = [name for name in self.topology.names if name not in self.plan.devices]
        groups: list[tuple[Sequence[str], str]] = [
            ([name for name in idle if name in allowed], self._why_idle()),
            ([name for name in idle if name not in allowed], "excluded by the limits of the job"),
            (self.strangers, "missing in the submitted topology; join under a name of the topology"),
        ]
        return [(names, why) for names, why in groups if names]

    @property
    def relays(self) -> tuple[RelayUse, ...]:
        """The pairs of devices of the plan that reach each other through another one."""
        used = set(self.plan.devices)
        return tuple(
            RelayUse.of(self.topology, pair) for pair, relays in sorted(self.topology.via.items()) if relays and set(pair) <= used
        )

    def _shared_hosts(self) -> Iterator[str]:
        """The devices of the plan that slow each other down."""
        for capacity, members in self.topology.hosts:
            names = [name for name in (self.topology.names[i] for i in members) if name in self.plan.devices]
            if len(names) > capacity:
                yield f"{', '.join(names)} share the cores of one host; {capacity:.1f} of them reach full speed at the same time"

    def _decisions(self) -> list[str]:
        """What the planner decided of what the job left open, as a line for the job file."""
        job = self.decided
        if job is None:
            return []
        lines = [f"micro_batch_sizes = {list(job.micro_batch_sizes)}"]
        if job.sync.strategy != "exact":
            lines.append(f'[sync] strategy = "{job.sync.strategy}", [plan] replicas = {len(self.plan.stages[0].devices)}')
        return ["decided by the planner (write it into the job in place of [open] to fix it): " + "; ".join(lines)]

    def _why_idle(self) -> str:
        planner, used = self.plan.planner, len(self.plan.devices)
        if self.workers is not None and used >= self.workers:
            return f"the job sets workers = {self.workers}"
        fewest = min(len(stage.devices) for stage in self.plan.stages)
        if fewest > 1 and len(self.topology) - used < fewest:
            return f"{fewest} idle devices are needed for one more stage with {fewest} replicas"
        stages = len(self.plan.stages)
        if stages >= self.parts:
            return "the model cannot be cut into more stages"
        if stages == self.limits.stages:
            return f"the job sets limits.stages = {stages}"
        return f'{planner} predicts no shorter step with more devices; plan.planner = "equal_number" uses all'

    def _dense_links(self) -> list[str]:
        """The links that stay dense because the job wants its codec on slow links only."""
        if self.codec.where == "all" or self.codec.name == "identity":
            return []
        links = [link for link in self.estimate.links if link.source_device != link.target_device]
        dense = [f"{link.source} -> {link.target}" for link in links if link.activations == link.gradients == "identity"]
        if not dense:
            return ["codec.where = slow: every link is slow enough to use the codec"]
        return [f"codec.where = slow: without codec, because the transfers do not delay the step: {listed(dense)}"]


#: Makes the judge of the plans of one graph on one topology under one job; ``api`` has the simulator's.
Judge = Callable[[Graph, Topology, JobSpec], Evaluate]


def plan_run(
    bundle: Bundle,
    topology: Topology,
    judge: Judge | None = None,
    planner: Planner | None = None,
    running: Plan | None = None,
) -> Planned:
    """Plan ``bundle`` for ``topology`` with the job's planner and check the result.

    ``judge``: who predicts the step time, and chooses where the planner compares plans (default: the timed dry-run).
    ``planner``: takes the place of the job's. ``running``: the plan that ran until now; what moves must be worth it.

    Raises:
        PlanError: nothing fits; the text says which device lacks how much.
    """
    everybody = topology
    if bundle.job.plan.helpers:
        topology = _with_stages(bundle.graph, topology)
    planner = planner or get_planner(bundle.job.plan.planner)
    if not isinstance(planner, Constrained):
        planner = Constrained(planner, running=running, advise=False)
    evaluate = judge(bundle.graph, topology, bundle.job) if judge else None
    if evaluate is not None and isinstance(planner, Judged):
        planner = planner.judged_by(evaluate)
    plan = planner.plan(bundle.graph, topology, job=bundle.job)
    job = _decided(bundle.job, plan)
    pieces = check_plan(plan, bundle.graph, topology, job)
    predicted = evaluate(plan) if evaluate else estimate(bundle.graph, plan, topology, bundle.job, subgraphs=pieces)
    check_memory(predicted, bundle.job)
    chosen = job if bundle.job.open.anything else None
    return Planned(
        plan=plan,
        topology=topology,
        estimate=predicted,
        codec=job.codec,
        workers=job.workers,
        limits=job.limits,
        parts=len(Problem.of(bundle.graph, topology, job).runs),
        decided=chosen,
        sums=tuple(adding_lines(plan, bundle.graph, pieces, topology)),
        helped=tuple(helped_lines(plan, bundle.graph, pieces, everybody, job, predicted.step_seconds)),
    )


def _with_stages(graph: Graph, topology: Topology) -> Topology:
    """The devices that get stages where unreliable ones only help.

    Raises:
        PlanError: there is none, or the model can't be helped: a state goes from micro-batch to micro-batch.
    """
    if graph.state_updates:
        raise PlanError(
            f"plan.helpers: the model updates {graph.state_updates[0][0]!r} in its forward (batch norm), micro-batch after "
            "micro-batch, so its slices can't go to several devices; use a norm without running statistics, or set "
            "plan.helpers = false"
        )
    reliable = [device.name for device in topology.devices if device.reliable]
    if not reliable:
        raise PlanError(
            f"plan.helpers gives stages to reliable devices only, and none of the {len(topology.names)} is; mark one with "
            "reliable = true, or set plan.helpers = false"
        )
    return topology if len(reliable) == len(topology.names) else topology.select(reliable)


def _decided(job: JobSpec, plan: Plan) -> JobSpec:
    """The job with what it left open as the plan has it."""
    if not job.open.anything:
        return job
    name = "exact" if plan.sync is None else plan.sync.strategy
    return decided(job, plan.micro_batch_sizes, job.sync if name == job.sync.strategy else SyncSpec(strategy=name))


def devices_of(members: Sequence[Member], threads: int = 1) -> dict[str, Device]:
    """The joined workers as devices, by name; memory and speed as the workers measured, and slower where their steps say so.

    Workers on one host share its cores; ``threads``: those of each, for hosts that were not measured.
    """
    shared = host_names(members)
    capacity = {name: host_capacity(group, threads) for name, (_, group) in shared.items()}
    figures = {member.name: _figures(member, shared) for member in members}
    return {
        member.name: Device(
            name=member.name,
            memory=Bytes(member.offer.memory),
            speed=FlopsPerSecond(figures[member.name].speed / figures[member.name].factor),
            speed_factor=figures[member.name].factor / member.drift,
            overhead=_overhead(figures[member.name], member.drift),
            convolution=figures[member.name].convolution,
            kind=_kind(member.offer.kind),
            reliable=member.offer.reliable,
            host=shared[member.name][0] if member.name in shared else "",
            host_capacity=capacity.get(member.name, math.inf),
        )
        for member in members
    }


def _kind(offered: str) -> DeviceKind:
    return next((kind for kind in get_args(DeviceKind) if kind == offered), "cpu")


def _figures(member: Member, shared: Mapping[str, tuple[str, Sequence[Member]]]) -> Offer:
    """The offer with the speed of ``member``: its own, or that of a busy worker on the same processors while it is idle."""
    busy = [
        one.offer
        for one in shared.get(member.name, ("", ()))[1]
        if one.run is not None and one.offer.processors == member.offer.processors and one.offer.speed > member.offer.speed
    ]
    return member.offer if member.run is not None else max([member.offer, *busy], key=lambda offer: offer.speed)


def _overhead(offer: Offer, drift: float) -> Seconds:
    return Seconds(min(offer.overhead * drift, max(offer.overhead, _MOST_OVERHEAD)))


def strangers_of(bundle: Bundle, members: Sequence[Member]) -> list[str]:
    """Those of ``members`` that the submitted topology does not have."""
    return [] if bundle.topology is None else [one.name for one in members if one.name not in bundle.topology.names]


def cluster_of(
    bundle: Bundle, members: Sequence[Member], links: LinkTable | None = None, reaching: Reaching | None = None
) -> Topology:
    """The joined workers as a topology: links from the submitted topology (by name), memory and speed as the workers measured.

    Without a submitted topology the links are those that were measured; what nobody measured counts as 1 Gbit/s with 1 ms.
    Links that have become slow in training count as slow. Pairs that can't reach each other by what ``reaching`` finds out are
    linked through relays. ``strangers_of`` the topology are left out.

    Raises:
        InputError: without those there are fewer than the job asks for, or nobody.
    """
    strangers = strangers_of(bundle, members)
    if bundle.topology is not None and strangers:
        if len(members) - len(strangers) < (bundle.job.workers or 1):
            known = ", ".join(bundle.topology.names)
            raise InputError(
                f"worker {strangers[0]!r} is not in the submitted topology, which has {known}; "
                "join under one of these names (farflung join --name), or submit without --topology"
            )
        members = [member for member in members if member.name not in strangers]
    apart = frozenset() if reaching is None else reaching.apart(members)
    direct = _directly(bundle, members, links, apart)
    whole = direct if reaching is None else linked(direct, members, reaching, links if bundle.topology is None else None)
    return whole if links is None else links.drifts.apply(whole)


def linked(topology: Topology, members: Sequence[Member], reaching: Reaching, links: LinkTable | None) -> Topology:
    """``topology`` with NATs and relays as ``reaching`` found them. ``links``: what was measured of it, through relays too."""
    apart, nats = reaching.apart(members), reaching.nats(members)
    able = [member.name for member in members if member.offer.relay and not nats[member.name]]
    known = {} if links is None else links.relays(apart)
    named = topology.with_devices([replace(device, nat=nats[device.name]) for device in topology.devices])
    return with_relays(named, apart, able, reaching.can_dial, known)


def _directly(bundle: Bundle, members: Sequence[Member], links: LinkTable | None, apart: frozenset[Pair]) -> Topology:
    devices = devices_of(members, bundle.job.threads)
    measured = None if links is None else links.topology(list(devices.values()), apart=apart)
    if bundle.topology is None and measured is not None:
        return measured
    if bundle.topology is None:
        count = len(members)
        blank = Topology.preset(f"homogeneous-{count}")
        renamed = blank.rename(dict(zip(blank.names, devices, strict=True)))
        return renamed.with_devices([devices[name] for name in renamed.names])
    chosen = bundle.topology.select([name for name in bundle.topology.names if name in devices])
    return chosen.with_devices([_measured(known, devices[known.name]) for known in chosen.devices])


def _measured(known: Device, offered: Device) -> Device:
    memory = Bytes(min(known.memory, offered.memory))
    return replace(
        known,
        memory=memory,
        reliable=known.reliable and offered.reliable,
        speed=offered.speed,
        speed_factor=offered.speed_factor,
        overhead=offered.overhead,
        convolution=offered.convolution,
        kind=offered.kind,
        host=offered.host,
        host_capacity=offered.host_capacity,
    )
