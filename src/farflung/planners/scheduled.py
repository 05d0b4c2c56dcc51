"""``schedule = "auto"`` around any planner: 1F1B, or an eager one where links make stages wait.

Each of the schedules is judged with the planner's own stages; the one with fewer micro-batches in flight stays unless another
is shorter by a fiftieth and fits. Cost: four estimates.
"""

from __future__ import annotations

from dataclasses import replace

from farflung.cluster import Topology
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import CostTables, Plan, estimate
from farflung.planners.base import Evaluate, Judged, Planner
from farflung.schedules import EAGER

__all__ = ["Scheduling"]

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
