"""The papers' planners whose stages are groups of devices: ``dtfm``, ``kernighan_lin`` and ``hybrid_ps``.

DT-FM (SPEC section 2) places equal stages on a grid of D_dp x D_pp devices by its genetic search; the grid's shape is given.
Here each shape that uses all devices is placed with few evaluations, and the one of least cost (1) whose plan fits with many; a
job with ``plan.replicas`` above 1 has said D_dp. Hybrid-PS (SPEC section 4) clusters devices into
stages; layers go to stages by power. Its servers and clients share a stage's micro-batches here as replicas, by speed (the text
cuts a mini-batch among them in the same proportion), the fastest server is the stage's home. What differs in all of them: a
micro-batch is the smallest share, so a stage has as many devices as micro-batches at most (the fastest stay), and a stage that
updates a state in its forward has one device. Cost: ``assign_grid``'s and ``plan_hybrid_ps``'s, and a few estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np

from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.optim import state_factor
from farflung.plan import CostTables, Stage, check_memory, check_replicas, estimate
from farflung.plan.model import Plan, Replica
from farflung.plan.synchronization import with_sync
from farflung.planners.base import Evaluate
from farflung.planners.equal import balanced_cuts
from farflung.planners.finish import Problem, draft_stages
from farflung.planners.grid import Assignment, assign_grid
from farflung.planners.hybrid_ps import HybridPsWork, plan_hybrid_ps
from farflung.planners.replicated import cut_bytes, shares

__all__ = ["GridPlanner", "HybridPs", "placed_plan"]

Groups = Sequence[Sequence[int]]

#: Evaluations of ``assign_grid`` for each shape, and for the best one (the first hundred are its random population).
_SHAPES, _BEST = 8, 120
#: Costs of shapes by the task's tables and (topology, shape, micro-batches, seed); a topology is known by its identity.
_COSTS: WeakKeyDictionary[CostTables, dict[tuple[int, tuple[int, int], int, int], tuple[Topology, float]]] = WeakKeyDictionary()
_KEPT = 256
#: Activations beside the parameters of a stage, as factors that ``hybrid_ps`` tries.
_MORE = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)


def placed_plan(problem: Problem, groups: Groups, cuts: Sequence[int], planner: str) -> Plan:
    """The plan whose stages are the runs between ``cuts`` (both ends included) on ``groups`` of device indices, homes first.

    Raises:
        PlanError: the replicas or the strategy can't work there.
    """
    topology, job = problem.topology, problem.job
    equal = job.sync.strategy != "exact"
    stages = []
    for index, (group, (start, stop)) in enumerate(zip(groups, pairwise(cuts), strict=True)):
        members = _able(problem, group, start, stop)
        names = [topology.names[i] for i in members]
        replicas: tuple[Replica, ...] = ()
        if len(members) > 1:
            speeds = [1.0 if equal else float(topology.speeds[i]) for i in members]
            ranges = shares(speeds, job)
            replicas = tuple(Replica(device=name, first=a, end=b) for name, (a, b) in zip(names, ranges, strict=True))
        stages.append(Stage(index=index, start=start, stop=stop, device=names[0], replicas=replicas))
    plan, pieces = draft_stages(problem, tuple(stages), planner)
    check_replicas(plan, pieces, job)
    return with_sync(plan, problem.graph, pieces, topology, job, problem.cost)


def _able(problem: Problem, group: Sequence[int], start: int, stop: int) -> list[int]:
    """The members that can have a share of the stage, in their order."""
    graph = problem.graph
    updates = any(start <= graph.position[value.op] < stop for _, value in graph.state_updates)
    most = 1 if updates else len(problem.job.virtual_ends)
    if len(group) <= most:
        return list(group)
    fastest = sorted(range(len(group)), key=lambda k: (-problem.topology.speeds[group[k]], k))[:most]
    return [group[k] for k in sorted({0, *fastest[: most - 1]} if most > 1 else {0})]


class _Placing:
    """What both have in common: the estimate as a judge, and the check of memory."""

    def __init__(self, evaluate: Evaluate | None) -> None:
        self._evaluate = evaluate

    def _best(self, problem: Problem, plans: Sequence[Plan]) -> Plan:
        """The shortest step that fits.

        Raises:
            PlanError: none fits; the text is about the last.
        """
        judge = self._evaluate or (
            lambda plan: estimate(problem.graph, plan, problem.topology, problem.job, tables=problem.tables)
        )
        found = [(judge(plan), plan) for plan in plans]
        fitting = [(seen.step_seconds, index) for index, (seen, _) in enumerate(found) if seen.feasible]
        if not fitting:
            check_memory(min((seen for seen, _ in found), key=lambda seen: sum(device.lack for device in seen.devices)))
        return found[min(fitting)[1]][1]


class GridPlanner(_Placing):
    """DT-FM's placement (``dtfm``), or its baseline with Kernighan and Lin's gain (``kernighan_lin``)."""

    def __init__(self, method: Literal["dtfm", "kernighan_lin"], evaluate: Evaluate | None = None) -> None:
        super().__init__(evaluate)
        self._method = method
        self.name: str = method

    def judged_by(self, evaluate: Evaluate) -> GridPlanner:
        """The same planner (it has a cost of its own, so the judge only sees what it made)."""
        return GridPlanner(self._method, evaluate)

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """See ``Planner.plan``; the same job gives the same plan."""
        problem = Problem.of(graph, topology, job)
        shapes = _shapes(problem)
        if len(shapes) > 1:
            costs = {shape: self._cost(problem, shape) for shape in shapes}
            shapes = sorted(shapes, key=lambda shape: (costs[shape], shape))
        why: PlanError | None = None
        for shape in shapes:
            try:
                return self._best(problem, [self._grid(problem, shape)])
            except PlanError as error:
                why = why or error
        raise why or PlanError("no grid of stages and replicas has a place for each device; change plan.replicas or workers")

    def _cost(self, problem: Problem, shape: tuple[int, int]) -> float:
        """Cost (1) of a shape after few evaluations: those of a random population, so both methods have the same."""
        held = _COSTS.setdefault(problem.tables, {})
        key = (id(problem.topology), shape, problem.job.micro_batches, problem.job.seed)
        if key not in held:
            if len(held) >= _KEPT:
                held.clear()
            held[key] = problem.topology, float(self._assigned(problem, shape, _SHAPES).cost_seconds)
        return held[key][1]

    def _assigned(self, problem: Problem, shape: tuple[int, int], evaluations: int) -> Assignment:
        """A micro-batch group of the paper is what one pipeline computes in a step."""
        dp, pp = shape
        topology = problem.topology
        parameters = sum(problem.graph.state[name].spec.nbytes for name in problem.graph.trained)
        return assign_grid(
            topology.select([topology.names[i] for i in _fastest(topology, dp * pp)]),
            dp=dp,
            pp=pp,
            pp_bytes=cut_bytes(problem) * problem.job.micro_batches / dp,
            dp_bytes=parameters / pp,
            method=self._method,
            seconds=None,
            evaluations=evaluations,
            seed=problem.job.seed,
        )

    def _grid(self, problem: Problem, shape: tuple[int, int]) -> Plan:
        chosen = _fastest(problem.topology, shape[0] * shape[1])
        groups = [[chosen[i] for i in group] for group in self._assigned(problem, shape, _BEST).devices]
        cuts = [0, *balanced_cuts(problem, shape[1]), len(problem.graph.ops)]
        return placed_plan(problem, groups, cuts, self.name)


def _fastest(topology: Topology, count: int) -> list[int]:
    order = sorted(range(len(topology)), key=lambda i: (-topology.speeds[i], i))
    return sorted(order[:count])


def _shapes(problem: Problem) -> list[tuple[int, int]]:
    """(dp, pp) of the grids with a place for each device that the job may use."""
    job, count = problem.job, len(problem.topology)
    usable = min(count, job.workers or count)
    stages = len(problem.runs)
    if job.plan.replicas > 1:
        return [(job.plan.replicas, min(stages, usable // job.plan.replicas))] if usable >= job.plan.replicas else []
    updates = bool(problem.graph.state_updates)
    most = 1 if updates else min(usable, len(job.virtual_ends))
    return [(dp, usable // dp) for dp in range(1, most + 1) if usable % dp == 0 and usable // dp <= stages]


class HybridPs(_Placing):
    """Hybrid-PS: clusters of reliable devices are stages, unreliable ones join the nearest."""

    name = "hybrid_ps"

    def judged_by(self, evaluate: Evaluate) -> HybridPs:
        """The same planner (it compares no plans, so the judge only sees its own)."""
        return HybridPs(evaluate)

    def __init__(self, evaluate: Evaluate | None = None) -> None:
        super().__init__(evaluate)

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """See ``Planner.plan``; deterministic. The text models no memory: a stage is taken to need ever more until it fits."""
        problem = Problem.of(graph, topology, job)
        if problem.job.plan.replicas > 1:
            raise PlanError(
                f"plan.replicas = {problem.job.plan.replicas}, but hybrid_ps makes stages of as many devices as their clusters "
                "have: set it to 1, or take another planner"
            )
        why: PlanError | None = None
        for factor in _MORE:
            try:
                return self._best(problem, [self._placed(problem, factor)])
            except PlanError as error:
                why = why or error
        assert why is not None
        raise why

    def _placed(self, problem: Problem, factor: float) -> Plan:
        """The plan for parameters that take ``factor`` times what they, gradients and optimizer take."""
        job, topology, graph = problem.job, problem.topology, problem.graph
        limit = min(len(topology), job.workers or len(topology))
        devices = topology.devices
        chosen = sorted(range(len(topology)), key=lambda i: (not devices[i].reliable, -topology.speeds[i], i))
        part = topology.select([topology.names[i] for i in sorted(chosen[:limit])])
        work = problem.cost.forward_sum + problem.cost.backward_sum
        trained = sum(graph.state[name].spec.nbytes for name in graph.trained)
        found = plan_hybrid_ps(
            part,
            HybridPsWork(
                flops=max(1.0, float(work[-1]) * job.micro_batches),
                message=cut_bytes(problem),
                mini_batches=job.micro_batches,
                layers=len(problem.runs),
                parameters=factor * trained * (2.0 + state_factor(job.optimizer, graph)),
            ),
        )
        groups = []
        for stage in found.stages:
            members = sorted({*stage.servers, *stage.clients}, key=lambda i: (i not in stage.servers, -part.speeds[i], i))
            groups.append([topology.index(part.names[i]) for i in members])
        layers = np.cumsum([stage.layers for stage in found.stages])
        return placed_plan(problem, groups, _cuts_at(problem, (layers[:-1] / layers[-1]).tolist()), self.name)


def _cuts_at(problem: Problem, shares_of_work: Sequence[float]) -> list[int]:
    """Cuts (both ends included) after these parts of the model's FLOPs, at the narrowest of the places nearby.

    Raises:
        PlanError: the model has fewer parts than stages.
    """
    cost = problem.cost
    work = cost.forward_sum + cost.backward_sum
    starts = [run.start for run in problem.runs[1:]]
    near = 0.02 * float(work[-1])
    cuts = [0]
    for number, share in enumerate(shares_of_work):
        later = [s for s in starts if s > cuts[-1]][: len(starts) - number or None]
        if not later:
            raise PlanError(f"the model has {len(problem.runs)} parts for {len(shares_of_work) + 1} stages; use fewer workers")
        wish = share * float(work[-1])
        close = [s for s in later if abs(float(work[s]) - wish) <= near] or [min(later, key=lambda s: abs(float(work[s]) - wish))]
        cuts.append(min(close, key=lambda s: (float(cost.crossing_forward[s]), abs(float(work[s]) - wish))))
    return [*cuts, len(problem.graph.ops)]
