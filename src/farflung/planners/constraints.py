"""What a plan must keep to, around any planner: the job's ``limits``, and as much of a running plan as is worth keeping.

Devices that may not be used are taken out of the topology before the planner sees it; the other limits are checked on its plan.
A plan that breaks one is repaired: the stages concerned move to other devices, or neighbours join, one change at a time, each
time the one that breaks least and, among these, has the shortest step. A planner that compares plans does so by a judge to whom a
plan that breaks a limit takes forever. Where nothing keeps to all, the error names what is broken, and the smallest relaxation of
each limit, and of memory, with which there is a plan. Cost: an estimate for each change tried; for the error a plan for each
relaxation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from farflung.cluster import Topology
from farflung.errors import GraphError, InputError, PlanError
from farflung.graph.cut import SubGraph, cut
from farflung.graph.ir import Graph, OpKind
from farflung.job.spec import JobSpec, LimitSpec, TrafficSpec
from farflung.job.traffic import gigabyte_price
from farflung.plan import CostTables, Estimate, Plan, check_memory, estimate
from farflung.plan.engine_support import OTHER_ENGINE, computes_all, unsupported_stages
from farflung.plan.usable_devices import allowed_devices
from farflung.planners.base import Evaluate, Judged, Planner
from farflung.planners.engine_moves import engine_moves
from farflung.planners.finish import Problem, draft_plan
from farflung.units import Bytes

__all__ = ["Broken", "Constrained", "broken_limits", "check_limits", "moved_bytes", "traffic_price", "usable"]

#: Changes in a row that a repair may take, and devices that it tries for a stage.
_CHANGES, _TRIED = 12, 24
#: Planners that are chosen to use all devices: what runs on fewer does not stay.
_USE_ALL = frozenset(("equal_number", "equal_compute", "random"))
#: Memory is relaxed up to this factor.
_MOST_MEMORY = 64.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A limit that a plan breaks: its name, by how much (at least 1), and the stages that do."""

    name: str
    text: str
    amount: float
    stages: tuple[int, ...] = ()


class Constrained:
    """``planner``, but its plans keep to the job's limits.

    ``running``: the plan that runs now; moving a byte of state costs the time of its transfer, spread over the job's steps, so a
    new plan must be worth what it moves, and the running one stays where it is best; where devices of it have gone, plans next to
    it compete (their stages on spare devices, or joined with a neighbour's).
    ``advise``: whether errors say what would do, which takes several plans.
    """

    def __init__(
        self, planner: Planner, evaluate: Evaluate | None = None, *, running: Plan | None = None, advise: bool = True
    ) -> None:
        self.planner, self.evaluate, self.running, self.advise = planner, evaluate, running, advise
        self.name = planner.name

    def judged_by(self, evaluate: Evaluate) -> Planner:
        """The same planner with ``evaluate`` as its judge."""
        return Constrained(self.planner, evaluate, running=self.running, advise=self.advise)

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """See ``Planner.plan``.

        Raises:
            PlanError: no plan keeps to the limits; the text names what is broken and what would do.
        """
        task = _Task(self, graph, topology, job or JobSpec())
        try:
            return task.plan(task.job.limits)
        except PlanError as error:
            would = list(task.relaxations()) if self.advise else []
            if not would:
                raise
            raise PlanError(f"{error}; there is a plan with {', or with '.join(would)}") from None


def usable(topology: Topology, limits: LimitSpec) -> Topology:
    """``topology`` without what ``limits`` take out of it.

    Names that the topology lacks (workers that are not there) are passed over.

    Raises:
        PlanError: nothing is left.
    """
    left = allowed_devices(topology, limits)
    if not left:
        if not allowed_devices(topology, LimitSpec(exclude=limits.exclude)):
            raise PlanError("every device is excluded (limits.exclude); leave at least one")
        if not allowed_devices(topology, LimitSpec(exclude=limits.exclude, engines=limits.engines)):
            there = ", ".join(sorted({device.engine for device in topology.devices}))
            raise PlanError(
                f"no device has an engine of limits.engines ({', '.join(limits.engines)}), there are {there}; "
                "allow one of them, or join a worker that has it"
            )
        raise PlanError('every device that is left is unreliable, and limits.unreliable = "avoid"; mark one as reliable')
    return topology if len(left) == len(topology) else topology.select([device.name for device in left])


def check_limits(topology: Topology, limits: LimitSpec) -> None:
    """Whether ``limits`` name devices and regions of ``topology``, all of which is known (a broker's may lack some).

    Raises:
        InputError: one names nothing.
    """
    known = {*topology.names, *topology.regions}
    for key, names in (("exclude", limits.exclude), ("data", limits.data)):
        unknown = [name for name in names if name not in known]
        if unknown:
            shown = ", ".join([*topology.regions, *topology.names][:16])
            raise InputError(
                f"limits.{key}: topology {topology.name!r} has no device and no region {unknown[0]!r}; known are {shown}"
            )
    ends = [end for price in limits.prices for end in (price.source, price.target)]
    unknown = [end for end in ends if end != "*" and end not in topology.regions]
    if unknown:
        shown = ", ".join(topology.regions)
        raise InputError(f"limits.prices: topology {topology.name!r} has no region {unknown[0]!r}; known are {shown}, *")


def traffic_price(plan: Plan, found: Estimate, topology: Topology, prices: Sequence[TrafficSpec]) -> float:
    """What the traffic of one step costs: values and gradients by micro-batch between its replicas, and exchanges."""
    sent: dict[tuple[str, str], float] = {}

    def add(here: str, there: str, nbytes: float) -> None:
        pair = topology.device(here).region, topology.device(there).region
        sent[pair] = sent.get(pair, 0.0) + nbytes

    largest = max(plan.micro_batch_sizes)
    for link in found.links:
        for number, size in enumerate(plan.micro_batch_sizes):
            here, there = plan.device_of(link.source, number), plan.device_of(link.target, number)
            add(here, there, link.forward_bytes * size / largest)
            add(there, here, link.backward_bytes * size / largest)
    for exchange in found.exchanges:
        add(found.replicas[exchange.source].device, found.replicas[exchange.target].device, exchange.total_bytes)
    return sum(gigabyte_price(prices, *pair) * nbytes / 1e9 for pair, nbytes in sent.items())


def moved_bytes(graph: Graph, old: Plan, new: Plan) -> dict[str, float]:
    """Bytes of states that each device of ``new`` needs and does not hold under ``old`` (optimizer state not counted)."""
    holds: dict[str, set[str]] = {}
    for stage, piece in zip(old.stages, cut(graph, old.bounds), strict=True):
        for device in stage.devices:
            holds.setdefault(device, set()).update(piece.states)
    moved: dict[str, float] = {}
    for stage, piece in zip(new.stages, cut(graph, new.bounds), strict=True):
        for device in stage.devices:
            lacking = [name for name in piece.states if name not in holds.get(device, set())]
            moved[device] = moved.get(device, 0.0) + sum(graph.state[name].spec.nbytes for name in lacking)
    return moved


def broken_limits(
    plan: Plan, graph: Graph, topology: Topology, limits: LimitSpec, found: Estimate, pieces: Sequence[SubGraph] | None = None
) -> list[Broken]:
    """The limits that ``plan`` breaks (none: it keeps to them); memory and excluded devices count, too."""
    allowed = set(usable(topology, limits).names)
    broken: list[Broken] = []
    outside = tuple(stage.index for stage in plan.stages if not set(stage.devices) <= allowed)
    if outside:
        text = f"stages {_listed(outside)} run on devices that limits.exclude or limits.unreliable forbid"
        broken.append(Broken(name="exclude", text=text, amount=len(outside), stages=outside))
    if limits.stages is not None and len(plan.stages) > limits.stages:
        text = f"it has {len(plan.stages)} stages, and limits.stages = {limits.stages}"
        over = len(plan.stages) - limits.stages
        broken.append(Broken(name="stages", text=text, amount=over, stages=tuple(range(len(plan.stages)))))
    wide = tuple(s.index for s in plan.stages if limits.replicas is not None and len(s.devices) > limits.replicas)
    if wide:
        most = max(len(plan.stages[index].devices) for index in wide)
        text = f"stage {wide[0]} has {most} replicas, and limits.replicas = {limits.replicas}"
        broken.append(Broken(name="replicas", text=text, amount=len(wide), stages=wide))
    alone = _unbacked(plan, topology) if limits.unreliable == "backed" else ()
    if alone:
        text = f'stages {_listed(alone)} have no copy on a reliable device, and limits.unreliable = "backed"'
        broken.append(Broken(name="unreliable", text=text, amount=len(alone), stages=alone))
    away = _away(plan, topology, limits, cut(graph, plan.bounds) if pieces is None else pieces)
    if away:
        text = f"stages {_listed(away)} read data outside of limits.data = {', '.join(limits.data)}"
        broken.append(Broken(name="data", text=text, amount=len(away), stages=away))
    if limits.traffic is not None:
        price = traffic_price(plan, found, topology, limits.prices)
        if price > limits.traffic * (1 + 1e-9):
            text = f"its traffic costs {price:.4g} per step, and limits.traffic = {limits.traffic:g}"
            ends = tuple({end for link in found.links for end in (link.source, link.target)})
            broken.append(Broken(name="traffic", text=text, amount=1 + price - limits.traffic, stages=ends))
    return broken


def _listed(stages: Sequence[int]) -> str:
    return ", ".join(map(str, stages[:8])) + (", ..." if len(stages) > 8 else "")


def _unbacked(plan: Plan, topology: Topology) -> tuple[int, ...]:
    return tuple(stage.index for stage in plan.stages if not any(topology.device(device).reliable for device in stage.devices))


def _away(plan: Plan, topology: Topology, limits: LimitSpec, pieces: Sequence[SubGraph]) -> tuple[int, ...]:
    """Stages that read a placeholder on a device that does not own the data."""
    if not limits.data:
        return ()
    owners = {d.name for d in topology.devices if {d.name, d.region} & set(limits.data)}
    found = []
    for stage, piece in zip(plan.stages, pieces, strict=True):
        reads = any(piece.graph.ops[position].kind is OpKind.PLACEHOLDER for position in piece.positions)
        if reads and not set(stage.devices) <= owners:
            found.append(stage.index)
    return tuple(found)


class _Task:
    """One call of ``Constrained.plan``."""

    def __init__(self, owner: Constrained, graph: Graph, topology: Topology, job: JobSpec) -> None:
        self.owner, self.graph, self.topology, self.job = owner, graph, topology, job
        self.tables = CostTables(graph)

    def plan(self, limits: LimitSpec, topology: Topology | None = None) -> Plan:
        """A plan under ``limits`` (on ``topology``: with other memory, for instance).

        Raises:
            PlanError: there is none.
        """
        whole = topology or self.topology
        able = all(computes_all(device, self.graph, self.job) for device in whole.devices)
        if limits == LimitSpec() and self.owner.running is None and able:
            return self._inner(self.owner.evaluate).plan(self.graph, whole, job=self.job)
        if limits.replicas is not None and self.job.plan.replicas > limits.replicas:
            raise PlanError(f"the job wants plan.replicas = {self.job.plan.replicas}, and limits.replicas = {limits.replicas}")
        rest = usable(whole, limits)
        judge = self.owner.evaluate or self._estimate(whole)
        workers = min(self.job.workers or len(rest), limits.stages or len(rest)) if self.job.plan.replicas == 1 else None
        bare = self.job.model_copy(update={"limits": LimitSpec(), "workers": workers or self.job.workers})
        plan = self._inner(lambda tried: self._judged(tried, judge, limits, whole)).plan(self.graph, rest, job=bare)
        plan = self._kept(plan, judge, limits, whole)
        return self._repaired(plan, judge, limits, whole)

    def _inner(self, evaluate: Evaluate | None) -> Planner:
        planner = self.owner.planner
        return planner.judged_by(evaluate) if evaluate is not None and isinstance(planner, Judged) else planner

    def _estimate(self, topology: Topology) -> Evaluate:
        return lambda plan: estimate(self.graph, plan, topology, self.job, tables=self.tables)

    def _judged(self, plan: Plan, judge: Evaluate, limits: LimitSpec, topology: Topology) -> Estimate:
        """The judge's word, and forever for a plan that breaks a limit."""
        found = judge(plan)
        if self._broken(plan, limits, topology, found):
            return replace(found, step_seconds=math.inf)
        return replace(found, step_seconds=found.step_seconds + self._moving(plan, topology))

    def _moving(self, plan: Plan, topology: Topology) -> float:
        """Seconds of moving states from the running plan, per step of the job."""
        if self.owner.running is None:
            return 0.0
        seconds = 0.0
        for device, nbytes in moved_bytes(self.graph, self.owner.running, plan).items():
            if nbytes:
                index = topology.index(device)
                rates = [float(topology.beta[i, index]) for i in range(len(topology)) if i != index]
                seconds = max(seconds, nbytes / max(rates, default=125e6))
        return seconds / self.job.steps

    def _kept(self, plan: Plan, judge: Evaluate, limits: LimitSpec, topology: Topology) -> Plan:
        """The running plan, or what is next to it where devices have gone, if that is no worse than ``plan`` after what moves."""
        best, seconds = plan, self._judged(plan, judge, limits, topology).step_seconds
        least = len(plan.devices) if self.owner.name in _USE_ALL else 0
        for old in self._next_to_running(topology):
            if len(old.devices) < least:
                continue
            found = self._judged(old, judge, limits, topology)
            if found.feasible and math.isfinite(found.step_seconds) and found.step_seconds <= seconds:
                best, seconds = old, found.step_seconds
        return best

    def _next_to_running(self, topology: Topology) -> Iterator[Plan]:
        """The running plan; if devices of it have gone, their stages on devices without one, or joined with a neighbour's."""
        running = self.owner.running
        if running is None or running.graph_hash != self.graph.hash:
            return
        if running.micro_batch_sizes != self.job.micro_batch_sizes:
            return
        gone = [stage.device for stage in running.stages if stage.device not in topology.names]
        if set(running.devices) <= set(topology.names):
            yield running
        if not gone or running.replicated or self.job.plan.replicas > 1 or running.sync is not None:
            return
        spare = [name for name in topology.names if name not in running.devices][:_TRIED]
        tried: list[list[tuple[int, int, str]]] = [[(stage.start, stage.stop, stage.device) for stage in running.stages]]
        for device in dict.fromkeys(gone):
            tried = [other for placed in tried for other in _without(placed, device, spare)][:_TRIED]
        plan = self.job.plan.model_copy(update={"schedule": running.schedule})
        job = self.job.model_copy(update={"plan": plan})
        problem = Problem(graph=self.graph, topology=topology, job=job, tables=self.tables)
        for placed in tried:
            with suppress(PlanError, GraphError):
                yield draft_plan(problem, placed, self.owner.name)[0]

    def _repaired(self, plan: Plan, judge: Evaluate, limits: LimitSpec, topology: Topology) -> Plan:
        found = judge(plan)
        broken = self._broken(plan, limits, topology, found)
        for _ in range(_CHANGES):
            if not broken:
                check_memory(found)
                return plan
            # planners that use all devices must not lose one because its engine lacks an operator of its stage
            full = self.owner.name in _USE_ALL and any(one.name == "engine" for one in broken)
            best: tuple[float, int, float, Plan, Estimate, list[Broken]] | None = None
            for other in (
                *self._changes(plan, broken, limits, topology),
                *self._regions(broken, limits, topology),
                *self._able(broken, limits, topology),
            ):
                told = judge(other)
                left = self._broken(other, limits, topology, told)
                amount = sum(one.amount for one in left) + (0.0 if told.feasible else 1.0)
                key = (amount, -len(other.devices) if full else 0, told.step_seconds)
                if best is None or key < best[:3]:
                    best = (*key, other, told, left)
            if best is None or best[0] >= sum(one.amount for one in broken):
                break
            *_, plan, found, broken = best
        if not broken:
            check_memory(found)
            return plan
        remedy = f"; {OTHER_ENGINE}" if any(one.name == "engine" for one in broken) else ""
        texts = "; ".join(one.text for one in broken)
        raise PlanError(f"the planner {self.owner.name} found no plan within the limits: {texts}{remedy}")

    def _broken(self, plan: Plan, limits: LimitSpec, topology: Topology, found: Estimate) -> list[Broken]:
        """``broken_limits``, and the stages on devices whose engines can't compute them."""
        broken = broken_limits(plan, self.graph, topology, limits, found)
        lacking = unsupported_stages(plan, self.tables.cutter.cut(plan.bounds), topology, self.job)
        if lacking:
            broken.append(Broken(name="engine", text=next(iter(lacking.values())), amount=len(lacking), stages=tuple(lacking)))
        return broken

    def _changes(self, plan: Plan, broken: Sequence[Broken], limits: LimitSpec, topology: Topology) -> Iterator[Plan]:
        """Plans next to ``plan``, without replicas: a stage that breaks a limit elsewhere, or joined with the next one."""
        if plan.replicated and self.job.plan.replicas > 1:
            return
        rest = usable(topology, limits)
        problem = Problem(graph=self.graph, topology=topology, job=self.job, tables=self.tables)
        owners = [d.name for d in rest.devices if {d.name, d.region} & set(limits.data)]
        names = list(dict.fromkeys([*owners, *(d for d in plan.devices if d in rest.names), *rest.names]))[:_TRIED]
        placed = [(stage.start, stage.stop, stage.device) for stage in plan.stages]
        stages = sorted({stage for one in broken for stage in one.stages})
        tried: list[list[tuple[int, int, str]]] = [placed] if plan.replicated else []
        for index in stages:
            start, stop, device = placed[index]
            tried += [[*placed[:index], (start, stop, name), *placed[index + 1 :]] for name in names if name != device]
            if index + 1 < len(placed):
                after = placed[index + 1]
                joined = dict.fromkeys(name for name in (device, after[2]) if name in rest.names)
                tried += [[*placed[:index], (start, after[1], name), *placed[index + 2 :]] for name in joined]
        tried += engine_moves(problem, plan, [stage for one in broken if one.name == "engine" for stage in one.stages])
        if any(one.name == "data" for one in broken):
            tried += _ends(placed, owners, [run.start for run in problem.runs])
        for one in tried:
            try:
                yield draft_plan(problem, one, self.owner.name)[0]
            except (PlanError, GraphError):
                continue

    def _regions(self, broken: Sequence[Broken], limits: LimitSpec, topology: Topology) -> Iterator[Plan]:
        """Where traffic costs too much: the planner's plans for single regions."""
        rest = usable(topology, limits)
        if not any(one.name == "traffic" for one in broken) or len(rest.regions) < 2:
            return
        bare = self.job.model_copy(update={"limits": LimitSpec()})
        for members in list(rest.regions.values())[:_TRIED]:
            try:
                yield self._inner(None).plan(self.graph, rest.select([rest.names[i] for i in members]), job=bare)
            except PlanError:
                continue

    def _able(self, broken: Sequence[Broken], limits: LimitSpec, topology: Topology) -> Iterator[Plan]:
        """Where engines lack operators: the planner's plan for the devices that can compute the whole graph."""
        if not any(one.name == "engine" for one in broken):
            return
        rest = usable(topology, limits)
        able = [device.name for device in rest.devices if computes_all(device, self.graph, self.job)]
        if able:
            with suppress(PlanError):
                yield self._inner(None).plan(
                    self.graph, rest.select(able), job=self.job.model_copy(update={"limits": LimitSpec()})
                )

    # -- what would do ------------------------------------------------------------------------------------------------

    def relaxations(self) -> Iterator[str]:
        """The smallest relaxation of each limit alone, and of memory, with which there is a plan."""
        limits = self.job.limits
        for name in limits.exclude:
            if self._works({"exclude": tuple(other for other in limits.exclude if other != name)}):
                yield f"{name!r} not excluded"
        if limits.stages is not None:
            yield from self._number("stages", limits.stages, min(len(self.topology), limits.stages + 8))
        if limits.replicas is not None:
            yield from self._number("replicas", limits.replicas, max(self.job.plan.replicas, limits.replicas))
        if limits.unreliable != "any" and self._works({"unreliable": "any"}):
            yield 'limits.unreliable = "any"'
        if limits.data:
            yield from self._owners(limits)
        if limits.traffic is not None:
            yield from self._traffic(limits)
        factor = self._memory()
        if factor is not None:
            most = max(self.topology.devices, key=lambda device: float(device.memory))
            yield f"{factor:.3g} x the memory of each device ({Bytes(factor * most.memory)} for {most.name})"

    def _works(self, update: dict[str, object], topology: Topology | None = None) -> Plan | None:
        try:
            return self.plan(self.job.limits.model_copy(update=update), topology)
        except PlanError:
            return None

    def _number(self, key: str, now: int, most: int) -> Iterator[str]:
        for number in range(now + 1, most + 1):
            if self._works({key: number}):
                yield f"limits.{key} = {number}"
                return

    def _owners(self, limits: LimitSpec) -> Iterator[str]:
        for name in self.topology.names:
            if name not in limits.data and self._works({"data": (*limits.data, name)}):
                yield f"the data on {name!r}, too"
                return
        if self._works({"data": ()}):
            yield "data anywhere"

    def _traffic(self, limits: LimitSpec) -> Iterator[str]:
        plan = self._works({"traffic": None})
        if plan is not None:
            price = traffic_price(plan, self._estimate(self.topology)(plan), self.topology, limits.prices)
            yield f"limits.traffic = {price:.4g} (what the traffic of this planner's plan costs per step)"

    def _memory(self) -> float | None:
        """The least factor of all memory, to a hundredth, with which there is a plan (None: memory is not what lacks)."""
        low, high = 1.0, 2.0
        while not self._works({}, self._roomier(high)):
            low, high = high, 2 * high
            if high > _MOST_MEMORY:
                return None
        while high / low > 1.01:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self._works({}, self._roomier(middle)) else (middle, high)
        return high

    def _roomier(self, factor: float) -> Topology:
        return self.topology.with_devices([replace(d, memory=Bytes(factor * d.memory)) for d in self.topology.devices])


def _without(placed: Sequence[tuple[int, int, str]], gone: str, spare: Sequence[str]) -> Iterator[list[tuple[int, int, str]]]:
    """``placed`` (start, stop, device) without the device ``gone``: a spare one has its stages, or the stage before or after."""
    used = {device for _, _, device in placed}
    for name in spare:
        if name not in used:
            yield [(start, stop, name if device == gone else device) for start, stop, device in placed]
    if [device for _, _, device in placed].count(gone) != 1 or len(placed) < 2:
        return
    at = next(index for index, (_, _, device) in enumerate(placed) if device == gone)
    start, stop, _ = placed[at]
    if at:
        yield [*placed[: at - 1], (placed[at - 1][0], stop, placed[at - 1][2]), *placed[at + 1 :]]
    if at + 1 < len(placed):
        yield [*placed[:at], (start, placed[at + 1][1], placed[at + 1][2]), *placed[at + 2 :]]


def _ends(
    placed: Sequence[tuple[int, int, str]], owners: Sequence[str], starts: Sequence[int]
) -> list[list[tuple[int, int, str]]]:
    """First or last part of the chain, up to a run of modules, on an owner of the data: what reads them stands at the ends."""
    found = []
    (first, stop, _), (begin, last, _) = placed[0], placed[-1]
    for owner in owners:
        inner = next((start for start in starts if first < start < stop), None)
        if inner is not None:
            found.append([(first, inner, owner), (inner, *placed[0][1:]), *placed[1:]])
        outer = next((start for start in reversed(starts) if begin < start < last), None)
        if outer is not None:
            found.append([*placed[:-1], (begin, outer, placed[-1][2]), (outer, last, owner)])
    return found
