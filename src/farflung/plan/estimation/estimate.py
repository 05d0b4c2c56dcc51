"""Estimate: lowers a plan to the arrays that ``cost`` and ``schedules`` take, and collects what they say.

Equations (2), (3), (4) and (8) are forward only, as in the text; ``step_seconds`` is the whole step under the plan's schedule:
forwards, backwards, transfers of values and gradients after their codecs, exchanges of tied gradients, updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from farflung.cluster import Device, Topology
from farflung.cost import (
    ALLOCATOR,
    latency_seconds,
    pipeline_seconds,
    throughput,
)
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph
from farflung.graph.parameter_blocks import parameters_of
from farflung.job.spec import JobSpec
from farflung.optim import file_bytes, state_bytes, update_flops
from farflung.plan.estimation.cost_tables import CostTables
from farflung.plan.estimation.gradient_exchanges import exchanged_bytes, gradient_exchanges
from farflung.plan.estimation.results import (
    DeviceEstimate,
    Estimate,
    GradientExchange,
    LinkEstimate,
    SavingEstimate,
    StageEstimate,
)
from farflung.plan.estimation.site_costs import divides, rank_seconds, site_memory, site_pace, site_view, together
from farflung.plan.estimation.stage_memory import exchange_memory, memory_of
from farflung.plan.estimation.tensor_costs import tensor_costs
from farflung.plan.link_memory import link_memory
from farflung.plan.model import Plan, Replica, Stage, SyncPlan
from farflung.plan.synchronization import made_strategy
from farflung.plan.traffic import LinkTraffic, traffic
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
from farflung.sync import Sent

#: Of a stage's memory what is there through a step.
_ALWAYS = ("parameters", "gradients", "optimizer", "serving", "exchange", "samples")


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
    other = partial(estimate, graph, topology=topology, job=job, subgraphs=subgraphs, tables=tables)
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
    exchanges = gradient_exchanges(tables, plan, replicas, pieces, job)
    times = _times(plan, topology, _Lowered(units, replicas, flows, exchanges))
    timeline = time_schedule([unit.part.prepared for unit in units], times)
    links = tuple(_link(plan, topology, flow) for flow in flows)
    compute, dense, wire = _device_sums(plan, replicas, links)
    batch = sum(plan.micro_batch_sizes)
    pipelined = pipeline_seconds(compute, dense, count)
    bound, share = _bound(topology, timeline)
    leaving, between = exchanged_bytes(exchanges, replicas)
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
        offload=_saving(plan, "offload", sum(stage.disk_bytes for stage in replicas), timeline.seconds, other),
        shard=_saving(plan, "shard", sum(stage.sharded_bytes for stage in replicas), timeline.seconds, other),
    )


def _saving(
    plan: Plan, key: Literal["offload", "shard"], nbytes: float, seconds: float, other: Callable[[Plan], Estimate]
) -> SavingEstimate | None:
    """What the setting ``key`` of the plan's stages costs, which concerns ``nbytes`` (None: nothing has it)."""
    if not nbytes:
        return None
    without = other(replace(plan, stages=tuple(replace(stage, **{key: "none"}) for stage in plan.stages)))  # type: ignore[arg-type]
    factor = seconds / without.step_seconds if without.step_seconds else 1.0
    return SavingEstimate(factor=factor, needed=not without.feasible, nbytes=nbytes)


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


def _stage(graph: Graph, topology: Topology, job: JobSpec, item: _Item) -> StageEstimate:
    stage, sub, tables = item.stage, item.piece, item.tables
    flying = item.unit.part.in_flight
    device = topology.device(item.unit.replica.device)
    view, part = site_view(tables, stage, sub, device)
    cost = view.table(device.kind)
    memory = site_memory(memory_of(cost, stage, part, job, flying), tables, stage, sub, device)
    pace = site_pace(device, stage, sub, item.unit.replica.end - item.unit.replica.first)
    ranks = rank_seconds(tables, stage, sub, device, job)
    sums, whole = view.sums(device.kind, part), tables.sums(device.kind, sub)
    forward, forward_calls, convolution = sums.forward, sums.forward_calls, sums.forward_convolution
    backward = sums.backward + (forward if stage.recompute else 0.0)
    backward_calls = sums.backward_calls + (forward_calls if stage.recompute else 0.0)
    back_convolution = sums.backward_convolution + (convolution if stage.recompute else 0.0)
    if item.sync is not None and made_strategy(item.sync).traits.sent is Sent.SCALARS:
        backward, backward_calls, back_convolution = forward, forward_calls, convolution  # a second forward takes its place
    on_disk = float(file_bytes(job.optimizer, graph, sub.states)) if stage.offload == "optimizer" else 0.0
    moved = 2.0 * state_bytes(job.optimizer, graph, sub.states) if on_disk else 0.0  # read and written
    updated = whole.trained * update_flops(job.optimizer, graph)
    disk_seconds = moved / device.offload_rate if device.offload_rate else 0.0
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
        modules=whole.modules,
        parameters=whole.parameters,
        forward_flops=whole.forward,
        backward_flops=backward if view is tables else whole.backward + (whole.forward if stage.recompute else 0.0),
        forward_seconds=pace
        * (_seconds(device, device.work(forward, convolution), forward_calls) + ranks.forward / device.ranks),
        backward_seconds=pace
        * (_seconds(device, device.work(backward, back_convolution), backward_calls) + ranks.backward / device.ranks),
        weight_seconds=0.0 if stage.recompute else pace * device.work(sums.weight, sums.weight_convolution) / device.achieved,
        update_seconds=max(_seconds(device, updated * device.helped, sums.trained_tensors) + ranks.update, disk_seconds),
        in_flight=flying,
        recompute=stage.recompute,
        micro_batches=(item.unit.replica.first, item.unit.replica.end),
        memory=parts,
        memory_bytes=float(memory.total[0]) + parts.get("exchange", 0.0) + item.samples,
        again_bytes=float(memory_of(cost, stage, part, job, 0).activations[0]) if stage.recompute else 0.0,
        disk_bytes=on_disk,
        sharded_bytes=float(sum(graph.state[name].spec.nbytes for name in parameters_of(sub))) if divides(stage, device) else 0.0,
        together=tensor_costs(tables, sub, device.ranks).divided if together(stage, device) else 0.0,
    )


def _seconds(device: Device, flops: float, calls: float) -> float:
    """FusionLLM section 3.5, with what each of the ``calls`` operators costs beside its FLOPs (``cost.fit``)."""
    return flops / device.achieved + calls * device.overhead


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
        update=[stage.update_seconds * part for stage, part in zip(replicas, taken, strict=True)],
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
            disk_bytes=sum(stage.disk_bytes for stage in stages if stage.device == name),
            disk_limit=float(topology.device(name).offload or 0.0),
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
