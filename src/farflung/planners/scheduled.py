"""What is decided around any planner: the schedule, groups of micro-batches for sites, and what is on disks.

``schedule = "auto"`` means 1F1B, or an eager one where links make stages wait.

Each of the schedules is judged with the planner's own stages; the one with fewer micro-batches in flight stays unless another
is shorter by a fiftieth and fits. Cost: four estimates.

A plan with sites goes through its micro-batches in groups, one micro-batch for each rank. A site counts as one device with the
speed of its ranks together. Each rank has the parameters of the site's stages (``engines.site.runner``), so planners see the
memory of one rank.

``Offloading`` puts optimizer states on disks where a model does not fit into memory otherwise. A first plan has all states in
memory. If there is none, the planner plans for the devices that offer disk space, with the optimizer states of all stages there.
Then stages get their states back, those with most bytes first, as long as all devices have the memory. Cost: a second plan, and
an estimate for each stage.
"""

from __future__ import annotations

import math
from dataclasses import replace

from farflung.cluster import Device, Topology
from farflung.errors import PlanError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import CostTables, Plan, check_memory, estimate
from farflung.planners.base import Evaluate, Judged, Planner
from farflung.schedules import EAGER, grouped, read_group
from farflung.units import Bytes

__all__ = ["Offloading", "Scheduling", "Siting"]

_WORTH = 0.98


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
        """See ``Planner.plan``."""
        ranks = {device.name: device.ranks for device in topology.devices}
        if set(ranks.values()) == {1}:
            return self._planner.plan(graph, topology, job=job)
        devices = tuple(_one_rank(device) for device in topology.devices)
        plan = self._planner.plan(graph, topology.with_devices(devices), job=job)
        base, given = read_group(plan.schedule)  # a job may name a group, and so does one that keeps a running plan's schedule
        count = math.lcm(given, *(ranks[device] for device in plan.devices))
        return replace(plan, schedule=grouped(base, min(count, len(plan.micro_batch_sizes))))


def _one_rank(device: Device) -> Device:
    return replace(device, memory=Bytes(device.memory / device.ranks), ranks=1)


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
            return self._planner.plan(graph, topology, job=_with(job, "none"))
        forced = _with(job, "optimizer")
        fewer = topology if len(disks) == len(topology) else topology.select(disks)
        if wish == "optimizer":
            return _checked(self._planner.plan(graph, fewer, job=forced), graph, fewer, forced)
        try:
            return self._planner.plan(graph, topology, job=_with(job, "none"))
        except PlanError as error:
            in_memory = str(error)
        try:
            found = _checked(self._planner.plan(graph, fewer, job=forced), graph, fewer, forced)
        except PlanError as error:
            same = str(error) == in_memory  # memory is not what is missing
            raise PlanError(in_memory if same else f"with optimizer states on disks: {error}") from None
        return _relieved(found, graph, topology, job)


def _with(job: JobSpec, offload: str) -> JobSpec:
    return job.model_copy(update={"plan": job.plan.model_copy(update={"offload": offload})})


def _checked(plan: Plan, graph: Graph, topology: Topology, job: JobSpec) -> Plan:
    """``plan``, whose states fit on the disks."""
    check_memory(estimate(graph, plan, topology, job), job)
    return plan


def _relieved(plan: Plan, graph: Graph, topology: Topology, job: JobSpec) -> Plan:
    """``plan`` with as many states in memory as fit, those with most bytes first."""
    tables = CostTables.of(graph)
    first = estimate(graph, plan, topology, job, tables=tables)
    for stage in sorted(first.stages, key=lambda stage: -stage.disk_bytes):
        stages = tuple(replace(one, offload="none") if one.index == stage.index else one for one in plan.stages)
        other = replace(plan, stages=stages)
        if estimate(graph, other, topology, job, tables=tables).feasible:
            plan = other
    return plan
