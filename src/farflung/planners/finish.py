"""From placed runs to a checked plan: recomputation where memory needs it, codecs, estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from farflung.cluster import Topology
from farflung.cost import OpCost
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph
from farflung.graph.modules import ModuleRun
from farflung.job.spec import JobSpec
from farflung.plan import CostTables, Estimate, Plan, Stage, assign_codecs, check_memory, estimate
from farflung.plan.estimate import memory_of
from farflung.planners.cuts import join_runs
from farflung.schedules import get_schedule, in_flight

__all__ = ["Draft", "Problem", "draft_plan", "finish", "settle"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """One planning task with what is computed once."""

    graph: Graph
    topology: Topology
    job: JobSpec
    tables: CostTables

    @classmethod
    def of(cls, graph: Graph, topology: Topology, job: JobSpec | None) -> Problem:
        """The task of planning ``graph`` on ``topology`` for ``job``."""
        return cls(graph=graph, topology=topology, job=job or JobSpec(), tables=CostTables.of(graph))

    @property
    def cost(self) -> OpCost:
        """The cost table for the first device's kind (FLOPs and traffic are the same for all kinds)."""
        return self.tables.table(self.topology.devices[0].kind)

    @cached_property
    def runs(self) -> tuple[ModuleRun, ...]:
        """The module runs between which stages may end."""
        return join_runs(self.graph, self.cost.allowed.tolist())


@dataclass(frozen=True, kw_only=True, eq=False)
class Draft:
    """A plan with its estimate; it may not fit."""

    plan: Plan
    estimate: Estimate


def draft_plan(problem: Problem, placed: Sequence[tuple[int, int, str]], planner: str) -> tuple[Plan, tuple[SubGraph, ...]]:
    """The plan whose stages are the runs ``placed`` (start, stop, device), and its cut; it may not fit."""
    graph, job = problem.graph, problem.job
    stages = tuple(Stage(index=i, start=a, stop=b, device=device) for i, (a, b, device) in enumerate(placed))
    pieces = problem.tables.cutter.cut([(stage.start, stage.stop) for stage in stages])
    stages = _with_recompute(problem, stages, pieces)
    plan = Plan(
        graph_hash=graph.hash,
        planner=planner,
        stages=stages,
        links=assign_codecs(stages, pieces, problem.topology, job.codec, _pace(problem, stages)),
        schedule=job.plan.schedule,
        micro_batch_sizes=job.micro_batch_sizes,
    )
    return plan, pieces


def finish(problem: Problem, placed: Sequence[tuple[int, int, str]], planner: str) -> Draft:
    """The plan whose stages are the runs ``placed`` (start, stop, device)."""
    plan, pieces = draft_plan(problem, placed, planner)
    found = estimate(problem.graph, plan, problem.topology, problem.job, subgraphs=pieces, tables=problem.tables)
    return Draft(plan=plan, estimate=found)


def _pace(problem: Problem, stages: Sequence[Stage]) -> float:
    """Seconds that the busiest device computes for one micro-batch."""
    busy: dict[str, float] = {}
    for stage in stages:
        device = problem.topology.device(stage.device)
        cost = problem.tables.table(device.kind)
        forward, backward = (float(work[stage.stop] - work[stage.start]) for work in (cost.forward_sum, cost.backward_sum))
        seconds = (forward * (2 if stage.recompute else 1) + backward) / device.achieved
        busy[stage.device] = busy.get(stage.device, 0.0) + seconds
    return max(busy.values(), default=0.0)


def settle(problem: Problem, placed: Sequence[tuple[int, int, str]], planner: str) -> Plan:
    """``finish``, and constraint (6).

    Raises:
        PlanError: a device lacks memory; the text says which and how much.
    """
    draft = finish(problem, placed, planner)
    check_memory(draft.estimate)
    return draft.plan


def _with_recompute(problem: Problem, stages: tuple[Stage, ...], pieces: Sequence[SubGraph]) -> tuple[Stage, ...]:
    """``auto``: on a device that is too small, stages recompute in the order of what they save, until it fits."""
    wish = problem.job.plan.recompute
    if wish != "auto":
        return tuple(replace(stage, recompute=wish == "always") for stage in stages)
    orders = get_schedule(problem.job.plan.schedule).actions(len(stages), problem.job.micro_batches)
    kept: dict[str, list[tuple[float, float, int]]] = {}
    for stage, sub, order in zip(stages, pieces, orders, strict=True):
        cost = problem.tables.table(problem.topology.device(stage.device).kind)
        full, less = (
            float(memory_of(cost, stage, sub, problem.job, in_flight(order), recompute).total[0]) for recompute in (False, True)
        )
        kept.setdefault(stage.device, []).append((full - less, full, stage.index))
    chosen: set[int] = set()
    for device, items in kept.items():
        over = sum(full for _, full, _ in items) - float(problem.topology.device(device).memory)
        for saved, _, index in sorted(items, reverse=True):
            if over > 0 and saved > 0:
                chosen.add(index)
                over -= saved
    return tuple(replace(stage, recompute=stage.index in chosen) for stage in stages)
