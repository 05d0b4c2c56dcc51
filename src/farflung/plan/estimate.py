"""Estimate: lowers a plan to the arrays that ``cost`` and ``schedules`` take, and collects what they say.

Equations (2), (3), (4) and (8) are forward only, as in the text; ``step_seconds`` is the whole step under the plan's schedule:
forwards, backwards, transfers of values and gradients after their codecs, exchanges of tied gradients, updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from farflung.cluster import Device, Topology
from farflung.cost import (
    ALLOCATOR,
    MemorySettings,
    OpCost,
    StageMemory,
    cast_factor,
    latency_seconds,
    memory_lack,
    optimizer_factor,
    pipeline_seconds,
    stage_memory,
    throughput,
)
from farflung.graph.cut import SubGraph
from farflung.graph.drift import drifting
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan.buckets import parts_of
from farflung.plan.hiding import hidden_share
from farflung.plan.link_memory import link_memory
from farflung.plan.model import Plan, Replica, Stage, SyncPlan
from farflung.plan.synchronization import made_strategy
from farflung.plan.tables import CostTables
from farflung.plan.traffic import LinkTraffic, gradient_bytes, sync_bytes, sync_specs, tied_exchanges, traffic
from farflung.schedules import (
    Exchange,
    Part,
    PipelineTimes,
    StepTimeline,
    TimedEdge,
    Transfer,
    part_of,
    time_schedule,
)
from farflung.sync import Sent, Traits
from farflung.sync.reductions import transfers

__all__ = [
    "UPDATE_FLOPS",
    "CostTables",
    "DeviceEstimate",
    "Estimate",
    "GradientExchange",
    "LinkEstimate",
    "StageEstimate",
    "divided",
    "estimate",
    "exchange_memory",
    "memory_of",
    "sync_copies",
]

#: Of a stage's memory what is there through a step.
_ALWAYS = ("parameters", "gradients", "optimizer", "serving", "exchange", "samples")
#: Operations per trainable parameter of one update (reads and writes dominate; small beside a backward).
UPDATE_FLOPS = {"sgd": 4.0, "adamw": 16.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEstimate:
    """One stage: seconds and FLOPs per micro-batch (the largest), bytes of memory by part.

    ``backward_flops`` and ``backward_seconds`` include the second forward of a stage that recomputes; ``weight_seconds`` is the
    part of ``backward_seconds`` that makes gradients of parameters. ``micro_batches``: (first, end) of those that it computes.
    ``again_bytes``: of its activations, what a second forward makes and its backward frees (0: it does not recompute).
    """

    index: int
    device: str
    start: int
    stop: int
    operators: int
    modules: str
    parameters: int
    forward_flops: float
    backward_flops: float
    forward_seconds: float
    backward_seconds: float
    weight_seconds: float
    update_seconds: float
    in_flight: int
    recompute: bool
    micro_batches: tuple[int, int]
    memory: Mapping[str, float]
    memory_bytes: float
    again_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEstimate:
    """Constraint (6) for one device: bytes needed by its stages, and its limit; busy seconds of a step."""

    device: str
    memory_bytes: float
    memory_limit: float
    busy_seconds: float

    @property
    def lack(self) -> float:
        """Bytes that are missing (0: it fits)."""
        return float(memory_lack(self.memory_bytes, self.memory_limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEstimate:
    """One pair of stages: bytes and seconds per micro-batch, dense and after the codec, forward and backward.

    ``relay``: through whom the two devices reach each other (empty: directly). All seconds are those of that way.
    """

    source: int
    target: int
    source_device: str
    target_device: str
    activations: str
    gradients: str
    forward_dense_bytes: float
    backward_dense_bytes: float
    forward_bytes: float
    backward_bytes: float
    forward_seconds: float
    backward_seconds: float
    dense_seconds: float
    relay: str = ""


@dataclass(frozen=True, slots=True)
class GradientExchange:
    """Bytes that the copy ``source`` (a number of ``Estimate.replicas``) sends the copy ``target``; ``hidden``: those of them
    that travel while it computes, so that nothing waits for them.

    ``after``: the micro-batches after whose backwards it sends so much each time; empty: once per step, after all of them. Those
    of a later ``round`` wait for what the earlier ones brought.
    """

    source: int
    target: int
    nbytes: float
    round: int
    after: tuple[int, ...] = ()
    hidden: float = 0.0

    @property
    def total_bytes(self) -> float:
        """In a step."""
        return self.nbytes * max(1, len(self.after))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan is predicted to cost. Seconds, bytes, FLOPs, samples per second.

    ``latency_seconds``: (2). ``pipeline_seconds``: (3). ``throughput``: (4). ``compressed_seconds``: (8), with each link's
    real wire factor. ``step_seconds``: one optimizer step from the timed dry-run. ``exchange_bytes``: gradients of tied
    parameters between devices and all between replicas, per step (on average over a period); ``replica_bytes``: between replicas,
    which send each other ``exchanged``. ``stages``: each on its home; ``replicas``: all copies of all stages.
    """

    stages: tuple[StageEstimate, ...]
    replicas: tuple[StageEstimate, ...]
    devices: tuple[DeviceEstimate, ...]
    links: tuple[LinkEstimate, ...]
    latency_seconds: float
    pipeline_seconds: float
    throughput: float
    compressed_seconds: float
    step_seconds: float
    step_throughput: float
    exchange_bytes: float
    replica_bytes: float
    exchanged: str
    exchanges: tuple[GradientExchange, ...]
    bound_by: str
    bound_share: float

    @property
    def feasible(self) -> bool:
        """Whether every device holds what is placed on it."""
        return all(device.lack == 0 for device in self.devices)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        body = asdict(self)
        body["feasible"] = self.feasible
        return body


def memory_of(
    cost: OpCost,
    stage: Stage,
    sub: SubGraph,
    job: JobSpec,
    in_flight_count: int,
    recompute: bool | None = None,
) -> StageMemory:
    """Memory of one stage (arrays of length 1), with ``recompute`` as in the stage or as given."""
    received = sum(edge.forward_bytes for edge in sub.requires_activations) * cost.part
    sent = {edge.value: edge.forward_bytes * cost.part for edge in sub.sends_activations}
    again = stage.recompute if recompute is None else recompute
    clones = sum(sub.graph.state[name].spec.nbytes for name in drifting(sub)) if again else 0
    settings = MemorySettings(
        optimizer=optimizer_factor(job.optimizer.name, job.optimizer.momentum),
        in_flight=in_flight_count,
        casts=cast_factor(job.precision),
        recompute=again,
        clones=float(clones),
        slices=max((held.end - held.first for held in stage.replicas), default=job.micro_batches) if job.plan.helpers else 0,
        delayed=job.optimizer.delayed,
    )
    arrays = np.array([received], dtype=np.float64), np.array([sum(sent.values())], dtype=np.float64)
    return stage_memory(cost, stage.start, [stage.stop], settings, *arrays)


def estimate(
    graph: Graph,
    plan: Plan,
    topology: Topology,
    job: JobSpec | None = None,
    *,
    subgraphs: Sequence[SubGraph] | None = None,
    tables: CostTables | None = None,
) -> Estimate:
    """What ``plan`` is predicted to cost on ``topology``; does not refuse a plan that does not fit (see ``feasible``).

    ``graph`` is captured for the largest micro-batch of the job (without one: of the plan); smaller ones take proportionally
    less. Where the plan divides the job's samples otherwise, its division counts.

    Raises:
        InputError: the topology lacks a device of the plan, or a codec or schedule is unknown.
        GraphError: the stages do not tile the graph.
    """
    job = job or JobSpec(micro_batch_sizes=plan.micro_batch_sizes)
    tables = tables or CostTables.of(graph)
    if plan.micro_batch_sizes != job.micro_batch_sizes:
        tables = tables.scaled(max(plan.micro_batch_sizes) / max(job.micro_batch_sizes))
        job = divided(job, plan.micro_batch_sizes)
    pieces = tables.cutter.cut(plan.bounds) if subgraphs is None else subgraphs
    count = len(plan.micro_batch_sizes)
    units = _units(plan)
    held = link_memory(plan, pieces, job)
    items = (
        _Item(plan.stages[u.stage], pieces[u.stage], u, tables, plan.sync, held.get((u.stage, u.replica.device), 0.0))
        for u in units
    )
    replicas = tuple(_stage(graph, topology, job, item) for item in items)
    stages = tuple(found for unit, found in zip(units, replicas, strict=True) if unit.home)
    flows = traffic(plan, pieces, topology, tables.part)
    exchanges = _exchanges(tables, plan, replicas, pieces, job)
    times = _times(plan, topology, _Lowered(units, replicas, flows, exchanges))
    timeline = time_schedule([unit.part.prepared for unit in units], times)
    links = tuple(_link(plan, topology, flow) for flow in flows)
    compute, dense, wire = _device_sums(plan, replicas, links)
    batch = sum(plan.micro_batch_sizes)
    pipelined = pipeline_seconds(compute, dense, count)
    bound, share = _bound(topology, timeline)
    leaving, between = _exchanged(exchanges, replicas)
    return Estimate(
        stages=stages,
        replicas=replicas,
        devices=_devices(plan, topology, replicas, timeline),
        links=links,
        latency_seconds=latency_seconds(compute, dense),
        pipeline_seconds=pipelined,
        throughput=throughput(batch, pipelined),
        compressed_seconds=pipeline_seconds(compute, wire, count),
        step_seconds=timeline.seconds,
        step_throughput=throughput(batch, timeline.seconds),
        exchange_bytes=leaving,
        replica_bytes=between,
        exchanged="gradients" if plan.sync is None else str(made_strategy(plan.sync).traits.sent.value),
        exchanges=tuple(exchanges),
        bound_by=bound,
        bound_share=share,
    )


def divided(job: JobSpec, sizes: tuple[int, ...]) -> JobSpec:
    """``job`` with its samples divided into micro-batches of ``sizes``."""
    virtual = job.virtual_replicas
    fewer = None if virtual is None else min(virtual, len(sizes))
    return job.model_copy(update={"micro_batch_sizes": sizes, "virtual_replicas": fewer})


@dataclass(frozen=True, slots=True)
class _Unit:
    """One copy of a stage."""

    stage: int
    replica: Replica
    home: bool
    part: Part


@dataclass(frozen=True, slots=True)
class _Item:
    stage: Stage
    piece: SubGraph
    unit: _Unit
    tables: CostTables
    sync: SyncPlan | None
    samples: float


@dataclass(frozen=True, slots=True)
class _Lowered:
    units: Sequence[_Unit]
    replicas: Sequence[StageEstimate]
    flows: Sequence[LinkTraffic]
    exchanges: Sequence[GradientExchange]


def _units(plan: Plan) -> list[_Unit]:
    stages, count = len(plan.stages), len(plan.micro_batch_sizes)
    return [
        _Unit(stage, replica, number == 0, part_of(plan.schedule, stages, count, stage, (replica.first, replica.end)))
        for stage in range(stages)
        for number, replica in enumerate(plan.replicas_of(stage))
    ]


def _exchanges(
    tables: CostTables, plan: Plan, replicas: Sequence[StageEstimate], pieces: Sequence[SubGraph], job: JobSpec
) -> list[GradientExchange]:
    """Replicas send parts to the servers of their stage, these the totals back; then tied uses go to the other stages."""
    graph = tables.graph
    copies: dict[int, list[int]] = {}
    for number, replica in enumerate(replicas):
        copies.setdefault(replica.index, []).append(number)
    found: list[GradientExchange] = []
    traits = None if plan.sync is None else made_strategy(plan.sync).traits
    for stage, held in copies.items():
        if traits is not None:  # once per period
            shapes = [spec.shape for spec in sync_specs(graph, pieces[stage], job.optimizer)]
            each = sync_bytes(traits, shapes, len(held))
            share = hidden_share(plan, graph, job, stage, [_computing(replicas[unit], plan) for unit in held])
            found += [GradientExchange(a, b, each, 0, hidden=share * each) for a in held for b in held if a != b]
            continue
        adds = plan.stages[stage].adds
        if adds is not None:
            size = gradient_bytes(graph, pieces[stage])
            sent = transfers(adds, len(held))
            found += [GradientExchange(held[t.source], held[t.target], size * t.part, t.round) for t in sent]
            continue
        if len(held) > 1:
            served = tables.served(pieces[stage], job.optimizer, len(held))
            found += _served(held, plan, stage, served, job)
    if traits is not None and traits.sent is Sent.SCALARS:  # it has no gradients
        return found
    last = max((exchange.round for exchange in found), default=0) + 1
    for source, target, size in tied_exchanges(graph, pieces):
        pairs = _tellers(replicas, copies[source], copies[target], alone=traits is not None)
        found += [GradientExchange(here, there, size, last) for here, there in pairs]
    return found


def _computing(stage: StageEstimate, plan: Plan) -> float:
    """Seconds of all forwards and backwards of a copy in a step."""
    sizes = plan.micro_batch_sizes
    return sum(sizes[slice(*stage.micro_batches)]) / max(sizes) * (stage.forward_seconds + stage.backward_seconds)


def _tellers(
    replicas: Sequence[StageEstimate], held: Sequence[int], told: Sequence[int], *, alone: bool
) -> Iterator[tuple[int, int]]:
    """Which of the copies ``held`` gives its gradient of a tied parameter to each of ``told``: that of the same pipeline where
    they train ``alone``, else that on the same device, or the first."""
    if alone:
        yield from zip(held, told, strict=False)
        return
    for there in told:
        here = (index for index in held if replicas[index].device == replicas[there].device)
        yield next(here, held[0]), there


def _exchanged(exchanges: Sequence[GradientExchange], replicas: Sequence[StageEstimate]) -> tuple[float, float]:
    """Bytes of what leaves its device, and of what replicas of a stage send each other."""
    ends = [(sent.total_bytes, replicas[sent.source], replicas[sent.target]) for sent in exchanges]
    leaving = sum(nbytes for nbytes, here, there in ends if here.device != there.device)
    return float(leaving), float(sum(nbytes for nbytes, here, there in ends if here.index == there.index))


def _served(held: Sequence[int], plan: Plan, stage: int, served: Sequence[int], job: JobSpec) -> Iterator[GradientExchange]:
    """The exact exchange: every replica sends its parts of what the others serve as soon as it has them, and gets the totals."""
    parts = parts_of(plan.replicas_of(stage), job.virtual_ends)
    for source, ends in zip(held, parts, strict=True):
        for server, nbytes in zip(held, served, strict=True):
            if source != server and nbytes:
                yield GradientExchange(source, server, nbytes, 0, tuple(end - 1 for end in ends))
                yield GradientExchange(server, source, nbytes, 1)


def _stage(graph: Graph, topology: Topology, job: JobSpec, item: _Item) -> StageEstimate:
    stage, sub, tables = item.stage, item.piece, item.tables
    flying = item.unit.part.in_flight
    device = topology.device(item.unit.replica.device)
    cost = tables.table(device.kind)
    memory = memory_of(cost, stage, sub, job, flying)
    sums = tables.sums(device.kind, sub)
    forward, forward_calls = sums.forward, sums.forward_calls
    backward = sums.backward + (forward if stage.recompute else 0.0)
    backward_calls = sums.backward_calls + (forward_calls if stage.recompute else 0.0)
    if item.sync is not None and made_strategy(item.sync).traits.sent is Sent.SCALARS:
        backward, backward_calls = forward, forward_calls  # a second forward takes its place
    parts = memory.parts()
    if stage.replicas:
        parts = {**parts, "exchange": exchange_memory(tables, stage, sub, job, item.sync)}
    if item.samples:
        parts = {**parts, "samples": item.samples}
    return StageEstimate(
        index=stage.index,
        device=device.name,
        start=stage.start,
        stop=stage.stop,
        operators=stage.stop - stage.start,
        modules=sums.modules,
        parameters=sums.parameters,
        forward_flops=forward,
        backward_flops=backward,
        forward_seconds=_seconds(device, forward, forward_calls),
        backward_seconds=_seconds(device, backward, backward_calls),
        weight_seconds=sums.weight / device.achieved,
        update_seconds=_seconds(device, sums.trained * UPDATE_FLOPS[job.optimizer.name], sums.trained_tensors),
        in_flight=flying,
        recompute=stage.recompute,
        micro_batches=(item.unit.replica.first, item.unit.replica.end),
        memory=parts,
        memory_bytes=float(memory.total[0]) + parts.get("exchange", 0.0) + item.samples,
        again_bytes=float(memory_of(cost, stage, sub, job, 0).activations[0]) if stage.recompute else 0.0,
    )


def _seconds(device: Device, flops: float, calls: float) -> float:
    """FusionLLM section 3.5, with what each of the ``calls`` operators costs beside its FLOPs (``cost.fit``)."""
    return flops / device.achieved + calls * device.overhead


def exchange_memory(tables: CostTables, stage: Stage, sub: SubGraph, job: JobSpec, sync: SyncPlan | None) -> float:
    """The totals of all gradients before they are put in place, and the parts of others that wait for their turn.

    With a sync strategy: its registers, and what all members sent, or where only their mean counts, a copy of what is not
    averaged in place.
    """
    graph = tables.graph
    if sync is not None:
        traits = made_strategy(sync).traits
        return sum(spec.nbytes for spec in sync_specs(graph, sub, job.optimizer)) * sync_copies(traits, len(stage.replicas))
    if stage.adds is not None:
        return gradient_bytes(graph, sub) * (1.0 + stage.adds.most_waiting(len(stage.replicas)))
    others = sum(end > stage.replicas[0].end for end in job.virtual_ends)
    return gradient_bytes(graph, sub) + others * max(tables.served(sub, job.optimizer, len(stage.devices)))


def sync_copies(traits: Traits, members: int) -> float:
    """Memory that exchanges of ``members`` replicas and the registers take, in copies of the parameters."""
    summed = 0.05 if traits.sent is Sent.PARAMETERS else 1.05
    one_by_one = traits.sent is not Sent.SCALARS and not traits.adds_up
    return (members + 1.0 if one_by_one else summed) + len(traits.registers) + traits.memory_copies(members)


def _transfer(topology: Topology, source: str, target: str, nbytes: float) -> Transfer:
    i, j = topology.index(source), topology.index(target)
    return Transfer(float(topology.alpha[i, j]), float(nbytes / topology.beta[i, j]) if i != j else 0.0, float(nbytes))


def _times(plan: Plan, topology: Topology, lowered: _Lowered) -> PipelineTimes:
    units, replicas = lowered.units, lowered.replicas
    names = [unit.replica.device for unit in units]
    edges = []
    for flow in lowered.flows:
        for i in (i for i, unit in enumerate(units) if unit.stage == flow.source):
            for j in (j for j, unit in enumerate(units) if unit.stage == flow.target):
                back = _transfer(topology, names[j], names[i], flow.backward_bytes) if flow.backward_dense else None
                forth = _transfer(topology, names[i], names[j], flow.forward_bytes)
                edges.append(TimedEdge(source=i, target=j, forward=forth, backward=back))
    largest = max(plan.micro_batch_sizes)
    taken = [plan.steps_taken(stage.index, stage.device) for stage in replicas]  # on average over a period
    return PipelineTimes(
        forward=[stage.forward_seconds * part for stage, part in zip(replicas, taken, strict=True)],
        backward=[stage.backward_seconds * part for stage, part in zip(replicas, taken, strict=True)],
        device=[topology.index(name) for name in names],
        edges=edges,
        exchanges=[
            Exchange(
                source=sent.source,
                target=sent.target,
                transfer=_transfer(topology, names[sent.source], names[sent.target], sent.nbytes - sent.hidden),
                round=sent.round,
                after=sent.after,
            )
            for sent in lowered.exchanges
        ],
        update=[stage.update_seconds for stage in replicas],
        weight=[stage.weight_seconds for stage in replicas],
        scale=[size / largest for size in plan.micro_batch_sizes],
        share=[unit.replica.micro_batches for unit in units] if plan.replicated else (),
        hosts=topology.hosts,
    )


def _link(plan: Plan, topology: Topology, flow: LinkTraffic) -> LinkEstimate:
    here, there = plan.stages[flow.source].device, plan.stages[flow.target].device
    link = plan.link[flow.source, flow.target]
    return LinkEstimate(
        source=flow.source,
        target=flow.target,
        source_device=here,
        target_device=there,
        activations=str(link.activations),
        gradients=str(link.gradients),
        forward_dense_bytes=flow.forward_dense,
        backward_dense_bytes=flow.backward_dense,
        forward_bytes=flow.forward_bytes,
        backward_bytes=flow.backward_bytes,
        forward_seconds=topology.seconds(here, there, flow.forward_bytes),
        backward_seconds=topology.seconds(there, here, flow.backward_bytes),
        dense_seconds=topology.seconds(here, there, flow.forward_dense),
        relay=topology.relay(here, there),
    )


def _device_sums(
    plan: Plan, stages: Sequence[StageEstimate], links: Sequence[LinkEstimate]
) -> tuple[list[float], list[float], list[float]]:
    """C_p, R_p and R_p after the codecs for each device of the plan."""
    compute, dense, wire = (dict.fromkeys(plan.devices, 0.0) for _ in range(3))
    batch = sum(plan.micro_batch_sizes)
    for stage in stages:  # a copy that computes a part of the samples counts with this part
        part = sum(plan.micro_batch_sizes[slice(*stage.micro_batches)]) / batch
        compute[stage.device] += stage.forward_seconds * part
    for link in links:
        dense[link.target_device] += link.dense_seconds
        wire[link.target_device] += link.forward_seconds
    return list(compute.values()), list(dense.values()), list(wire.values())


def _together(stages: Sequence[StageEstimate]) -> float:
    """Bytes of the stages of one device: it computes one action at a time, so one second forward at a time is alive."""
    whole = sum(stage.memory_bytes for stage in stages)
    again = [stage.again_bytes for stage in stages if stage.again_bytes]
    if len(again) < 2:
        return whole
    always = sum(stage.memory[name] for stage in stages for name in _ALWAYS if name in stage.memory)
    update = always + ALLOCATOR * sum(stage.memory["update"] for stage in stages)
    return max(whole - ALLOCATOR * (sum(again) - max(again)), update)


def _devices(
    plan: Plan, topology: Topology, stages: Sequence[StageEstimate], timeline: StepTimeline
) -> tuple[DeviceEstimate, ...]:
    return tuple(
        DeviceEstimate(
            device=name,
            memory_bytes=_together([stage for stage in stages if stage.device == name]),
            memory_limit=float(topology.device(name).memory),
            busy_seconds=timeline.device_busy[topology.index(name)],
        )
        for name in plan.devices
    )


def _bound(topology: Topology, timeline: StepTimeline) -> tuple[str, float]:
    """What is busy longest, and for which share of the step."""
    device, link = timeline.critical_device, timeline.critical_link
    busy, text = timeline.device_busy[device], f"computing on {topology.names[device]}"
    if link is not None and timeline.link_busy[link] > busy:
        ends = topology.names[link[0]], topology.names[link[1]]
        through = f" (through {topology.relay(*ends)})" if topology.relay(*ends) else ""
        busy, text = timeline.link_busy[link], f"the link {ends[0]} -> {ends[1]}{through}"
    return text, busy / timeline.seconds if timeline.seconds > 0 else 0.0
