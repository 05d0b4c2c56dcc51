"""Limits for planners, which run on threads of the broker: few predictions at once, a deadline, and an end when nobody waits.

A planner can't be interrupted, but it predicts plans again and again. So each prediction first checks these limits. A job with
thousands of micro-batches takes seconds for each prediction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from farflung.broker.planning.run_planner import Judge
from farflung.clock import monotonic
from farflung.cluster import Topology
from farflung.errors import Stopped, TrainingError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import Estimate, Plan, estimate
from farflung.planners import Evaluate

__all__ = ["LimitedJudges"]

#: Predictions that run at the same time. Python computes one at a time: each more takes a share from the other threads.
_AT_ONCE = 2
#: Seconds that the planner of one attempt may take.
_MOST_SECONDS = 1800.0


def _timed(graph: Graph, topology: Topology, job: JobSpec) -> Evaluate:
    return lambda plan: estimate(graph, plan, topology, job)


@dataclass(frozen=True, slots=True)
class LimitedJudges:
    """Makes judges that stop their planner. ``judge`` predicts (default: the timed dry-run); planners get ``seconds`` each."""

    judge: Judge | None = None
    seconds: float = _MOST_SECONDS
    turns: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(_AT_ONCE))

    def until(self, wanted: Callable[[], bool]) -> Judge:
        """Return a judge for one planner that starts now.

        Its predictions raise ``Stopped`` once ``wanted`` returns false, and ``TrainingError`` after the deadline. Neither is a
        ``PlanError``, which planners take for a plan that doesn't fit.
        """
        end = monotonic() + self.seconds

        def limited(graph: Graph, topology: Topology, job: JobSpec) -> Evaluate:
            inner = (self.judge or _timed)(graph, topology, job)

            def evaluate(plan: Plan) -> Estimate:
                with self.turns:
                    if not wanted():
                        raise Stopped("the run does not wait for this plan any more")
                    if monotonic() >= end:
                        raise TrainingError(
                            f"the planner took more than {self.seconds:.0f} seconds: use fewer and larger micro-batches, or a "
                            'faster planner, such as plan.planner = "equal_compute"'
                        )
                    return inner(plan)

            return evaluate

        return limited
