"""Replicas around any planner: devices in groups, a pipeline over the groups, shares of the micro-batches by speed.

Source: the grid of DT-FM (SPEC section 2: D_dp x D_pp devices, groups that exchange gradients, a pipeline over groups), around
any partitioner. What differs: devices of one group may be unequal, so each computes a share of the micro-batches in proportion
to its speed (whole virtual replicas of the job); the group counts as one device with the sum of the speeds. Cost: that of
``assign_grid`` and of the planner inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from farflung.cluster import Device, Topology
from farflung.errors import PlanError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec, SyncSpec
from farflung.plan import Estimate, check_memory, check_replicas, estimate
from farflung.plan.model import Plan, Replica, Stage
from farflung.plan.synchronization import with_sync
from farflung.planners.base import Evaluate, Judged, Planner
from farflung.planners.finish import Problem, with_recompute
from farflung.planners.grid import GridMethod, assign_grid
from farflung.units import Bytes, FlopsPerSecond

__all__ = ["Replicating", "cut_bytes", "shares"]

#: Evaluations that finding the groups may take (not seconds: the same job gives the same plan).
_EVALUATIONS = 2000
#: Plans after the first, each with less memory for what the planner inside counts.
_TRIES = 6


class Replicating:
    """``planner``, but a job that wants replicas gets them: ``job.plan.replicas`` devices for each stage.

    ``groups``: the method of ``assign_grid`` that finds the groups; ``random`` is DT-FM's baseline without a scheduler.
    """

    def __init__(self, planner: Planner, evaluate: Evaluate | None = None, groups: GridMethod = "search") -> None:
        self._planner, self._evaluate, self._method = planner, evaluate, groups
        self.name = planner.name

    def judged_by(self, evaluate: Evaluate) -> Planner:
        """The same planner; one that compares plans compares them by ``evaluate``."""
        return Replicating(self._planner, evaluate, self._method)

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """See ``Planner.plan``.

        Raises:
            PlanError: there are too few devices or micro-batches, a stage can't have replicas, or nothing fits.
        """
        job = job or JobSpec()
        if job.plan.replicas == 1:
            return self._inside(self._evaluate).plan(graph, topology, job=job)
        problem = Problem.of(graph, topology, job)
        groups = _groups(problem, job.plan.replicas, self._method)
        heads = [_head(topology, group) for group in groups]
        spreading = _Spreading(problem, {head.name: group for head, group in zip(heads, groups, strict=True)})

        def priced(plan: Plan) -> Estimate:
            return estimate(graph, plan, topology, job, tables=problem.tables)

        judge = self._evaluate or priced
        inner = self._inside(lambda plain: judge(spreading.spread(plain)))
        inside = job.model_copy(update={"workers": None, "plan": job.plan.model_copy(update={"replicas": 1}), "sync": SyncSpec()})
        plan = spreading.spread(inner.plan(graph, _between(topology, groups, heads), job=inside))
        found = priced(plan)
        for _ in range(_TRIES):  # the planner inside knows nothing of what replicas exchange: leave memory for that
            lacks = {device.device: device.lack for device in found.devices}
            left = [float(head.memory) - max(lacks.get(name, 0.0) for name in spreading.members(head)) for head in heads]
            if found.feasible or min(left) <= 0:
                break
            heads = [replace(head, memory=Bytes(memory)) for head, memory in zip(heads, left, strict=True)]
            with suppress(PlanError):
                plan = spreading.spread(inner.plan(graph, _between(topology, groups, heads), job=inside))
                found = priced(plan)
        check_memory(found, job)
        return plan

    def _inside(self, evaluate: Evaluate | None) -> Planner:
        if evaluate is not None and isinstance(self._planner, Judged):
            return self._planner.judged_by(evaluate)
        return self._planner


def shares(speeds: Sequence[float], job: JobSpec) -> list[tuple[int, int]]:
    """(first, end) of the micro-batches of each device: whole virtual replicas of the job, each device at least one.

    The share that takes longest is as short as whole virtual replicas allow (exact: dynamic program over devices and virtual
    replicas, O(d v^2) in O(d v) NumPy calls).

    Raises:
        PlanError: fewer virtual replicas than devices.
    """
    bounds = [0, *job.virtual_ends]
    samples = [0, *accumulate(job.micro_batch_sizes)]
    count = len(bounds) - 1
    if count < len(speeds):
        raise PlanError(
            f"plan.replicas = {len(speeds)} with {count} virtual replicas: each replica needs at least one; "
            "add micro-batches, or ask for fewer replicas"
        )
    done = np.array([samples[bound] for bound in bounds])
    least = np.full(count + 1, np.inf)
    least[0] = 0.0
    choices = []
    for speed in speeds:
        row, chosen = np.full(count + 1, np.inf), [0] * (count + 1)
        for end in range(1, count + 1):
            seconds = np.maximum(least[:end], (done[end] - done[:end]) / speed)
            chosen[end] = first = int(seconds.argmin())
            row[end] = seconds[first]
        least = row
        choices.append(chosen)
    cuts = [count]
    for chosen in reversed(choices):
        cuts.append(chosen[cuts[-1]])
    cuts.reverse()
    return [(bounds[a], bounds[b]) for a, b in pairwise(cuts)]


def _groups(problem: Problem, wanted: int, method: GridMethod) -> list[list[int]]:
    """Indices of the devices of each group, groups in the order of the pipeline, members aligned with their neighbours."""
    topology, job = problem.topology, problem.job
    usable = min(len(topology), job.workers or len(topology))
    stages = usable // wanted
    if stages == 0:
        raise PlanError(f"plan.replicas = {wanted} needs as many devices, there are {usable}: ask for fewer, or add devices")
    order = sorted(range(len(topology)), key=lambda i: (-topology.speeds[i], i))
    chosen = sorted(order[: stages * wanted])
    if stages == 1:
        return [sorted(chosen, key=lambda i: (-topology.speeds[i], i))]
    graph = problem.graph
    parameters = sum(graph.state[name].spec.nbytes for name in graph.trained)
    part = topology.select([topology.names[i] for i in chosen])
    in_order = (job.sync.strategy, job.sync.order) == ("exact", "job")
    parts = len(job.virtual_ends) / wanted if in_order else 1.0  # times that a replica sends its gradients (``plan.buckets``)
    found = assign_grid(
        part,
        dp=wanted,
        pp=stages,
        pp_bytes=cut_bytes(problem) * job.micro_batches / wanted,  # what one pipeline sends in a step, as ``dtfm`` has it
        dp_bytes=parameters / stages * parts,
        method=method,
        seconds=None,
        evaluations=_EVALUATIONS,
        seed=job.seed,
    )
    return [[chosen[i] for i in group] for group in found.devices]  # members at one place are matched over links


def cut_bytes(problem: Problem) -> float:
    """Bytes of values at a typical cut between module runs."""
    traffic = [float(problem.cost.crossing_forward[run.start]) for run in problem.runs[1:]]
    return float(np.median(traffic)) if traffic else 1.0


def _head(topology: Topology, group: Sequence[int]) -> Device:
    """A group as one device: all speeds together, the least memory."""
    devices = [topology.devices[i] for i in group]
    return replace(
        devices[0],
        memory=Bytes(min(device.memory for device in devices)),
        speed=FlopsPerSecond(sum(topology.speeds[i] for i in group)),
        speed_factor=1.0,
        host="",  # what its members share is in their speeds
    )


def _between(topology: Topology, groups: Sequence[Sequence[int]], heads: Sequence[Device]) -> Topology:
    """The network between groups: the slowest of the links between members at the same place, which carry a share each."""
    count = len(groups)
    alpha, beta = np.zeros((count, count)), np.full((count, count), np.inf)
    for a in range(count):
        for b in range(count):
            if a != b:
                pairs = list(zip(groups[a], groups[b], strict=True))
                alpha[a, b] = max(float(topology.alpha[i, j]) for i, j in pairs)
                beta[a, b] = min(float(topology.beta[i, j]) for i, j in pairs)
    return Topology.from_matrices(alpha, beta, heads, name=f"groups of {topology.name}")


def _pace(topology: Topology, groups: Iterable[Sequence[int]]) -> list[float]:
    """The speed of each pipeline of replicas that train alone: of its slowest device. They have the same share in all stages."""
    return [min(float(topology.speeds[i]) for i in members) for members in zip(*groups, strict=True)]


class _Spreading:
    """Plans of groups as plans of their members: shares, recomputation, and the job's strategy.

    ``groups``: device indices of each group, by the name of the device that stands for it.
    """

    def __init__(self, problem: Problem, groups: Mapping[str, Sequence[int]]) -> None:
        self.problem, self.groups = problem, groups
        alone = problem.job.sync.strategy != "exact"
        self._pace = _pace(problem.topology, groups.values()) if alone else None

    def spread(self, plain: Plan) -> Plan:
        """``plain`` on all members, complete: what a judge sees is what runs.

        Raises:
            PlanError: a stage can't have replicas, or the strategy can't work on these stages.
        """
        problem, job = self.problem, self.problem.job
        stages = tuple(self._stage(stage) for stage in plain.stages)
        pieces = problem.tables.cutter.cut(plain.bounds)
        ordered = job.model_copy(update={"plan": job.plan.model_copy(update={"schedule": plain.schedule})})
        plan = replace(plain, stages=with_recompute(replace(problem, job=ordered), stages, pieces))
        check_replicas(plan, pieces, job)
        return with_sync(plan, problem.graph, pieces, problem.topology, job, problem.cost)

    def members(self, head: Device) -> list[str]:
        """The names of the devices that ``head`` stands for."""
        return [self.problem.topology.names[i] for i in self.groups[head.name]]

    def _stage(self, stage: Stage) -> Stage:
        topology, group = self.problem.topology, self.groups[stage.device]
        speeds = [float(topology.speeds[i]) for i in group] if self._pace is None else self._pace
        ranges = shares(speeds, self.problem.job)
        members = tuple(Replica(device=topology.names[i], first=a, end=b) for i, (a, b) in zip(group, ranges, strict=True))
        return replace(stage, device=members[0].device, replicas=members)
