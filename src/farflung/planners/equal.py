"""Baselines that ignore the links: equal numbers of modules, equal FLOPs, and random cuts for tests.

They place the model's runs along the devices in the topology's order. A plan that does not fit is refused, not repaired.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from farflung.cluster import Topology
from farflung.graph.ir import Graph
from farflung.graph.modules import ModuleRun
from farflung.ids import derive_seed
from farflung.job.spec import JobSpec
from farflung.plan.model import Plan
from farflung.planners.finish import Problem, settle

__all__ = [
    "EqualCompute",
    "EqualNumber",
    "RandomCuts",
    "balanced_cuts",
    "cheapest_cuts",
    "equal_compute_cuts",
    "equal_number_cuts",
    "place",
]

Vector = npt.NDArray[np.float64]

#: Work of at most this part of the largest share may change sides of a cut, which changes a share by at most twice as much.
_EQUAL = 5e-3


def place(graph: Graph, cuts: Sequence[int], devices: Sequence[str]) -> list[tuple[int, int, str]]:
    """Runs between the cut positions ``cuts`` (ascending, ends left out), one on each device."""
    bounds = [0, *cuts, len(graph.ops)]
    return [(bounds[i], bounds[i + 1], devices[i]) for i in range(len(bounds) - 1)]


def _count(topology: Topology, pieces: int, job: JobSpec) -> int:
    return max(1, min(len(topology), pieces, job.workers or len(topology)))


class EqualNumber:
    """The same number of module runs on each device (FusionLLM's first baseline)."""

    name = "equal_number"

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """See ``Planner.plan``."""
        problem = Problem.of(graph, topology, job)
        return settle(problem, equal_number_cuts(problem), self.name)


def equal_number_cuts(problem: Problem) -> list[tuple[int, int, str]]:
    """The runs that ``EqualNumber`` places."""
    runs = problem.runs
    count = _count(problem.topology, len(runs), problem.job)
    cuts = [runs[len(runs) * i // count].start for i in range(1, count)]
    return place(problem.graph, cuts, problem.topology.names)


class EqualCompute:
    """The same FLOPs on each device, whatever its speed (FusionLLM's second baseline).

    The largest share is least, to one part in a hundred; of cuts that differ by less than that (a norm, a residual sum or a view
    on this side or on that) the one with the least traffic is taken, because FLOPs say nothing about them.
    """

    name = "equal_compute"

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """See ``Planner.plan``."""
        problem = Problem.of(graph, topology, job)
        return settle(problem, equal_compute_cuts(problem), self.name)


def equal_compute_cuts(problem: Problem) -> list[tuple[int, int, str]]:
    """The runs that ``EqualCompute`` places."""
    count = _count(problem.topology, len(problem.runs), problem.job)
    return place(problem.graph, balanced_cuts(problem, count), problem.topology.names)


def balanced_cuts(problem: Problem, count: int, tolerance: float = _EQUAL) -> list[int]:
    """Cuts into ``count`` pieces of equal FLOPs, where least crosses among equals: up to ``tolerance`` of a piece may move."""
    work = problem.cost.forward_sum + problem.cost.backward_sum
    cuts = _balanced(problem.runs, [float(work[run.stop] - work[run.start]) for run in problem.runs], count)
    return cheapest_cuts(problem, cuts, work, tolerance)


def cheapest_cuts(problem: Problem, cuts: Sequence[int], work: Vector, tolerance: float = _EQUAL) -> list[int]:
    """Each cut at the position with the least traffic among those of equal FLOPs, pieces still non-empty."""
    traffic = problem.cost.crossing_forward + problem.cost.crossing_backward
    ends = [0, *cuts, len(problem.graph.ops)]
    moved = tolerance * max(float(work[b] - work[a]) for a, b in pairwise(ends))
    starts = [run.start for run in problem.runs]
    for i in range(1, len(ends) - 1):
        here, before, after = ends[i], ends[i - 1], ends[i + 1]
        equal = [s for s in starts if before < s < after and abs(work[s] - work[here]) <= moved]
        ends[i] = min(equal, key=lambda s: (float(traffic[s]), abs(float(work[s] - work[here]))))
    return ends[1:-1]


def _balanced(runs: Sequence[ModuleRun], work: Sequence[float], count: int) -> list[int]:
    """Cuts into ``count`` non-empty pieces whose largest is as small as can be (bisection on the largest, greedy filling)."""
    low, high = max(work), sum(work)
    for _ in range(60):
        middle = (low + high) / 2
        if _pieces(work, middle) <= count:
            high = middle
        else:
            low = middle
    cuts: list[int] = []
    filled = 0.0
    for index, amount in enumerate(work):
        left_runs, left_pieces = len(runs) - index, count - 1 - len(cuts)
        full = filled + amount > high * (1 + 1e-12)
        if index and left_pieces > 0 and (full or left_runs == left_pieces):
            cuts.append(runs[index].start)
            filled = 0.0
        filled += amount
    return cuts


def _pieces(work: Sequence[float], limit: float) -> int:
    pieces, filled = 1, 0.0
    for amount in work:
        if filled + amount > limit:
            pieces, filled = pieces + 1, 0.0
        filled += amount
    return pieces


class RandomCuts:
    """Random cuts at any allowed position on a random order of devices, from the job's seed; for tests of invariant 1."""

    name = "random"

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """See ``Planner.plan``; the same job seed, graph size and number of devices give the same plan."""
        problem = Problem.of(graph, topology, job)
        random = np.random.default_rng(derive_seed("planner", problem.job.seed))
        allowed = problem.cost.allowed
        cuts = [position for position in range(1, len(graph.ops)) if allowed[position]]
        count = _count(topology, len(cuts) + 1, problem.job)
        chosen = sorted(int(position) for position in random.choice(cuts, size=count - 1, replace=False)) if count > 1 else []
        devices = [topology.names[int(i)] for i in random.permutation(len(topology))[:count]]
        return settle(problem, place(graph, chosen, devices), self.name)
