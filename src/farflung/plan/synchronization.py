"""What a plan says of synchronization: the layers of each stage with their times, and whether a strategy can work there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from farflung.cluster import Device, Topology
from farflung.codecs import read_codec, read_memory
from farflung.codecs.exchanged import coded_bytes
from farflung.cost import OpCost
from farflung.errors import InputError, PlanError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph
from farflung.graph.modules import module_runs
from farflung.job.groups import is_frozen
from farflung.job.spec import JobSpec
from farflung.known_names import did_you_mean
from farflung.plan.codec_choice.exchange_codec import Group, sync_settings
from farflung.plan.model import Plan, Setting, SyncLayer, SyncPlan
from farflung.plan.reduction_choice import with_reductions
from farflung.plan.traffic import sync_specs
from farflung.sync import (
    LayerInfo,
    Sent,
    Strategy,
    Traits,
    World,
    check_clipping,
    check_loss_scale,
    codec_name,
    explain,
    get_strategy,
)
from farflung.sync.local_step_counts import local_steps
from farflung.units import Bytes, Seconds

__all__ = [
    "check_fits",
    "check_length",
    "check_sync",
    "made_strategy",
    "named_sync",
    "remote_states",
    "strategy_of",
    "sync_groups",
    "sync_lines",
    "with_sync",
    "world_of",
]

Vector = npt.NDArray[np.floating[Any]]

#: A layer is too small for an exchange of its own below so much of the mean layer's bytes.
_CRUMB = 0.05
#: Steps of a period that are told.
_SHOWN = 100


def with_sync(plan: Plan, graph: Graph, pieces: Sequence[SubGraph], topology: Topology, job: JobSpec, cost: OpCost) -> Plan:
    """``plan`` with the job's strategy and the layers of each stage; where gradients are summed in every step, with how.

    A layer is a module call with parameters that are trained; times are those of the slowest replica (by what its warm-up
    measured) and of the slowest link of the stage's group, after the strategy's codec, and of the last micro-batch's backward
    alone (only that can hide an exchange).

    Raises:
        PlanError: the strategy can't work on these stages, or has no such setting.
    """
    if job.sync.strategy == "exact" or not plan.replicated:
        return with_reductions(plan, graph, pieces, topology, job)
    sync = named_sync(job, sync_groups(plan, graph, pieces, topology, job))
    assert sync is not None
    layers, codec = [], _codec(replace(plan, sync=sync), job)
    hops = 2 if made_strategy(sync).traits.adds_up else 1  # to a server and back, or from each member to each other
    for stage, piece in zip(plan.stages, pieces, strict=True):
        members = [topology.index(name) for name in stage.devices]
        share = _share(replace(plan, sync=sync), len(stage.devices))
        rate = min(float(topology.beta[a, b]) for a in members for b in members)
        latency = hops * max(float(topology.alpha[a, b]) for a in members for b in members if a != b)
        backward = partial(_backward_seconds, cost, [topology.devices[member] for member in members])
        found = []
        for names, seconds in _without_crumbs(graph, _layers(graph, piece, job, backward)):
            nbytes = coded_bytes(codec, (graph.state[name].spec.shape for name in names))
            comm = nbytes * share / rate
            found.append(SyncLayer(parameters=names, bp_seconds=seconds, comm_seconds=comm, latency_seconds=latency))
        layers.append(tuple(found))
    planned = replace(plan, sync=replace(sync, layers=tuple(layers), local_steps=_local_steps(plan, sync, topology, cost)))
    check_sync(planned, graph, job)
    return planned


def sync_groups(plan: Plan, graph: Graph, pieces: Sequence[SubGraph], topology: Topology, job: JobSpec) -> list[Group]:
    """What the replicas of each stage exchange over which slowest link."""
    found = []
    for stage, piece in zip(plan.stages, pieces, strict=True):
        rates = [
            float(topology.beta[topology.index(a), topology.index(b)]) for a in stage.devices for b in stage.devices if a != b
        ]
        if rates:
            nbytes = float(sum(spec.nbytes for spec in sync_specs(graph, piece, job.optimizer)))
            found.append(Group(nbytes=nbytes, members=len(stage.devices), bytes_per_second=min(rates)))
    return found


def named_sync(job: JobSpec, groups: Sequence[Group] = ()) -> SyncPlan | None:
    """The job's strategy with its settings and no layers; None: gradients are summed exactly. ``groups``: see ``sync_choice``."""
    if job.sync.strategy == "exact":
        return None
    settings = tuple((key, _frozen(value)) for key, value in sorted(sync_settings(job, groups).items()))
    return SyncPlan(strategy=job.sync.strategy, settings=settings)


def strategy_of(plan: Plan) -> Strategy:
    """The strategy of a plan that has one.

    Raises:
        InputError: no strategy has that name or such a setting.
    """
    assert plan.sync is not None
    return made_strategy(plan.sync)


def made_strategy(sync: SyncPlan) -> Strategy:
    """The strategy that ``sync`` names, with its settings.

    Raises:
        InputError: as ``strategy_of``.
    """
    return get_strategy(sync.strategy, **dict(sync.settings))


def _codec(plan: Plan, job: JobSpec) -> str:
    try:
        strategy = strategy_of(plan)
        check_fits(strategy, job)
    except InputError as error:
        raise PlanError(f"sync.strategy = {plan.sync and plan.sync.strategy!r} can't be used: {error}") from None
    return strategy.traits.codec


def _share(plan: Plan, members: int) -> float:
    try:
        return strategy_of(plan).traits.link_share(members)
    except InputError as error:
        raise PlanError(f"sync.strategy = {plan.sync and plan.sync.strategy!r} can't be used: {error}") from None


def world_of(plan: Plan, graph: Graph, job: JobSpec, stage: int, rank: int = 0) -> World:
    """``stage`` as replica ``rank`` of it sees its group; members count by their part of the job's weights."""
    assert plan.sync is not None
    infos = tuple(
        LayerInfo(
            nbytes=Bytes(sum(graph.state[name].spec.nbytes for name in layer.parameters)),
            bp_seconds=Seconds(layer.bp_seconds),
            comm_seconds=Seconds(layer.comm_seconds),
            latency=Seconds(layer.latency_seconds),
        )
        for layer in plan.sync.layers[stage]
    )
    replicas = plan.replicas_of(stage)
    shares = tuple(sum(job.weight(index) for index in replica.micro_batches) for replica in replicas)
    return World(
        rank=rank,
        members=len(replicas),
        layers=infos,
        shares=shares,
        local_steps=plan.sync.local_steps,
        shared=_shared(plan.sync, stage),
    )


def remote_states(sync: SyncPlan, stage: int) -> frozenset[str]:
    """The parameters of the layers of other stages than ``stage``; what it has of them, too, is tied."""
    others = (layers for index, layers in enumerate(sync.layers) if index != stage)
    return frozenset(name for layers in others for layer in layers for name in layer.parameters)


def _shared(sync: SyncPlan, stage: int) -> tuple[int, ...]:
    """The layers of ``stage`` with parameters that other stages hold, too (tied ones)."""
    elsewhere = remote_states(sync, stage)
    return tuple(number for number, layer in enumerate(sync.layers[stage]) if elsewhere & set(layer.parameters))


def sync_lines(plan: Plan, graph: Graph, job: JobSpec) -> list[str]:
    """What the replicas of each stage exchange in which step of a period (at most the first 100 steps), and what hides it."""
    if plan.sync is None:
        return []
    strategy, lines = strategy_of(plan), []
    steps = min(strategy.traits.sync_every, _SHOWN)
    for stage in plan.stages:
        layers = plan.sync.layers[stage.index]
        if layers:
            names = {number: layer.parameters[0].rpartition(".")[0] or layer.parameters[0] for number, layer in enumerate(layers)}
            text = explain(strategy, world_of(plan, graph, job, stage.index), steps, names)
            lines.append(f"stage {stage.index}, {len(stage.devices)} replicas: {text}")
    return lines


def check_sync(plan: Plan, graph: Graph, job: JobSpec) -> None:
    """Replicas that train alone are whole pipelines, and the strategy fits the layers and the job.

    Raises:
        PlanError: they are not, or it does not.
    """
    if plan.sync is None:
        return
    grid = [[(replica.first, replica.end) for replica in plan.replicas_of(stage.index)] for stage in plan.stages]
    numbers: dict[str, int] = {}
    for stage in plan.stages:
        for number, device in enumerate(stage.devices):
            if grid[stage.index] != grid[0] or numbers.setdefault(device, number) != number:
                raise PlanError(
                    f"stage {stage.index}: with sync.strategy = {plan.sync.strategy!r} replica k of every stage must compute the "
                    "same micro-batches, and a device must have one k; plan again with the same replicas for every stage"
                )
    if len(plan.sync.layers) != len(plan.stages):
        raise PlanError(f"the plan has layers of {len(plan.sync.layers)} stages to synchronize and {len(plan.stages)} stages")
    try:
        strategy = strategy_of(plan)
        _check_local_steps(strategy.traits, plan)
        check_fits(strategy, job)
        _check_patience(strategy.traits, plan, job)
        _check_shared(strategy.traits, plan, job)
        _check_units(strategy.traits, plan, graph)
        for stage in plan.stages:
            if plan.sync.layers[stage.index]:
                strategy.check(world_of(plan, graph, job, stage.index))
    except InputError as error:
        raise PlanError(f"sync.strategy = {plan.sync.strategy!r} can't be used: {error}") from None


def check_fits(strategy: Strategy, job: JobSpec) -> None:
    """Whether a strategy can work with the rest of a job, whatever its plan.

    Raises:
        InputError: it can't; the text says what to change.
    """
    traits = strategy.traits
    check_clipping(traits, job.optimizer.clip_norm, by_previous_step=job.optimizer.clip_by == "previous")
    if job.precision == "fp16":
        check_loss_scale(traits)
    memory = traits.memory
    try:
        codec = read_codec(traits.codec)
    except InputError as error:
        raise InputError(f"sync.settings.codec = {traits.codec!r}: {error}") from None
    for option in traits.layer_codecs.options if traits.layer_codecs is not None else ():
        read_codec(option)
    read_memory(memory, codec)
    if codec_name(memory) == "dgc" and (job.optimizer.name != "sgd" or job.optimizer.momentum):
        raise InputError(
            f"memory = {memory!r} with optimizer {job.optimizer.name!r}, momentum {job.optimizer.momentum:g}: the memory has the "
            "momentum itself; set optimizer.name = 'sgd' and optimizer.momentum = 0, or take memory = 'error_feedback'"
        )
    optimizer = job.optimizer
    if traits.plain_sgd and (optimizer.name != "sgd" or optimizer.momentum or optimizer.weight_decay or optimizer.groups):
        raise InputError(
            f"optimizer {optimizer.name!r}: {traits.name} builds the steps of other replicas from numbers, so a step must be the "
            "learning rate times the gradient; set optimizer.name = 'sgd', and remove momentum, weight_decay and groups"
        )
    if traits.sent is Sent.SCALARS and job.codec.name != "identity":
        raise InputError(
            f"codec.name = {job.codec.name!r}: {traits.name} compares two losses that lie close together, and a codec between "
            "stages would blur both; set 'identity'"
        )


def check_length(strategy: Strategy, job: JobSpec) -> None:
    """Check that a run of the job's steps can change its weights. A job that is only planned may have no ``steps``.

    Raises:
        InputError: the run would end before its strategy moves the weights.
    """
    least = strategy.traits.least_steps
    if "steps" in job.model_fields_set and job.steps < least:
        raise InputError(
            f"steps = {job.steps}: no contribution moves the common model before step {least}, so the run would end with the "
            f"weights that it began with; set steps to at least {least}, or lower sync.settings.sync_every"
        )


def _local_steps(plan: Plan, sync: SyncPlan, topology: Topology, cost: OpCost) -> tuple[int, ...]:
    """Of each pipeline, where the strategy lets slower ones take fewer: by the time of its step, as FusionLLM's equation (3)."""
    traits = strategy_of(replace(plan, sync=sync)).traits
    if not traits.by_speed or len({len(stage.devices) for stage in plan.stages}) > 1:
        return ()
    largest, seconds = max(plan.micro_batch_sizes), []
    for number in range(len(plan.stages[0].devices)):
        samples = sum(plan.micro_batch_sizes[index] for index in plan.replicas_of(0)[number].micro_batches)
        parts = [
            float(
                cost.forward_sum[stage.stop]
                - cost.forward_sum[stage.start]
                + cost.backward_sum[stage.stop]
                - cost.backward_sum[stage.start]
            )
            / float(topology.speeds[topology.index(stage.devices[number])])
            for stage in plan.stages
        ]
        seconds.append(sum(parts) + (samples / largest - 1.0) * max(parts))
    return local_steps(seconds, traits.sync_every)


def _backward_seconds(cost: OpCost, devices: Sequence[Device], start: int, stop: int) -> float:
    """Seconds of the backward of the operators from ``start`` to ``stop`` on the slowest of ``devices``."""

    def between(sums: Vector) -> float:
        return float(sums[stop] - sums[start])

    flops, calls = between(cost.backward_sum), between(cost.backward_calls_sum)
    convolutions = between(cost.backward_convolution_sum)
    return max(device.work(flops, convolutions) / device.achieved + calls * device.overhead for device in devices)


def _layers(
    graph: Graph, piece: SubGraph, job: JobSpec, backward: Callable[[int, int], float]
) -> list[tuple[tuple[str, ...], float]]:
    """(parameters, seconds of the backward) of each module call that trains some; a parameter counts at its first use.

    What trains nothing counts with the layer before it, whose gradients are complete only after its backward.
    """
    found: list[tuple[tuple[str, ...], float]] = []
    seen: set[str] = set()
    before = 0.0
    for run in module_runs(graph):
        start, stop = max(run.start, piece.start), min(run.stop, piece.stop)
        if start >= stop:
            continue
        names = []
        for op in graph.ops[start:stop]:
            for name in op.states():
                state = graph.state[name]
                if name not in seen and state.trainable and op.name in graph.grad_ops and not is_frozen(job.optimizer, name):
                    names.append(name)
                    seen.add(name)
        seconds = backward(start, stop)
        if names:
            found.append((tuple(names), before + seconds))
            before = 0.0
        elif found:
            found[-1] = (found[-1][0], found[-1][1] + seconds)
        else:
            before += seconds
    return found


def _check_local_steps(traits: Traits, plan: Plan) -> None:
    given = () if plan.sync is None else plan.sync.local_steps
    period = traits.sync_every if traits.by_speed else 0
    if given and max(given) != period:
        rule = f"the fastest takes all {period} of a period" if period else "replicas take all steps unless by_speed = true"
        raise InputError(f"local_steps = {list(given)}: {rule}; plan again")


def _check_patience(traits: Traits, plan: Plan, job: JobSpec) -> None:
    if not job.sync.patience:
        return
    members = min(len(stage.devices) for stage in plan.stages)
    if not traits.adds_up:
        raise InputError(
            f"sync.patience = {job.sync.patience:g}: every member must decide alike who counts, and with this strategy or codec "
            "each decides alone; set patience to 0, or a strategy that takes means, with codec = 'identity'"
        )
    if job.sync.quorum > members:
        raise InputError(f"sync.quorum = {job.sync.quorum} in groups of {members}: set it to at most {members}")


def _check_shared(traits: Traits, plan: Plan, job: JobSpec) -> None:
    """What stages hold in common stays equal only if every number is exchanged alike in all of them, in the same step."""
    assert plan.sync is not None
    places: dict[str, list[tuple[int, int]]] = {}
    for stage, layers in enumerate(plan.sync.layers):
        for number, layer in enumerate(layers):
            for name in layer.parameters:
                places.setdefault(name, []).append((stage, number))
    common = {name: held for name, held in places.items() if len(held) > 1}
    if not common:
        return
    name, held = next(iter(common.items()))
    stages = " and ".join(str(stage) for stage, _ in held)
    why = f"stages {stages} hold {name!r}, and {traits.name} would let their copies drift apart"
    for rule in traits.needs_one_stage:
        raise InputError(f"{why}: it {rule.reason}; {rule.remedy}, or plan with one stage")
    if job.sync.patience:
        raise InputError(
            f"{why}: it may miss other members in each stage (sync.patience); set sync.patience = 0, or plan with one stage"
        )
    step = {layer: number for number, chosen in enumerate(traits.fixed_sets) for layer in chosen}
    if any(len({step.get(layer) for _, layer in places}) > 1 for places in common.values()):
        raise InputError(
            f"{why}: it exchanges them in different steps (sets); put them into the same set of both, or remove sets, "
            "or plan with one stage"
        )


def _check_units(traits: Traits, plan: Plan, graph: Graph) -> None:
    """All numbers of a hidden unit must be in one stage, which matches the units by them."""
    assert plan.sync is not None
    places = {name: stage for stage, layers in enumerate(plan.sync.layers) for layer in layers for name in layer.parameters}
    for group in traits.units:
        sizes: dict[str, int] = {}
        for name, axis in group:
            if name not in places:
                close = did_you_mean(name, places, most=3)
                raise InputError(f"units: unknown parameter {name!r}: {close}{len(places)} are trained, e.g. {min(places)!r}")
            shape = graph.state[name].spec.shape
            if axis >= len(shape):
                raise InputError(f"units: {name}:{axis}, and its shape is {list(shape)}; take an axis below {len(shape)}")
            sizes[f"{name}:{axis}"] = shape[axis]
        if len(set(sizes.values())) > 1:
            raise InputError(f"units: the axes of a group have one length, not {sizes}; remove what does not belong together")
        if len({places[name] for name, _ in group}) > 1:
            found = ", ".join(f"{name} in stage {places[name]}" for name, _ in group)
            raise InputError(f"units: a group must be in one stage, not {found}; plan with one stage, or remove the group")


def _without_crumbs(graph: Graph, layers: list[tuple[tuple[str, ...], float]]) -> list[tuple[tuple[str, ...], float]]:
    """``layers`` where those of a few bytes (norms) have joined the layer before them: an exchange of their own costs more.

    Their gradients then wait for that layer's backward, which comes right after theirs.
    """
    sizes = [sum(graph.state[name].spec.nbytes for name in names) for names, _ in layers]
    least = _CRUMB * sum(sizes) / max(len(sizes), 1)
    found: list[tuple[tuple[str, ...], float]] = []
    for (names, seconds), size in zip(layers, sizes, strict=True):
        if found and size < least:
            found[-1] = ((*found[-1][0], *names), found[-1][1] + seconds)
        else:
            found.append((names, seconds))
    return found


def _frozen(value: object) -> Setting:
    return tuple(tuple(item) for item in value) if isinstance(value, list) else cast(Setting, value)
