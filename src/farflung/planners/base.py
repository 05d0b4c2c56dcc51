"""What a planner is: graph, topology and job in, plan out; and how a better judge of plans is handed to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from farflung.cluster import Topology
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan.estimation.results import Estimate
from farflung.plan.model import Plan

__all__ = ["Evaluate", "Judged", "Planner"]

#: Judges a plan: its estimate, whose step time may come from a simulation (``api`` hands that in).
Evaluate = Callable[[Plan], Estimate]


class Planner(Protocol):
    """Decides which device runs which operators, and how its links are compressed."""

    name: str

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """A plan that satisfies constraint (6).

        ``graph`` is captured for the job's largest micro-batch. ``job.workers`` bounds the number of devices.

        Raises:
            PlanError: no plan fits; the text says which device lacks how much.
        """


@runtime_checkable
class Judged(Protocol):
    """A planner that compares whole plans and takes whoever judges them."""

    def judged_by(self, evaluate: Evaluate) -> Planner:
        """The same planner with ``evaluate`` as its judge."""
