"""The papers' planners whose stages are groups of devices: ``grid``, ``dtfm``, its baselines, and ``hybrid_ps``.

DT-FM (SPEC section 2) places equal stages on a grid of D_dp x D_pp devices by its genetic search; the grid's shape is given.
Here each shape that uses all devices is placed with few evaluations. The shape of least cost (1) whose plan fits is placed with
the paper's 5,000. A job with ``plan.replicas`` above 1 gives D_dp. Hybrid-PS (SPEC section 4) clusters devices into
stages; layers go to stages by power. Its servers and clients share a stage's micro-batches here as replicas, by speed (the text
cuts a mini-batch among them in the same proportion), and the fastest server is the stage's primary. What differs in all of them:
a micro-batch is the smallest share, so a stage has as many devices as micro-batches at most (the fastest stay), and a stage that
updates a state in its forward has one device. The texts model no memory: where no plan of theirs fits, grids of fewer devices
follow, then the orders of single devices that can hold the model. Cost: ``assign_grid``'s and ``plan_hybrid_ps``'s, and a few
estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np

from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.optim import state_factor
from farflung.plan import CostTables, Estimate, Stage, check_memory, check_replicas, estimate
from farflung.plan.model import Plan, Replica
from farflung.plan.synchronization import with_sync
from farflung.planners.base import Evaluate
from farflung.planners.equal import balanced_cuts
from farflung.planners.finish import Problem, draft_stages
from farflung.planners.grid import Assignment, GridMethod, assign_grid
from farflung.planners.hybrid_ps import HybridPsPlan, HybridPsWork, plan_hybrid_ps
from farflung.planners.op_fence import tight_draft
from farflung.planners.replicated import cut_bytes, shares

__all__ = ["GridPlanner", "HybridPs", "placed_plan"]

Groups = Sequence[Sequence[int]]

#: Evaluations of ``assign_grid`` to compare shapes.
_SHAPES = 8
#: Evaluations of the paper's genetic search, for the best shape.
GENETIC = 5000
#: The search of the best shape ends after so many evaluations without a better assignment.
_PATIENCE = 1500
#: Our own search needs fewer.
_OWN = 400
#: The part of a stage that may move, so that stages end between layers, where the least crosses.
_WHOLE_LAYERS = 0.2
#: Grids of fewer devices that are tried where none of all devices fits.
_FEWER = 24
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
    ranges: dict[tuple[float, ...], list[tuple[int, int]]] = {}
    for index, (group, (start, stop)) in enumerate(zip(groups, pairwise(cuts), strict=True)):
        members = _able(problem, group, start, stop)
        names = [topology.names[i] for i in members]
        replicas: tuple[Replica, ...] = ()
        if len(members) > 1:
            speeds = tuple(1.0 if equal else float(topology.speeds[i]) for i in members)
            if speeds not in ranges:
                ranges[speeds] = shares(speeds, job)
            replicas = tuple(Replica(device=name, first=a, end=b) for name, (a, b) in zip(names, ranges[speeds], strict=True))
        stages.append(Stage(index=index, start=start, stop=stop, device=names[0], replicas=replicas))
    plan, pieces = draft_stages(problem, tuple(stages), planner)
    check_replicas(plan, pieces, job)
    return with_sync(plan, problem.graph, pieces, topology, job, problem.cost)


def _able(problem: Problem, group: Sequence[int], start: int, stop: int) -> list[int]:
    """The members that can have a share of the stage, in their order: the first, and the fastest of the others."""
    graph = problem.graph
    updates = any(start <= graph.position[value.op] < stop for _, value in graph.state_updates)
    most = 1 if updates else len(problem.job.virtual_ends)
    others = sorted(range(1, len(group)), key=lambda k: (-problem.topology.speeds[group[k]], k))
    return [group[k] for k in sorted([0, *others[: most - 1]])]


class _Placing:
    """What both have in common: the estimate as a judge, the check of memory, and what is done where nothing of theirs fits."""

    name: str

    def __init__(self, evaluate: Evaluate | None) -> None:
        self._evaluate = evaluate

    def _judged(self, problem: Problem, plan: Plan) -> Estimate:
        if self._evaluate is not None:
            return self._evaluate(plan)
        return estimate(problem.graph, plan, problem.topology, problem.job, tables=problem.tables)

    def _fitting(self, problem: Problem, plan: Plan) -> Plan:
        """``plan``.

        Raises:
            PlanError: it does not fit.
        """
        check_memory(self._judged(problem, plan), problem.job)
        return plan

    def _tight(self, problem: Problem, why: PlanError) -> Plan:
        """The best order of single devices that can hold the model.

        Raises:
            PlanError: ``why``, because there is none or the job wants replicas.
        """
        draft = tight_draft(problem, self.name) if problem.job.plan.replicas == 1 else None
        if draft is None:
            raise why
        return draft.plan


class GridPlanner(_Placing):
    """Equal stages on a grid of D_dp x D_pp devices, placed by ``method`` of ``assign_grid``.

    ``search`` is our own (``grid``). It also compares plain orders and a random placement by their steps. ``dtfm`` is the search
    of the paper, ``kernighan_lin`` its baseline with that gain, ``random`` its baseline without a scheduler (``random_grid``).
    """

    def __init__(self, method: GridMethod, evaluate: Evaluate | None = None) -> None:
        super().__init__(evaluate)
        self._method = method
        self.name = {"search": "grid", "random": "random_grid"}.get(method, method)

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
        for shape in (*shapes, *_smaller(problem, shapes)):
            try:
                short = self._fitting(problem, self._grid(problem, shape, _SHAPES))
            except PlanError as error:
                why = why or error
                continue
            with suppress(PlanError):  # memory plays no part in the search
                return self._fitting(problem, self._grid(problem, shape, _OWN if self._method == "search" else GENETIC))
            return short
        none = "no grid of stages and replicas has a place for each device; change plan.replicas or workers"
        return self._tight(problem, why or PlanError(none))

    def _cost(self, problem: Problem, shape: tuple[int, int]) -> float:
        """Cost (1) of a shape after few evaluations of a random population, the same for all methods."""
        held = _COSTS.setdefault(problem.tables, {})
        key = (id(problem.topology), shape, problem.job.micro_batches, problem.job.seed)
        if key not in held:
            if len(held) >= _KEPT:
                held.clear()
            found = _assigned(problem, shape, "dtfm", _SHAPES)
            held[key] = problem.topology, float(found.cost_seconds)
        return held[key][1]

    def _grid(self, problem: Problem, shape: tuple[int, int], evaluations: int) -> Plan:
        chosen = _chosen(problem, shape[0] * shape[1])
        found: list[Groups] = [_assigned(problem, shape, self._method, evaluations).devices]
        if self._method == "search":  # cost (1) ignores computing, so its optimum may be a slower step than a plain order
            found += [*_plain_orders(shape), _assigned(problem, shape, "random", 1).devices]
        plans = [
            placed_plan(problem, [[chosen[i] for i in group] for group in groups], [0, *cuts, len(problem.graph.ops)], self.name)
            for groups in found
            for cuts in (balanced_cuts(problem, shape[1]), balanced_cuts(problem, shape[1], _WHOLE_LAYERS))
        ]
        seen = [self._judged(problem, plan) for plan in plans]
        return min(zip(plans, seen, strict=True), key=lambda pair: (not pair[1].feasible, pair[1].step_seconds))[0]


def _plain_orders(shape: tuple[int, int]) -> list[Groups]:
    """Devices in the order of the topology: neighbors in one group, and neighbors in one pipeline."""
    dp, pp = shape
    return [
        [[stage * dp + place for place in range(dp)] for stage in range(pp)],
        [[place * pp + stage for place in range(dp)] for stage in range(pp)],
    ]


def _assigned(problem: Problem, shape: tuple[int, int], method: GridMethod, evaluations: int) -> Assignment:
    """A micro-batch group of the paper is what one pipeline computes in a step."""
    dp, pp = shape
    topology = problem.topology
    parameters = sum(problem.graph.state[name].spec.nbytes for name in problem.graph.trained)
    return assign_grid(
        topology.select([topology.names[i] for i in _chosen(problem, dp * pp)]),
        dp=dp,
        pp=pp,
        pp_bytes=cut_bytes(problem) * problem.job.micro_batches / dp,
        dp_bytes=parameters / pp,
        method=method,
        seconds=None,
        evaluations=evaluations,
        patience=_PATIENCE,
        seed=problem.job.seed,
    )


def _chosen(problem: Problem, count: int) -> list[int]:
    """The fastest devices; of fewer than the job may use, those that have the most memory."""
    topology = problem.topology
    room = [float(device.memory) if count < _usable(problem) else 0.0 for device in topology.devices]
    order = sorted(range(len(topology)), key=lambda i: (-room[i], -topology.speeds[i], i))
    return sorted(order[:count])


def _shapes(problem: Problem) -> list[tuple[int, int]]:
    """(dp, pp) of the grids with a place for each device that the job may use."""
    job, usable, stages = problem.job, _usable(problem), len(problem.runs)
    if job.plan.replicas > 1:
        return [(job.plan.replicas, min(stages, usable // job.plan.replicas))] if usable >= job.plan.replicas else []
    return [(dp, usable // dp) for dp in range(1, _widest(problem) + 1) if usable % dp == 0 and usable // dp <= stages]


def _smaller(problem: Problem, shapes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Grids that leave out devices, those that leave out fewest first."""
    job, usable, stages = problem.job, _usable(problem), len(problem.runs)
    wide = [job.plan.replicas] if job.plan.replicas > 1 else range(1, _widest(problem) + 1)
    found = {(dp, pp) for dp in wide for pp in range(1, min(stages, usable // dp) + 1)} - set(shapes)
    return sorted(found, key=lambda shape: (-shape[0] * shape[1], shape))[:_FEWER]


def _usable(problem: Problem) -> int:
    return min(len(problem.topology), problem.job.workers or len(problem.topology))


def _widest(problem: Problem) -> int:
    """The most replicas that a stage can have everywhere."""
    return 1 if problem.graph.state_updates else min(_usable(problem), len(problem.job.virtual_ends))


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
        part = _reliable_first(problem)
        why: PlanError | None = None
        for factor in _MORE:
            try:
                return self._placed(problem, plan_hybrid_ps(part, _work(problem, factor)), part)
            except PlanError as error:
                why = why or error
        assert why is not None
        reliable = [device.name for device in part.devices if device.reliable]
        if not reliable:
            raise why
        with suppress(PlanError):
            return self._tight(replace(problem, topology=part.select(reliable)), why)
        return self._tight(problem, why)  # the reliable devices alone lack memory

    def _placed(self, problem: Problem, found: HybridPsPlan, part: Topology) -> Plan:
        """The plan of ``found``, without the clients that lack memory.

        Raises:
            PlanError: a server lacks memory, or the stages cannot be made.
        """
        topology = problem.topology
        layers = np.cumsum([stage.layers for stage in found.stages])
        cuts = _cuts_at(problem, (layers[:-1] / layers[-1]).tolist())
        clients = {i for stage in found.stages for i in stage.clients}
        while True:
            groups = []
            for stage in found.stages:
                members = sorted({*stage.servers, *(clients & {*stage.clients})}, key=lambda i: _rank(part, i))
                groups.append([topology.index(part.names[i]) for i in members])
            plan = placed_plan(problem, groups, cuts, self.name)
            judged = self._judged(problem, plan)
            lacking = {i for i in clients if any(d.device == part.names[i] and d.lack > 0 for d in judged.devices)}
            if not lacking:
                check_memory(judged, problem.job)
                return plan
            clients -= lacking


def _rank(topology: Topology, index: int) -> tuple[bool, float, int]:
    """Reliable devices first, then the fastest."""
    return not topology.devices[index].reliable, -float(topology.speeds[index]), index


def _reliable_first(problem: Problem) -> Topology:
    """The devices that the job may use, reliable ones before others."""
    topology = problem.topology
    chosen = sorted(range(len(topology)), key=lambda i: _rank(topology, i))[: _usable(problem)]
    return topology.select([topology.names[i] for i in sorted(chosen)])


def _work(problem: Problem, factor: float) -> HybridPsWork:
    """The job in Hybrid-PS's terms; parameters take ``factor`` times what they, gradients and optimizer take."""
    job, graph = problem.job, problem.graph
    work = problem.cost.forward_sum + problem.cost.backward_sum
    trained = sum(graph.state[name].spec.nbytes for name in graph.trained)
    return HybridPsWork(
        flops=max(1.0, float(work[-1]) * job.micro_batches),
        message=cut_bytes(problem),
        mini_batches=job.micro_batches,
        layers=len(problem.runs),
        parameters=factor * trained * (2.0 + state_factor(job.optimizer, problem.graph)),
    )


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
