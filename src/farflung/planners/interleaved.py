"""``schedule = "interleaved-N"`` around any planner: each device's share of the model in N parts, dealt out in rounds.

Source: Narayanan et al. 2021, section 2.2. The planner inside places one stage on each device, for 1F1B. Each round of the
interleaved plan passes these devices in this order, and each device gets the same part of the work as before, over all rounds.
Cuts: the largest stage, in relation to its device's part, is as small as can be (dynamic program over stages and candidates);
among cuts of equal work, the one with the least traffic. Cost: O(stages x candidates^2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import Plan, check_memory, check_replicas, estimate
from farflung.plan.model import Stage
from farflung.plan.synchronization import with_sync
from farflung.planners.base import Evaluate, Judged, Planner
from farflung.planners.equal import cheapest_cuts
from farflung.planners.finish import Problem, draft_stages

__all__ = ["Interleaving"]


class Interleaving:
    """``planner``, but a job whose schedule is interleaved gets several stages on each device."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self.name = planner.name

    def judged_by(self, evaluate: Evaluate) -> Planner:
        """The same planner; the one inside compares plans by ``evaluate``."""
        return Interleaving(self._planner.judged_by(evaluate)) if isinstance(self._planner, Judged) else self

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """See ``Planner.plan``. On one device, there is nothing to interleave.

        Raises:
            PlanError: the model has too few parts for the stages, or the stages do not fit into memory.
        """
        job = job or JobSpec()
        name, _, chunks = job.plan.schedule.rpartition("-")
        if name != "interleaved":
            return self._planner.plan(graph, topology, job=job)
        plain = job.model_copy(update={"plan": job.plan.model_copy(update={"schedule": "1f1b"})})
        found = self._planner.plan(graph, topology, job=plain)
        if len(found.stages) == 1:
            return found
        problem = Problem.of(graph, topology, job)
        stages = _dealt_out(problem, found.stages, int(chunks))
        plan, pieces = draft_stages(problem, stages, found.planner)
        check_replicas(plan, pieces, job)
        plan = with_sync(plan, graph, pieces, topology, job, problem.cost)
        check_memory(estimate(graph, plan, topology, job, subgraphs=pieces, tables=problem.tables), job)
        return plan


def _dealt_out(problem: Problem, slots: Sequence[Stage], chunks: int) -> tuple[Stage, ...]:
    """``chunks`` rounds of stages over the devices of ``slots``."""
    work = problem.cost.forward_sum + problem.cost.backward_sum
    own = [max(float(work[slot.stop] - work[slot.start]), 1.0) for slot in slots]
    starts = [run.start for run in problem.runs]
    count = chunks * len(slots)
    if len(starts) < count:
        raise PlanError(
            f"plan.schedule = 'interleaved-{chunks}' needs {count} stages on {len(slots)} devices, and the model divides into "
            f"{len(starts)} modules: set workers to a smaller number, or plan.schedule = '1f1b'"
        )
    ends = np.array([*starts, len(problem.graph.ops)])
    cuts = cheapest_cuts(problem, _cuts(work[ends], ends, own * chunks), work)
    bounds = [0, *cuts, len(problem.graph.ops)]
    return tuple(
        replace(slots[index % len(slots)], index=index, start=bounds[index], stop=bounds[index + 1], recompute=False, adds=None)
        for index in range(count)
    )


def _cuts(work: npt.NDArray[np.float64], ends: npt.NDArray[np.int64], parts: Sequence[float]) -> list[int]:
    """Positions between stages of which the largest, divided by its part, is as small as can be. ``work``: before each end."""
    between = np.where(np.arange(len(ends))[:, None] < np.arange(len(ends)), work - work[:, None], np.inf)
    best = np.where(np.arange(len(ends)) == 0, 0.0, np.inf)
    chosen = []
    for part in parts:
        largest = np.maximum(best[:, None], between / part)
        chosen.append(largest.argmin(axis=0))
        best = largest.min(axis=0)
    at, cuts = len(ends) - 1, list[int]()
    for before in reversed(chosen):
        at = int(before[at])
        cuts.append(int(ends[at]))
    return cuts[-2::-1]
