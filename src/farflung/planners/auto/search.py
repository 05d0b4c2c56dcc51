"""The search of ``auto``: it begins with the plans of other planners and with grids of replicas and stages.

Late acceptance hill climbing (Burke and Bykov 2017): a neighbour replaces the current layout if it is better than the current
one or than that of some steps ago. Neighbours (``moves``) are priced by ``quick``; after every few of them the most promising
layout that was seen so far is made a plan and shown to the judge, which alone decides. What the judge says of a layout beside
its quick price corrects the prices of its kind (schedule, replicas or none, codec, strategy). A plan counts only if it fits the
memory. The best of all evaluations wins, so the result is never worse than theirs by the same judge. Cost: the other
planners', and one evaluation and some thirty quick prices for each of the budget; any time is a good time to stop.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from heapq import nsmallest
from itertools import count

from farflung.clock import Clock
from farflung.errors import PlanError
from farflung.ids import derive_seed
from farflung.job.spec import SyncSpec
from farflung.plan import Estimate, Plan, estimate
from farflung.planners.auto.layout import Context, Layout, divisions
from farflung.planners.auto.moves import Moves
from farflung.planners.auto.quick import Quick
from farflung.planners.auto.settings import AutoSettings, Trial
from farflung.planners.auto.starts import grids, nearest, steps
from farflung.planners.base import Evaluate
from farflung.planners.catalog import get_planner, planner_names
from farflung.planners.finish import Problem

__all__ = ["Search"]

#: How far back the layout lies that a neighbour may be compared with.
_LATE = 16
#: Quick prices between two evaluations.
_PRICES = 25
#: A search that counts evaluations ends after so many, or a third of its budget if that is more, without a better plan; what
#: else it may choose (ratios, strategies, micro-batches) adds as many each.
_PATIENCE = 16
#: Neighbours that are drawn in vain before a round ends.
_VAIN = 200
#: Of more devices a part is chosen by regions before the search.
_MOST_DEVICES = 256
#: Grids that are tried at first on one order of devices, and how many of the best on the others.
_BEST_GRIDS = 8
#: Grids that are priced above so many times the best price are not simulated.
_HOPELESS = 4.0
#: Planners that take long on more devices than that.
_SLOW, _FEW = frozenset(("grid",)), 64
#: Not searched from: genetic searches take 5,000 evaluations for what ``grid`` finds with 400, and chance finds nothing.
_LEFT_OUT = frozenset(("auto", "dtfm", "kernighan_lin", "random_grid"))
#: Layouts of each kind that wait for the judge.
_WAITING = 64

Kind = tuple[str, bool, float, int, int]


class Search:
    """One search. ``best``: the best trial so far; ``failure``: why nothing fits, if nothing does."""

    def __init__(self, problem: Problem, settings: AutoSettings, evaluate: Evaluate | None, clock: Clock) -> None:
        left = problem.job.open
        settings = replace(
            settings,
            micro_batches=settings.micro_batches or left.micro_batches,
            syncs=(*settings.syncs, *(SyncSpec(strategy=name) for name in left.strategies)),
        )
        self.whole, self.settings, self.clock = problem, settings, clock
        self.best: Trial | None = None
        self.failure: PlanError | None = None
        self.trials: list[Trial] = []
        self.evaluate = evaluate or self._estimate
        self.deadline = None if settings.seconds is None else clock.now() + settings.seconds
        if problem.job.plan.schedule == "auto":
            plain = problem.job.plan.model_copy(update={"schedule": problem.job.plan.base_schedule})
            problem = replace(problem, job=problem.job.model_copy(update={"plan": plain}))
        self.problem = self._narrowed(problem)
        job, topology = self.problem.job, self.problem.topology
        self.context = Context(self.problem, settings)
        self.quick = Quick(self.context)
        self.random = random.Random(derive_seed("auto", job.seed))
        self.most = min(len(topology), job.workers or len(topology))
        fixed = job.plan.replicas
        self.wide = fixed if fixed > 1 else min(settings.replicas or len(topology), len(job.virtual_ends), self.most)
        self.wanted = fixed
        limits = (self.most, self.wide, settings.stages or 1 << 30)
        others = divisions(job.micro_batch_sizes) if settings.micro_batches else []
        self.moves = Moves(self.context, self.random, limits, others)
        self.prices: dict[Layout, float] = {}
        #: Layouts whose price is only a lower bound, since that was above the limit.
        self.bounded: set[Layout] = set()
        #: What was judged; layouts of interchangeable devices count as one.
        self.asked: set[Layout] = set()
        #: Numbers that break ties between equal prices. Each is unique, so that no comparison ever reaches the layout.
        self.numbers = count()
        self.factor: dict[Kind, float] = {}
        self.waiting: dict[Kind, list[tuple[float, int, Layout]]] = {}
        self.judged: list[tuple[float, int, Layout]] = []
        choices = len(settings.ratios) + len(settings.syncs) + settings.micro_batches
        self.patience = max(_PATIENCE, settings.evaluations // 3) + choices * _PATIENCE

    def _narrowed(self, problem: Problem) -> Problem:
        """The same problem on the devices that are worth looking at, where there are very many."""
        if len(problem.topology) <= _MOST_DEVICES:
            return problem
        message = float(max(problem.cost.crossing_forward.max(), 1.0))
        return replace(problem, topology=problem.topology.select(nearest(problem.topology, _MOST_DEVICES, message)))

    # -- judging ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Begin and climb until the budget is used."""
        self._members()
        if self.settings.evaluations or self.deadline is not None:
            self._grids()
            self._climb()

    def _estimate(self, plan: Plan) -> Estimate:
        whole = self.whole
        return estimate(whole.graph, plan, whole.topology, whole.job, tables=whole.tables)

    def _judge(self, plan: Plan, planner: str) -> Trial:
        found = self.evaluate(plan)
        seconds = found.step_seconds if found.feasible else float("inf")
        trial = Trial(planner=planner, seconds=seconds, plan=replace(plan, planner="auto"))
        self.trials.append(trial)
        if found.feasible and (self.best is None or seconds < self.best.seconds):
            self.best = trial
        return trial

    def _over(self, spent: int) -> bool:
        if self.deadline is not None:
            return self.clock.now() >= self.deadline
        return spent >= self.settings.evaluations

    # -- the beginning ------------------------------------------------------------------------------------------------

    def _members(self) -> None:
        """The plans of the other planners, and those that were given."""
        problem = self.problem
        chosen = self.settings.members
        left_out = _LEFT_OUT | (_SLOW if len(problem.topology) > _FEW else frozenset())
        for name in planner_names() if chosen is None else chosen:
            if name == "auto" or (chosen is None and name in left_out):
                continue
            try:
                plan = get_planner(name).plan(problem.graph, problem.topology, job=self.whole.job)
            except PlanError as error:
                if name == "op_fence" or self.failure is None:
                    self.failure = error
                continue
            self._admit(plan, name)
        for ratio in self.settings.ratios:  # devices that a dense plan leaves out may be worth their links with a codec
            codec = problem.job.codec.model_copy(update={"name": "adatopk", "ratio": ratio})
            with suppress(PlanError):
                coded = self.whole.job.model_copy(update={"codec": codec})
                self._admit(get_planner("op_fence").plan(problem.graph, problem.topology, job=coded), "op_fence", ratio)
        names = set(self.whole.topology.names)
        for plan in self.settings.start:
            if names >= set(plan.devices) and plan.graph_hash == problem.graph.hash:
                self._admit(plan, "start")

    def _admit(self, plan: Plan, planner: str, ratio: float = 0.0) -> None:
        if self.settings.stages is not None and len(plan.stages) > self.settings.stages:
            return
        if max(len(stage.devices) for stage in plan.stages) > self.wide:
            return
        trial = self._judge(plan, planner)
        if trial.seconds < float("inf") and set(plan.devices) <= set(self.problem.topology.names):
            layout = replace(self.context.layout_of(plan), ratio=ratio)
            self.price(layout)
            self.judged.append((trial.seconds, next(self.numbers), layout))

    def _grids(self) -> None:
        """Grids of replicas and stages, priced quickly: all numbers on two orders of devices, the best of them on the others."""
        job = self.problem.job
        whole = (0, len(self.problem.graph.ops))
        base = Layout(((0,),), whole, job.plan.base_schedule, job.micro_batch_sizes)
        replicas = [self.wanted] if self.wanted > 1 else steps(max(1, self.wide))
        most = min(self.most, 4 * (self.settings.stages or self.most) * max(replicas))
        found = list(grids(self.context, base, most, replicas))
        shape_of = [(len(layout.groups), len(layout.groups[0])) for layout in found]
        tried: dict[tuple[int, int], float] = {}
        repeats: dict[tuple[int, int], int] = {}
        for layout, shape in zip(found, shape_of, strict=True):
            repeats[shape] = repeats.get(shape, 0) + 1
            best = nsmallest(_BEST_GRIDS, tried.values())
            if repeats[shape] > 2 and best and tried.get(shape, float("inf")) > best[-1]:
                continue
            if len(layout.groups) > (self.settings.stages or 1 << 30) or self._late():
                continue
            cut = self.context.divide(layout, (float("inf"),) if len(layout.groups) > 16 else (1.0, float("inf")))
            if cut is not None:
                least = min(tried.values(), default=float("inf"))
                tried[shape] = min(tried.get(shape, float("inf")), self.price(cut, _HOPELESS * least))

    def _late(self) -> bool:
        return self.deadline is not None and self.clock.now() >= self.deadline

    # -- climbing -----------------------------------------------------------------------------------------------------

    def _kind(self, layout: Layout) -> Kind:
        return (layout.schedule, layout.width > 1, layout.ratio, layout.sync, len(layout.sizes))

    def price(self, layout: Layout, limit: float = float("inf")) -> float:
        """The quick price, which waits for the judge if it is not above ``limit``."""
        known = self.prices.get(layout)
        if known is None or (layout in self.bounded and known <= limit):
            price = self.prices[layout] = self.quick.seconds(layout, limit)
            if price > limit:
                self.bounded.add(layout)
            elif price < float("inf"):
                self.bounded.discard(layout)
                kind = self._kind(layout)
                queue = self.waiting.setdefault(kind, [])
                queue.append((price, next(self.numbers), layout))
                if len(queue) > 2 * _WAITING:
                    self.waiting[kind] = nsmallest(_WAITING, queue)
        return self.prices[layout]

    def _corrected(self, layout: Layout, limit: float = float("inf")) -> float:
        factor = self.factor.get(self._kind(layout), 1.0)
        return self.price(layout, limit / factor) * factor

    def _climb(self) -> None:
        """Rounds of quick steps, each with one evaluation at its end."""
        spent, vain, since = 0, 0, 0
        late: list[float] = []
        current: Layout | None = None
        while not self._over(spent):
            if spent % 6 == 0 and not vain:
                current = self.beginning(spent)
                late = []
            if current is not None:
                current, late = self._steps(current, late)
            layout = self._next()
            if layout is None:
                vain += 1
                if vain > 8:
                    return
                current = self.beginning(spent + vain)
                late = [float("inf")] * _LATE  # nothing nearby is promising: further away
                continue
            vain, before = 0, self.best
            spent += 1
            self._ask(layout)
            since = 0 if self.best is not before else since + 1
            if self.deadline is None and since >= self.patience:
                return

    def beginning(self, spent: int) -> Layout | None:
        """One of the best layouts that were judged, or the one that is priced best."""
        if self.judged:
            rank = (spent // 6) % min(3, len(self.judged))
            return nsmallest(rank + 1, self.judged)[-1][2]
        return min((item for queue in self.waiting.values() for item in queue), default=(0.0, 0, None))[2]

    def _steps(self, current: Layout, late: list[float]) -> tuple[Layout, list[float]]:
        """Some accepted or refused neighbours."""
        seconds = self._corrected(current)
        late = late or [seconds] * _LATE
        priced = 0
        for draw in range(_VAIN):
            if priced == _PRICES or self._late():
                break
            found = self.moves.neighbour(current)
            if found is None or (self.wanted > 1 and any(len(group) != self.wanted for group in found.groups)):
                continue
            priced += found not in self.prices
            limit = max(seconds, late[draw % _LATE])
            price = self._corrected(found, limit)
            if price <= limit and price < float("inf"):
                current, seconds = found, price
            late[draw % _LATE] = seconds
        return current, late

    def _like(self, layout: Layout) -> Layout:
        return replace(layout, groups=sum(self.context.like(layout.groups), ()))

    def _next(self) -> Layout | None:
        """The layout that the judge sees next: the least corrected price, of those not asked about."""
        best: tuple[float, int, Layout] | None = None
        for kind, queue in self.waiting.items():
            factor = self.factor.get(kind, 1.0)
            for price, number, layout in queue:
                item = (price * factor, number, layout)
                if (best is None or item[:2] < best[:2]) and self._like(layout) not in self.asked:
                    best = item
        return None if best is None else best[2]

    def _ask(self, layout: Layout) -> None:
        self.asked.add(self._like(layout))
        try:
            trial = self._judge(self.context.plan(layout), "auto")
        except PlanError:
            return
        if trial.seconds < float("inf"):
            kind, ratio = self._kind(layout), trial.seconds / max(self.prices[layout], 1e-12)
            self.factor[kind] = ratio if kind not in self.factor else (self.factor[kind] + ratio) / 2
            self.judged.append((trial.seconds, next(self.numbers), layout))
            if len(self.judged) > 4 * _WAITING:
                self.judged = nsmallest(_WAITING, self.judged)
