"""What is decided around any planner: the schedule, groups of micro-batches for sites, and what is on disks.

``schedule = "auto"`` means 1F1B, or an eager one where links make stages wait.

Each of the schedules is judged with the planner's own stages; the one with fewer micro-batches in flight stays unless another
is shorter by a fiftieth and fits. Cost: four estimates.

A plan with sites goes through its micro-batches in groups, one micro-batch for each rank. A site counts as one device with the
speed of its ranks together. Each rank has the parameters of the site's stages (``engines.site.runner``), so planners see the
memory of one rank. If nothing fits, or the job says so, ranks divide the parameters. Then planners see the memory of all ranks.
If the job says ``tensor``, ranks compute each micro-batch together. Only stages of which ranks can divide nothing have groups.
Planners do not count what ranks exchange, nor groups in flight. A device on which a plan does not fit is shown smaller, and the
planner plans again. At last, stages get whole parameters back, those with most bytes first, as long as the site has the memory.
Cost: up to eight plans with whole parameters, and eight with divided ones.

``Offloading`` puts optimizer states on disks where a model does not fit into memory otherwise. A first plan has all states in
memory. If there is none, the planner plans for the devices that offer disk space, with the optimizer states of all stages there.
Then stages get their states back, those with most bytes first, as long as all devices have the memory. Cost: a second plan, and
an estimate for each stage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.optim import needs_rules
from farflung.plan import CostTables, Plan, Stage, check_memory, estimate
from farflung.plan.estimation.tensor_costs import tensor_costs
from farflung.planners.base import Evaluate, Judged, Planner
from farflung.schedules import EAGER, grouped, read_group
from farflung.units import Bytes

__all__ = ["Offloading", "Scheduling", "Siting"]

_WORTH = 0.98
#: Plans that are tried, each for less memory of the devices on which the one before does not fit.
_TRIED = 8


class Scheduling:
    """``planner``, but a job whose schedule is ``auto`` gets the one with the shortest step that fits."""

    def __init__(self, planner: Planner, evaluate: Evaluate | None = None) -> None:
        self._planner, self._evaluate = planner, evaluate
        self.name = planner.name

    def judged_by(self, evaluate: Evaluate) -> Planner:
        """The same planner; schedules, and plans where it compares them, are compared by ``evaluate``."""
        inner = self._planner.judged_by(evaluate) if isinstance(self._planner, Judged) else self._planner
        return Scheduling(inner, evaluate)

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """See ``Planner.plan``."""
        job = job or JobSpec()
        if job.plan.schedule != "auto":
            return self._planner.plan(graph, topology, job=job)
        plain = job.model_copy(update={"plan": job.plan.model_copy(update={"schedule": job.plan.base_schedule})})
        best = self._planner.plan(graph, topology, job=plain)
        if best.schedule != job.plan.base_schedule or len(best.stages) < 2:
            return best
        tables = CostTables.of(graph)
        judge = self._evaluate or (lambda plan: estimate(graph, plan, topology, plain, tables=tables))
        seconds = judge(best).step_seconds
        for name in EAGER:
            other = replace(best, schedule=name)
            found = judge(other)
            if found.feasible and found.step_seconds < _WORTH * seconds:
                best, seconds = other, found.step_seconds
        return best


class Siting:
    """``planner``, but plans with sites have a schedule in groups."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self.name = planner.name

    def judged_by(self, evaluate: Evaluate) -> Planner:
        """The same planner, whose plans are compared by ``evaluate``."""
        return Siting(self._planner.judged_by(evaluate)) if isinstance(self._planner, Judged) else self

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """See ``Planner.plan``.

        Raises:
            PlanError: nothing fits, or the job wants to divide parameters or micro-batches, and there is no site, or no way.
        """
        job = job or JobSpec()
        wish, most = job.plan.shard, max(device.ranks for device in topology.devices)
        if most == 1 and wish in ("parameters", "tensor"):
            raise PlanError(f'plan.shard = "{wish}", and no worker is a site: join with --devices, or set plan.shard = "auto"')
        if most == 1:
            return self._planner.plan(graph, topology, job=_with(job, shard="none"))
        if wish == "tensor":
            _check_together(job)
            return self._fitting(graph, topology, job, 1.0)
        if wish != "parameters":
            try:
                return self._fitting(graph, topology, _with(job, shard="none"), 1.0 / most)
            except PlanError as error:
                whole = error
        try:
            plan = self._fitting(graph, topology, _with(job, shard="parameters"), 1.0)
        except PlanError as error:
            same = wish == "none" or (wish == "auto" and str(error) == str(whole))  # memory is not what is missing
            raise (whole if same else PlanError(f"with parameters divided among ranks: {error}")) from None
        if wish == "none":
            raise PlanError(f'{whole}; or let ranks divide the parameters (plan.shard = "auto")')
        return plan if wish == "parameters" else _relieved(plan, graph, topology, job, "shard")

    def _fitting(self, graph: Graph, topology: Topology, job: JobSpec, share: float) -> Plan:
        """A plan that fits. The planner sees a ``share`` of each site's memory, at least that of one rank.

        A device whose stages take more than it has is shown smaller by as much, and the planner plans again. If it finds no
        plan then, the device is shown by half of that smaller.

        Raises:
            PlanError: there is no such plan; the text is about the first one.
        """
        large = memory = {one.name: float(one.memory) * max(share, 1.0 / one.ranks) for one in topology.devices}
        first: PlanError | None = None
        for _ in range(_TRIED):
            shown = topology.with_devices([replace(one, memory=Bytes(memory[one.name]), ranks=1) for one in topology.devices])
            try:
                plan = self._planner.plan(graph, shown, job=job)
            except PlanError:
                if first is None:
                    raise
                memory = {name: math.sqrt(size * large[name]) for name, size in memory.items()}
                continue
            found = _in_groups(plan, graph, topology)
            if job.plan.shard == "tensor" and all(stage.shard == "none" for stage in found.stages):
                raise PlanError(
                    'plan.shard = "tensor", and the ranks of no site can divide a layer of this model: set plan.shard = "auto"'
                )
            needs = estimate(graph, found, topology, job)
            try:
                check_memory(needs, job)
            except PlanError as error:
                first = first or error
            else:
                return found
            seen = {one.device: one.memory_bytes for one in estimate(graph, plan, shown, job).devices}
            smaller = {one.device: seen[one.device] * one.memory_limit / one.memory_bytes for one in needs.devices if one.lack}
            large, memory = memory, memory | smaller
        assert first is not None
        raise first


def _in_groups(plan: Plan, graph: Graph, topology: Topology) -> Plan:
    """``plan`` with micro-batches in groups, one for each rank, and parameters or micro-batches divided on sites only.

    Ranks that compute each micro-batch together need no groups.
    """
    ranks = {device.name: device.ranks for device in topology.devices}
    base, given = read_group(plan.schedule)  # a job may name a group, and so does one that keeps a running plan's schedule
    stages = tuple(one if any(ranks[device] > 1 for device in one.devices) else replace(one, shard="none") for one in plan.stages)
    if any(stage.shard == "tensor" for stage in stages):
        tables = CostTables.of(graph)
        pieces = tables.cutter.cut(plan.bounds)
        stages = tuple(_in_parts(stage, piece, tables, ranks) for stage, piece in zip(stages, pieces, strict=True))
    count = math.lcm(given, *(ranks[device] for stage in stages if stage.shard != "tensor" for device in stage.devices))
    return replace(plan, stages=stages, schedule=grouped(base, min(count, len(plan.micro_batch_sizes))))


def _in_parts(stage: Stage, piece: SubGraph, tables: CostTables, ranks: Mapping[str, int]) -> Stage:
    """``stage``, whose ranks compute micro-batches together only if they can divide an operator on each site."""
    counts = {ranks[device] for device in stage.devices if ranks[device] > 1}
    divides = all(tensor_costs(tables, piece, count).division.divides for count in counts)
    return stage if stage.shard != "tensor" or divides else replace(stage, shard="none")


def _check_together(job: JobSpec) -> None:
    """Check that ranks may compute micro-batches of ``job`` together.

    The optimizer must update parts of parameters: the built-in ones update each element alone.

    Raises:
        PlanError: the optimizer may read whole parameters, or replicas compare their bits.
    """
    if job.verify.share > 0:
        raise PlanError(
            'plan.shard = "tensor" changes the rounding, and verify.share compares the bits of replicas: set one of them only'
        )
    optimizer = job.optimizer
    if needs_rules(optimizer) or optimizer.rules or optimizer.update == "stochastic":
        raise PlanError(
            'plan.shard = "tensor" needs an optimizer that updates each element alone: use sgd or adamw without settings, '
            'with state = "float32" and update = "plain" or "master", or set plan.shard = "auto"'
        )


class Offloading:
    """``planner``, but its plans put optimizer states on disks where the job wants or needs it."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self.name = planner.name

    def judged_by(self, evaluate: Evaluate) -> Planner:
        """The same planner; the one inside compares plans by ``evaluate``."""
        return Offloading(self._planner.judged_by(evaluate)) if isinstance(self._planner, Judged) else self

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """See ``Planner.plan``.

        Raises:
            PlanError: nothing fits, or the job wants disks and no device offers one.
        """
        job = job or JobSpec()
        wish = job.plan.offload
        disks = [device.name for device in topology.devices if device.offload is not None and device.ranks == 1]
        if wish == "optimizer" and not disks:
            raise PlanError(
                'plan.offload = "optimizer", and no device offers disk space: join with --disk, or set plan.offload = "auto"'
            )
        if wish == "none" or not disks:
            return self._planner.plan(graph, topology, job=_with(job, offload="none"))
        forced = _with(job, offload="optimizer")
        fewer = topology if len(disks) == len(topology) else topology.select(disks)
        if wish == "optimizer":
            return _checked(self._planner.plan(graph, fewer, job=forced), graph, fewer, forced)
        try:
            return self._planner.plan(graph, topology, job=_with(job, offload="none"))
        except PlanError as error:
            in_memory = str(error)
        try:
            found = _checked(self._planner.plan(graph, fewer, job=forced), graph, fewer, forced)
        except PlanError as error:
            same = str(error) == in_memory  # memory is not what is missing
            raise PlanError(in_memory if same else f"with optimizer states on disks: {error}") from None
        return _relieved(found, graph, topology, job, "offload")


def _with(job: JobSpec, **settings: str) -> JobSpec:
    return job.model_copy(update={"plan": job.plan.model_copy(update=settings)})


def _checked(plan: Plan, graph: Graph, topology: Topology, job: JobSpec) -> Plan:
    """``plan``, whose states fit on the disks."""
    check_memory(estimate(graph, plan, topology, job), job)
    return plan


def _relieved(plan: Plan, graph: Graph, topology: Topology, job: JobSpec, key: Literal["offload", "shard"]) -> Plan:
    """``plan`` without the setting ``key`` of as many stages as fit, those with most bytes first."""
    tables = CostTables.of(graph)
    first = estimate(graph, plan, topology, job, tables=tables)
    for stage in sorted(first.stages, key=lambda stage: -(stage.disk_bytes + stage.sharded_bytes)):
        stages = tuple(replace(one, **{key: "none"}) if one.index == stage.index else one for one in plan.stages)  # type: ignore[arg-type]
        other = replace(plan, stages=stages)
        if estimate(graph, other, topology, job, tables=tables).feasible:
            plan = other
    return plan
