"""``auto``: the planner; see ``search`` for what it does."""

from __future__ import annotations

from farflung.clock import Clock, MonotonicClock
from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import Plan
from farflung.planners.auto.search import Search
from farflung.planners.auto.settings import AutoSettings, Trial, allowed
from farflung.planners.base import Evaluate
from farflung.planners.finish import Problem

__all__ = ["Auto"]


class Auto:
    """Searches from the other planners' plans. ``trials`` holds what was judged in the last search, in order."""

    name = "auto"

    def __init__(
        self, settings: AutoSettings | None = None, evaluate: Evaluate | None = None, clock: Clock | None = None
    ) -> None:
        self.settings, self.evaluate = settings or AutoSettings(), evaluate
        self.clock = clock or MonotonicClock()
        self.trials: list[Trial] = []

    def judged_by(self, evaluate: Evaluate) -> Auto:
        """The same planner with ``evaluate`` as its judge (default: the estimate's timed dry-run)."""
        return Auto(self.settings, evaluate, self.clock)

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """See ``Planner.plan``; the same seed of the job, judge and number of evaluations give the same plan.

        Raises:
            PlanError: no plan was found that fits, or everything is excluded.
        """
        problem = Problem.of(graph, allowed(topology, self.settings.exclude), job)
        search = Search(problem, self.settings, self.evaluate, self.clock)
        search.run()
        self.trials = search.trials
        if search.best is None:
            raise search.failure or PlanError("no plan exists: nothing fits the devices; add devices or memory")
        return search.best.plan
