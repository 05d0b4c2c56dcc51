"""OP-Fence (FusionLLM section 4): fast communities of devices get connected pieces of the model.

The text gives the two ideas (Louvain communities on bandwidth; one connected sub-graph each, balanced by speed inside under
the memory constraint) and no algorithm. Here: communities by Louvain and by average linkage; their orders along the chain;
for each order of devices the cuts by ``chain_dp``, which puts small cuts on slow links because it pays for them; a local
search that swaps, drops and takes back devices inside communities; orders begin and end at communities with memory for the
first and the last stage, and devices too small for whatever others leave to them are left out; and of the best few the one
whose whole step, run against the schedule by the timed dry-run with the real codecs, is shortest. The plans of the two
baselines compete too, so that the result is never predicted to be slower than they are. Where a tied parameter would cross slow
links at every step, plans whose last stage returns to the first device compete as well. Where nothing fits, orders that can
hold the model are found exactly (``fitting``), then those that can with shares in pieces (``pieces``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import check_memory
from farflung.plan.model import Plan
from farflung.planners.chain_dp import Chain, ChainPlan
from farflung.planners.communities import chain_orders, linkage_communities, louvain_communities, transfer_seconds
from farflung.planners.equal import equal_compute_cuts, equal_number_cuts
from farflung.planners.finish import Draft, Problem, finish
from farflung.planners.fitting import fitting_orders

__all__ = ["OpFence", "tight_draft"]

Placed = tuple[tuple[int, int, str], ...]
Order = tuple[int, ...]

#: Element operations that the dynamic programs of one search may spend (about a second on one core).
_BUDGET = 2.5e8
_MOST_ORDERS = 60
#: So many are tried at least, before the local search and in it.
_LEAST = 20
_FINALISTS = 12
#: Orders of different lengths that are looked for where nothing else fits.
_FITTING = 6
#: Graphs of more operators get a quarter of the finalists: cutting one takes a second.
_LARGE = 2000


class OpFence:
    """Communities, chain of communities, cuts, and the dry-run as the judge."""

    name = "op_fence"

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """See ``Planner.plan``; deterministic."""
        problem = Problem.of(graph, topology, job)
        best: Draft | None = None
        rejected: Draft | None = None
        for placed in self._candidates(problem):
            draft = finish(problem, placed, self.name)
            if not draft.estimate.feasible:
                rejected = rejected if rejected is not None and _lack(rejected) <= _lack(draft) else draft
            elif best is None or draft.estimate.step_seconds < best.estimate.step_seconds:
                best = draft
        best = best or tight_draft(problem, self.name)
        if best is None:
            if rejected is None:
                raise PlanError("no plan exists: the topology has no device that can hold a stage; add devices")
            check_memory(rejected.estimate)
            raise PlanError("no plan exists; add devices or memory")
        return best.plan

    def _candidates(self, problem: Problem) -> Iterable[Placed]:
        """Placements worth the exact estimate, without repeats."""
        found: dict[Placed, None] = {}
        search = _Search(problem, Chain(problem))
        found.update(dict.fromkeys(plan.placed for plan in search.run()))
        stop = _tied_tail(problem)
        if stop is not None:
            tail = _Search(problem, Chain(problem, stop))
            end = len(problem.graph.ops)
            names = problem.topology.names
            found.update(dict.fromkeys((*plan.placed, (stop, end, names[plan.order[0]])) for plan in tail.run()))
        for cuts in (equal_compute_cuts(problem), equal_number_cuts(problem)):
            found[tuple(cuts)] = None
        return found


def tight_draft(problem: Problem, planner: str) -> Draft | None:
    """The best of what fits where little does (None: nothing fits).

    Every order of devices that can hold the model is found; then those that can with shares in pieces that recompute.
    """
    for pieces in (1, 2, 4) if problem.job.plan.recompute != "never" else (1,):
        search = _Search(problem, Chain(problem, pieces=pieces))
        drafts = [finish(problem, plan.placed, planner) for plan in search.fitting()]
        fitting = [draft for draft in drafts if draft.estimate.feasible]
        if fitting:
            return min(fitting, key=lambda draft: draft.estimate.step_seconds)
    return None


def _lack(draft: Draft) -> float:
    return sum(device.lack for device in draft.estimate.devices)


def _tied_tail(problem: Problem) -> int | None:
    """The run start before the last use of a tied parameter whose first use is at the beginning (None: there is none)."""
    graph = problem.graph
    last = -1
    for state in graph.parameters:
        uses = graph.uses.get(state.name, ())
        spots = [graph.position[use.op] for use in uses]
        if state.trainable and len(spots) == 2 and spots[0] < len(graph.ops) // 4 and spots[1] > 3 * len(graph.ops) // 4:
            last = max(last, spots[1])
    if last < 0 or len(problem.topology) < 2:
        return None
    starts = [run.start for run in problem.runs if 0 < run.start <= last]
    return starts[-1] if starts else None


class _Search:
    """Orders of devices for one chain, best first by the dynamic program's prediction."""

    def __init__(self, problem: Problem, chain: Chain) -> None:
        self.problem, self.chain = problem, chain
        self.topology = problem.topology
        self.most = min(len(self.topology), problem.job.workers or len(self.topology), len(chain.positions) - 1)
        size = len(chain.positions)
        self.left = max(_LEAST, int(_BUDGET / (size * size * max(self.most, 1) * 8)))
        self.tried: dict[Order, ChainPlan | None] = {}
        self.ends = chain.ends(self.most)
        tail = len(problem.graph.ops) > chain.stop
        self.tail_work = float((chain.cost.forward_sum + chain.cost.backward_sum)[[chain.stop, -1]] @ [-1, 1]) if tail else 0.0

    def run(self) -> list[ChainPlan]:
        """The finalists."""
        message = float(max(self.chain.ahead.max(), 1.0))
        seconds = transfer_seconds(self.topology, message)
        partitions = dict.fromkeys((linkage_communities(self.topology, message), louvain_communities(self.topology)))
        best: list[tuple[ChainPlan, tuple[Order, ...]]] = []
        for groups in partitions:
            for order in chain_orders(groups, seconds, _MOST_ORDERS, self.ends):
                plan, blocks = self._first(order)
                if plan is not None:
                    best.append((plan, blocks))
                if self.left <= 0:
                    break
        best.sort(key=lambda item: item[0].seconds)
        self.left = max(self.left, _LEAST)
        for _, blocks in best[:2]:
            self._climb(blocks)
        self._alone()
        return self._finalists()

    def fitting(self) -> list[ChainPlan]:
        """The finalists among orders that can hold the model, and what the local search makes of the best of them."""
        if not self.chain.possible():
            return []
        orders = list(islice(fitting_orders(self.chain, self.most), _FITTING))
        found = [(plan.seconds, order) for order in orders if (plan := self._solve((order,))) is not None]
        self.left = max(self.left, _LEAST)
        for _, order in sorted(found)[:2]:
            self._climb((order,))
        return self._finalists()

    def _finalists(self) -> list[ChainPlan]:
        known = sorted((plan for plan in self.tried.values() if plan is not None), key=lambda plan: plan.seconds)
        first: dict[int, ChainPlan] = {}
        for plan in known:
            first.setdefault(len(plan.order), plan)
        most = _FINALISTS if len(self.problem.graph.ops) < _LARGE else _FINALISTS // 4
        ranked = dict.fromkeys((*known[: most // 2], *first.values(), *known))
        return list(ranked)[:most]

    def _first(self, order: Sequence[Order]) -> tuple[ChainPlan | None, tuple[Order, ...]]:
        """The best of whole prefixes of communities; inside, large memory first (early stages keep more micro-batches)."""
        devices = self.topology.devices
        sort = [tuple(sorted(group, key=lambda i: (-devices[i].memory, -self.topology.speeds[i], i))) for group in order]
        best: tuple[ChainPlan | None, tuple[Order, ...]] = (None, tuple(sort))
        for count in range(len(sort), 0, -1) if len(sort) <= 5 else (len(sort),):
            blocks = self._able_last(_limited(sort[:count], self.most))
            plan = self._solve(blocks)
            if plan is not None and (best[0] is None or plan.seconds < best[0].seconds):
                best = (plan, blocks)
        return best if best[0] is not None else self._repaired(self._able_last(_limited(sort, self.most)))

    def _able_last(self, blocks: tuple[Order, ...]) -> tuple[Order, ...]:
        """The last device of the last community is its smallest that has memory for the last stage."""
        able = [i for i in blocks[-1] if i in self.ends[1]]
        if not able or blocks[-1][-1] == able[-1]:
            return blocks
        return (*blocks[:-1], (*(i for i in blocks[-1] if i != able[-1]), able[-1]))

    def _repaired(self, blocks: tuple[Order, ...]) -> tuple[ChainPlan | None, tuple[Order, ...]]:
        """An order that does not fit, without the devices that are too small for every stage which is left to them."""
        plan = self._solve(blocks)
        while plan is None:
            order = tuple(i for block in blocks for i in block)
            place = self.chain.hindrance(order, self.tail_work)
            if place is None:
                return None, blocks
            blocks = tuple(kept for block in blocks if (kept := tuple(i for i in block if i != order[place])))
            plan = self._solve(blocks)
        return plan, blocks

    def _alone(self) -> None:
        """Each of the fastest devices by itself."""
        for i in sorted(range(len(self.topology)), key=lambda i: -self.topology.speeds[i])[:3]:
            self._solve(((i,),))

    def _solve(self, blocks: Sequence[Order]) -> ChainPlan | None:
        order = tuple(i for block in blocks for i in block)
        if order not in self.tried:
            self.left -= 1
            self.tried[order] = self.chain.solve(order, self.tail_work) if order else None
        return self.tried[order]

    def _climb(self, blocks: tuple[Order, ...]) -> None:
        """First-improvement local search from ``blocks`` until nothing helps or the budget ends."""
        best = self._solve(blocks)
        improved = best is not None
        while improved and self.left > 0:
            improved = False
            for other in self._moves(blocks):
                plan = self._solve(other)
                if plan is not None and best is not None and plan.seconds < best.seconds * (1 - 1e-9):
                    blocks, best, improved = other, plan, True
                    break
                if self.left <= 0:
                    break

    def _moves(self, blocks: tuple[Order, ...]) -> Iterable[tuple[Order, ...]]:
        """Drop a device, swap two of one community, or take one back at the end of its community."""
        used = sum(len(block) for block in blocks)
        for at, block in enumerate(blocks):
            for i in range(len(block)):
                if used > 1:
                    yield _with(blocks, at, block[:i] + block[i + 1 :])
                for j in range(i + 1, len(block)):
                    swapped = list(block)
                    swapped[i], swapped[j] = swapped[j], swapped[i]
                    yield _with(blocks, at, tuple(swapped))
        if used < self.most:
            present = {i for block in blocks for i in block}
            for extra in range(len(self.topology)):
                if extra not in present:
                    for at, block in enumerate(blocks):
                        yield _with(blocks, at, (*block, extra))


def _with(blocks: tuple[Order, ...], at: int, block: Order) -> tuple[Order, ...]:
    changed = [*blocks[:at], block, *blocks[at + 1 :]]
    return tuple(item for item in changed if item)


def _limited(blocks: Sequence[Order], most: int) -> tuple[Order, ...]:
    """At most ``most`` devices: the later ones of the last communities are left out."""
    kept: list[Order] = []
    left = most
    for block in blocks:
        if left > 0:
            kept.append(block[:left])
            left -= len(kept[-1])
    return tuple(kept)
