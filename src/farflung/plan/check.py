"""Whether a plan fits its graph, its topology and its job, with what to change where it does not."""

from __future__ import annotations

from collections.abc import Sequence

from farflung.cluster import Topology
from farflung.codecs import get_codec
from farflung.errors import InputError, PlanError
from farflung.graph.cut import SubGraph, cut
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan.engine_support import check_engines
from farflung.plan.estimation.results import Estimate
from farflung.plan.links import pairs_of
from farflung.plan.model import Plan, Stage
from farflung.schedules import check_schedule, get_schedule
from farflung.units import Bytes, counted

__all__ = ["check_memory", "check_plan", "check_reach", "check_replicas"]


def check_plan(plan: Plan, graph: Graph, topology: Topology | None = None, job: JobSpec | None = None) -> tuple[SubGraph, ...]:
    """Check everything but memory (see ``check_memory``) and return the plan's sub-graphs.

    Raises:
        PlanError: another graph or job, stages that do not tile, an unknown device, codec or schedule, a link that is
            missing or leads nowhere, stages that would wait for each other forever, or optimizer states on the disk of a site.
        GraphError: a state is read in one stage and updated in another.
    """
    if plan.graph_hash != graph.hash:
        raise PlanError(
            f"the plan is for graph {plan.graph_hash[:12]}, this graph is {graph.hash[:12]}; plan again for this graph"
        )
    at = 0
    for index, stage in enumerate(plan.stages):
        if stage.index != index or stage.start != at or stage.stop <= stage.start:
            raise PlanError(
                f"stage {stage.index} at place {index} has positions {stage.start} to {stage.stop}; "
                f"it must be number {index}, start at {at} and not be empty"
            )
        at = stage.stop
    if at != len(graph.ops):
        raise PlanError(f"the stages end at position {at}, the graph has {len(graph.ops)}; the stages must tile it")
    _check_names(plan, topology)
    if topology is not None:
        check_reach(plan, topology)
        _check_sites(plan, topology)
    if job is not None and plan.micro_batch_sizes != job.micro_batch_sizes:
        ours, theirs = list(plan.micro_batch_sizes), list(job.micro_batch_sizes)
        raise PlanError(f"the plan has micro-batches of {ours} samples, the job {theirs}; plan again for this job")
    pieces = cut(graph, plan.bounds)
    check_replicas(plan, pieces, job)
    if topology is not None:
        check_engines(plan, pieces, topology, job or JobSpec())
    needed, given = set(pairs_of(pieces)), set(plan.link)
    if needed - given:
        source, target = min(needed - given)
        raise PlanError(f"stages {source} and {target} exchange values, and the plan has no link between them; add it to links")
    extra = [link for link in plan.links if (link.source, link.target) not in needed] or plan.links[len(given) :]
    if extra:
        raise PlanError(
            f"the link from stage {extra[0].source} to stage {extra[0].target} carries nothing or stands twice; remove it"
        )
    orders = get_schedule(plan.schedule).actions(len(plan.stages), len(plan.micro_batch_sizes))
    check_schedule(orders, len(plan.micro_batch_sizes), needed)
    return pieces


def check_reach(plan: Plan, topology: Topology) -> None:
    """Every two devices of the plan have a way to each other, if need be through a relay.

    Raises:
        PlanError: two have none.
    """
    used = set(plan.devices)
    for (a, b), relays in topology.via.items():
        if not relays and {a, b} <= used:
            raise PlanError(
                f"devices {a!r} and {b!r} can't reach each other: neither can dial the other (NAT or a firewall), and no "
                "other device that both can dial may relay for them; add one, forward a port of one of them (--advertise), or "
                "leave one out"
            )


def _check_sites(plan: Plan, topology: Topology) -> None:
    """The ranks of a site have optimizer states in memory: they would write to one place of a disk."""
    for stage in plan.stages:
        site = next((name for name in stage.devices if topology.device(name).ranks > 1), None)
        if stage.offload != "none" and site is not None:
            raise PlanError(
                f"stage {stage.index} has its optimizer states on a disk, and device {site!r} is a site of "
                f"{topology.device(site).ranks} ranks, which has them in memory; remove offload from the stage, "
                "or put it on a device without ranks"
            )


def check_replicas(plan: Plan, pieces: Sequence[SubGraph], job: JobSpec | None) -> None:
    """Replicas share the micro-batches in order, and hold whole virtual replicas of the job.

    Raises:
        PlanError: they do not, or a stage that can't have replicas has some.
    """
    count = len(plan.micro_batch_sizes)
    several = [stage for stage in plan.stages if len(stage.devices) > 1]
    if any(stage.adds for stage in several) and not all(stage.adds for stage in several):
        index = next(stage.index for stage in several if stage.adds is None)
        raise PlanError(
            f"stage {index} sums in the job's order and others in any: all stages with replicas do one or the other; plan again"
        )
    ends = set(range(1, count + 1)) if job is None else set(job.virtual_ends)
    for stage, piece in zip(plan.stages, pieces, strict=True):
        replicas = plan.replicas_of(stage.index)
        starts = [0, *(replica.end for replica in replicas)]
        if [replica.first for replica in replicas] != starts[:-1] or starts[-1] != count or starts != sorted(set(starts)):
            raise PlanError(
                f"stage {stage.index}: its replicas have the micro-batches {[(r.first, r.end) for r in replicas]}; "
                f"they must share 0 to {count} in order, each with at least one"
            )
        if replicas[0].device != stage.device or len(set(stage.devices)) < len(replicas):
            raise PlanError(
                f"stage {stage.index}: its replicas are on {', '.join(stage.devices)}; the first must be on its home "
                f"{stage.device!r}, and each on a device of its own"
            )
        if not set(starts[1:]) <= ends:
            raise PlanError(
                f"stage {stage.index}: its replicas end at the micro-batches {starts[1:]}, the job's virtual replicas at "
                f"{sorted(ends)}; replicas hold whole virtual replicas: plan again, or set virtual_replicas"
            )
        _check_adds(stage, job)
        updated = [name for name, value in piece.graph.state_updates if piece.graph.position[value.op] in piece.positions]
        if len(replicas) > 1 and updated:
            raise PlanError(
                f"stage {stage.index} updates {updated[0]!r} in its forward (batch norm), micro-batch after micro-batch, so it "
                "can't have replicas; give it one device, or use a norm without running statistics"
            )


def _check_adds(stage: Stage, job: JobSpec | None) -> None:
    """Sums in any order are for jobs that allow them, and for groups."""
    if stage.adds is None:
        return
    if len(stage.devices) == 1:
        raise PlanError(f"stage {stage.index} sums by {stage.adds.by} and has no replicas; remove adds from it")
    if job is not None and (job.sync.strategy, job.sync.order) != ("exact", "any"):
        raise PlanError(
            f"stage {stage.index}: its replicas sum by {stage.adds.by}, and the job has sync.strategy = {job.sync.strategy!r} "
            f"with order = {job.sync.order!r}; plan again for this job, or set order = 'any'"
        )
    try:
        stage.adds.check(len(stage.devices))
    except InputError as error:
        raise PlanError(f"stage {stage.index}: {error}; plan again") from None


def _check_names(plan: Plan, topology: Topology | None) -> None:
    try:
        if topology is not None:
            for device in plan.devices:
                topology.index(device)
        for link in plan.links:
            for choice, memory in ((link.activations, "difference"), (link.gradients, "error_feedback")):
                get_codec(choice.name, **dict(choice.params))
                if choice.memory not in ("", memory):
                    raise InputError(f"the memory {choice.memory!r:.40} is none of the known '' and {memory!r} there")
        get_schedule(plan.schedule)
    except InputError as error:
        raise PlanError(f"the plan can't be used: {error}") from None


def check_memory(estimate: Estimate, job: JobSpec | None = None) -> None:
    """Constraint (6). The error advises only what ``job`` does not do already.

    Raises:
        PlanError: a device lacks memory; the text says which, how much, what needs it, and what helps.
    """
    full = [device for device in estimate.devices if device.disk_lack > 0]
    if full:
        one = full[0]
        raise PlanError(
            f"device {one.device!r} needs {Bytes(one.disk_bytes)} of disk for optimizer states, "
            f"and offers {Bytes(one.disk_limit)}: offer more (farflung join --disk), or add a device or memory"
        )
    short = [device for device in estimate.devices if device.lack > 0]
    if not short:
        return
    lacks = []
    for device in short[:_NAMED]:
        stages = [stage for stage in estimate.replicas if stage.device == device.device]
        parts: dict[str, float] = {}
        for stage in stages:
            for name, size in stage.memory.items():
                parts[name] = parts.get(name, 0.0) + size
        most = max(parts, key=lambda name: parts[name])
        lacks.append(
            f"device {device.device!r} needs {Bytes(device.memory_bytes)} and has {Bytes(device.memory_limit)}: "
            f"it lacks {Bytes(device.lack)} (most is {most}: {Bytes(parts[most])})"
        )
    more = f"; and {counted(len(short) - _NAMED, 'more device')}" if len(short) > _NAMED else ""
    remembers = any("samples" in stage.memory for stage in estimate.replicas)
    remedy = f"{_remedy(job)}, or lower codec.memory_bytes" if remembers else _remedy(job)
    if any(stage.memory.get("serving") for stage in estimate.replicas):
        remedy += "; serving helpers takes memory for each micro-batch: make fewer of them, or set plan.helpers = false"
    raise PlanError(f"{'; '.join(lacks)}{more}; {remedy}")


#: Devices that lack memory which an error names.
_NAMED = 2


def _remedy(job: JobSpec | None) -> str:
    ways = ["add a device or memory"]
    if job is None or max(job.micro_batch_sizes) > 1:
        ways.append("make micro-batches smaller")
    if job is None or job.plan.recompute == "never":
        ways.append('allow recomputation (plan.recompute = "auto")')
    if job is None or job.plan.offload == "none":
        ways.append('allow disks (plan.offload = "auto", and farflung join --disk)')
    if job is None or job.optimizer.name != "sgd" or job.optimizer.momentum:
        ways.append("take an optimizer with less state")
    return ", or ".join([", ".join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)
