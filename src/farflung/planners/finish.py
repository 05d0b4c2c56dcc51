"""From placed runs to a checked plan: recomputation where memory needs it, codecs, estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

from farflung.cluster import Topology
from farflung.cost import ALLOCATOR, OpCost
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph
from farflung.graph.modules import ModuleRun
from farflung.job.spec import JobSpec
from farflung.plan import CostTables, Estimate, Plan, Stage, assign_codecs, check_memory, codec_of, estimate
from farflung.plan.estimation.stage_memory import exchange_memory, memory_of
from farflung.plan.model import Offload, Replica, Shard
from farflung.plan.synchronization import named_sync
from farflung.planners.cuts import join_runs
from farflung.schedules import part_of

__all__ = ["Draft", "Problem", "draft_plan", "draft_stages", "finish", "settle", "with_recompute"]


_RUNS: WeakKeyDictionary[CostTables, tuple[ModuleRun, ...]] = WeakKeyDictionary()


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
        """The module runs between which stages may end (tasks on the same tables have the same)."""
        if self.tables not in _RUNS:
            _RUNS[self.tables] = join_runs(self.graph, self.cost.allowed.tolist())
        return _RUNS[self.tables]


@dataclass(frozen=True, kw_only=True, eq=False)
class Draft:
    """A plan with its estimate; it may not fit."""

    plan: Plan
    estimate: Estimate


def draft_plan(problem: Problem, placed: Sequence[tuple[int, int, str]], planner: str) -> tuple[Plan, tuple[SubGraph, ...]]:
    """The plan whose stages are the runs ``placed`` (start, stop, device), and its cut; it may not fit."""
    stages = tuple(Stage(index=i, start=a, stop=b, device=device) for i, (a, b, device) in enumerate(placed))
    return draft_stages(problem, stages, planner)


def draft_stages(problem: Problem, stages: tuple[Stage, ...], planner: str) -> tuple[Plan, tuple[SubGraph, ...]]:
    """The plan of given stages, which may have replicas: recomputation and codecs are decided here; and its cut."""
    graph, job = problem.graph, problem.job
    pieces = problem.tables.cutter.cut([(stage.start, stage.stop) for stage in stages])
    stages = with_recompute(problem, stages, pieces)
    plan = Plan(
        graph_hash=graph.hash,
        planner=planner,
        stages=stages,
        links=assign_codecs(stages, pieces, problem.topology, codec_of(job), _pace(problem, stages)),
        schedule=job.plan.base_schedule,
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
        index = problem.topology.index(stage.device)
        cost = problem.tables.table(problem.topology.devices[index].kind)
        forward, backward = (float(work[stage.stop] - work[stage.start]) for work in (cost.forward_sum, cost.backward_sum))
        seconds = (forward * (2 if stage.recompute else 1) + backward) / float(problem.topology.speeds[index])
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


def with_recompute(problem: Problem, stages: tuple[Stage, ...], pieces: Sequence[SubGraph]) -> tuple[Stage, ...]:
    """``auto``: on a device that is too small, stages recompute in the order of what they save, until it fits.

    All stages have optimizer states on disks, and parameters that ranks divide, if the job says so: ``planners.scheduled`` lets
    it say so, and decides what stays.
    """
    wish, job = problem.job.plan.recompute, problem.job
    offload: Offload = "optimizer" if job.plan.offload == "optimizer" else "none"
    shard: Shard = "none" if job.plan.shard == "auto" else job.plan.shard
    stages = tuple(replace(stage, offload=offload, shard=shard) for stage in stages)
    if wish != "auto":
        return tuple(replace(stage, recompute=wish == "always") for stage in stages)
    kept: dict[str, list[_Kept]] = {}
    for stage, sub in zip(stages, pieces, strict=True):
        extra = exchange_memory(problem.tables, stage, sub, job, named_sync(job)) if stage.replicas else 0.0
        for held in stage.replicas or (Replica(device=stage.device, first=0, end=job.micro_batches),):
            cost = problem.tables.table(problem.topology.device(held.device).kind)
            share = (held.first, held.end)
            flying = part_of(job.plan.base_schedule, len(stages), job.micro_batches, stage.index, share).in_flight
            full = float(memory_of(cost, stage, sub, job, flying, recompute=False).total[0]) + extra
            kept.setdefault(held.device, []).append(_Kept(cost, stage, sub, flying, extra, full))
    chosen: set[int] = set()
    for device, own in kept.items():
        limit = float(problem.topology.device(device).memory)
        if sum(held.full for held in own) <= limit and not any(held.stage.index in chosen for held in own):
            continue
        items = [_item(held, job) for held in own]
        for saved, _, again, index in sorted(items, reverse=True):
            saves = saved > 0 or (len(items) > 1 and saved + again > 0)
            if saves and index not in chosen and _held(items, chosen) > limit:
                chosen.add(index)
    return tuple(replace(stage, recompute=stage.index in chosen) for stage in stages)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A copy of a stage on a device: micro-batches in flight, bytes of the exchange, and all bytes if it does not recompute."""

    cost: OpCost
    stage: Stage
    sub: SubGraph
    flying: int
    extra: float
    full: float


def _item(held: _Kept, job: JobSpec) -> tuple[float, float, float, int]:
    """(bytes that recomputing saves, bytes without, of those with it what a second forward makes, stage)."""
    cost, stage, sub = held.cost, held.stage, held.sub
    less = float(memory_of(cost, stage, sub, job, held.flying, recompute=True).total[0]) + held.extra
    again = ALLOCATOR * float(memory_of(cost, stage, sub, job, 0, recompute=True).activations[0])
    return held.full - less, held.full, again, stage.index


def _held(items: Sequence[tuple[float, float, float, int]], chosen: set[int]) -> float:
    """Bytes of a device's stages of which the ``chosen`` recompute, one at a time (see ``plan.estimation``)."""
    again = [item[2] for item in items if item[3] in chosen]
    whole = sum(full - (saved if index in chosen else 0.0) for saved, full, _, index in items)
    return whole - sum(again) + max(again, default=0.0)
