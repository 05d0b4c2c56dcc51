"""OP-Fence as FusionLLM's section 4 has it, on all devices: Louvain communities, one run of the model each, shares by speed.

The text gives no order of communities and no cuts. Here: the order whose slowest link between neighbors is fastest, and within
a community the topology's order. The first order that fits into memory is taken. A cut between two communities is the one with
the least traffic among the positions that change a share by at most a tenth. There is no search.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import Plan
from farflung.planners.communities import chain_orders, louvain_communities, transfer_seconds
from farflung.planners.equal import place
from farflung.planners.finish import Problem, settle

__all__ = ["OpFenceAsWritten", "shares"]

_ORDERS = 20
#: The part of a mean share that a cut between communities may move.
_MOVED = 0.1


class OpFenceAsWritten:
    """The planner of FusionLLM's text."""

    name = "op_fence as written"

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """See ``Planner.plan``.

        Raises:
            PlanError: no order of communities fits into memory.
        """
        problem = Problem.of(graph, topology, job)
        message = float(max(problem.cost.crossing_forward.max(), 1.0))
        refused = PlanError("no order of communities fits; add memory")
        for order in chain_orders(louvain_communities(topology), transfer_seconds(topology, message), _ORDERS):
            try:
                return settle(problem, shares(problem, order), self.name)
            except PlanError as error:
                refused = error
        raise refused


def shares(problem: Problem, order: Sequence[Sequence[int]]) -> list[tuple[int, int, str]]:
    """Runs of the model on all devices of ``order`` (fewer if there are fewer runs), with FLOPs in proportion to speed."""
    devices = [i for group in order for i in group][: len(problem.runs)]
    last = {group[-1] for group in order}
    cost = problem.cost
    work, traffic = cost.forward_sum + cost.backward_sum, cost.crossing_forward + cost.crossing_backward
    reached = list(accumulate(float(problem.topology.speeds[i]) for i in devices))
    mean, starts = float(work[-1]) / len(devices), [run.start for run in problem.runs]
    cuts: list[int] = []
    at = 0
    for index, device in enumerate(devices[:-1]):
        wanted = reached[index] / reached[-1] * float(work[-1])
        left = len(devices) - 1 - index
        free = range(at + 1, len(starts) - left + 1)
        at = min(free, key=lambda k: abs(float(work[starts[k]]) - wanted))
        if device in last:
            near = [k for k in free if abs(float(work[starts[k]]) - float(work[starts[at]])) <= _MOVED * mean]
            at = min(near, key=lambda k: (float(traffic[starts[k]]), abs(float(work[starts[k]]) - wanted)))
        cuts.append(starts[at])
    return place(problem.graph, cuts, [problem.topology.names[i] for i in devices])
