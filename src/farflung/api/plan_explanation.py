"""Why a plan is as it is, in words: what binds, what the next best was, what one more device or a faster link would bring.

What binds is found by trying: the simulator runs the same plan with one thing at a time made twice as good (the busiest devices
and links, lines that links share, all latencies). Beside it stand the plans of the other planners, and plans made anew for other
topologies. Cost: a simulation for each thing that is tried, and the planners' own time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from farflung.api.topology_changes import changed_topology
from farflung.clock import Clock, MonotonicClock
from farflung.cluster import Topology
from farflung.cost.other_systems import SystemStep
from farflung.errors import FarflungError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import CostTables, Estimate, Plan
from farflung.plan.estimation.other_systems import other_systems
from farflung.plan.report.estimate_tables import saving_lines
from farflung.planners import Constrained, get_planner, planner_names
from farflung.simulator import Simulation, Simulator
from farflung.units import FlopsPerSecond, Seconds, counted

__all__ = ["Alternative", "Case", "Gain", "Reasons", "reasons"]

#: So many of the busiest devices, and of the busiest links, are tried.
_TRIED = 3
#: Seconds after which no further planner is asked.
_PATIENCE = 30.0
#: Gains and losses below this are none.
_NOTHING = 0.005
_SAME = "the same plan"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plan that is to be explained, with all that it rests on. ``replan`` makes a plan for another topology."""

    graph: Graph
    topology: Topology
    job: JobSpec
    plan: Plan
    estimate: Estimate
    replan: Callable[[Topology], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The step in seconds if ``what`` were so, and how many times faster that is. ``devices``: that the plan then uses."""

    what: str
    seconds: float
    factor: float
    devices: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another planner's (or schedule's) plan: its step in seconds (infinite: it has none, ``note`` says why)."""

    name: str
    seconds: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """``held``: what holds the step up, most first (the same plan, one thing twice as good). ``alternatives``: best first.
    ``changes``: planned anew. ``skipped``: planners that there was no time for. ``systems``: steps of other systems, by models.
    """

    seconds: float
    held: tuple[Gain, ...]
    memory: str
    waiting: str
    alternatives: tuple[Alternative, ...] = ()
    changes: tuple[Gain, ...] = ()
    skipped: tuple[str, ...] = ()
    systems: tuple[SystemStep, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a planner without a plan has None as its seconds."""
        body = asdict(self)
        for one in body["alternatives"]:
            one["seconds"] = one["seconds"] if math.isfinite(one["seconds"]) else None
        return body

    @property
    def text(self) -> str:
        """All of it as sentences, one on a line."""
        return "\n".join(self._lines())

    @property
    def best(self) -> Gain | None:
        """What would shorten the step most (None: nothing alone)."""
        first = self.held[0] if self.held else None
        return None if first is None or first.factor < 1 + _NOTHING else first

    def _lines(self) -> Iterator[str]:
        best = self.best
        if best is None:
            yield "bottleneck: none alone; no single device or link at twice the speed would shorten the step of this plan"
        else:
            yield f"bottleneck: {best.what} would shorten the step of this plan to {_told(best)}"
            for gain in self.held[1:]:
                if gain.factor >= 1 + _NOTHING:
                    yield f"  next: {gain.what}: {_told(gain)}"
        yield f"idle time: {self.waiting}"
        yield f"memory: {self.memory}"
        if self.alternatives:
            yield from self._others()
        if self.systems:
            steps = "; ".join(f"{one.name} {Seconds(one.seconds)} ({one.degrees})" for one in self.systems)
            yield f"other systems on all devices, by cost models that favor them: {steps}"
        for change in self.changes:
            what = f"{_told(change)}, {counted(change.devices, 'device')}" if change.factor >= 1 + _NOTHING else "no shorter step"
            yield f'a new plan with --what-if "{change.what}": {what}'

    def _others(self) -> Iterator[str]:
        best, rest = self.alternatives[0], self.alternatives[1:]
        plans = [one for one in self.alternatives if math.isfinite(one.seconds)]
        if not plans:
            yield "next best planner: none; no other planner finds a plan that fits"
        elif all(one.note == _SAME for one in plans):
            rest = tuple(one for one in self.alternatives if one not in plans)
            yield f"next best planner: none; all other planners{' that find a plan' if rest else ''} make the same plan"
        elif best.seconds < self.seconds * (1 - _NOTHING):
            yield f"better planner: {best.name} takes {Seconds(best.seconds)} ({self.seconds / best.seconds:.2f} x as fast)"
        else:
            yield f"next best planner: {best.name} takes {Seconds(best.seconds)} ({_longer(best.seconds / self.seconds)})"
        if rest:
            yield f"  next: {', '.join(f'{one.name} {one.note or Seconds(one.seconds)}' for one in rest)}"
        if self.skipped:
            yield f"  not compared (time limit of {_PATIENCE:.0f} s): {', '.join(self.skipped)}"


def reasons(case: Case, *, clock: Clock | None = None, changes: bool = True) -> Reasons:
    """Why ``case.plan`` takes as long as it does. ``changes``: ask planners as well, this one and the others."""
    tables = CostTables.of(case.graph)
    simulated = Simulator(case.graph, case.topology, case.job, tables=tables).run(case.plan)
    seconds = simulated.step_seconds

    def again(topology: Topology, plan: Plan = case.plan) -> float:
        return Simulator(case.graph, topology, case.job, tables=tables).run(plan).step_seconds

    found = [
        Gain(what=what, seconds=other, factor=seconds / other if other > 0 else 1.0)
        for what, other in ((what, again(topology)) for what, topology in _better(case, simulated))
    ]
    held = tuple(sorted(found, key=lambda gain: -gain.factor))
    watch = clock or MonotonicClock()
    until = watch.now() + _PATIENCE
    others, skipped = _alternatives(case, watch, until) if changes else ((), ())
    return Reasons(
        seconds=seconds,
        held=held,
        memory=_memory(case),
        waiting=_waiting(simulated),
        alternatives=others,
        skipped=skipped,
        changes=tuple(_changes(case, simulated, again, (watch, until))) if changes else (),
        systems=other_systems(case.graph, case.topology, case.job, tables) if changes else (),
    )


def _better(case: Case, simulated: Simulation) -> Iterator[tuple[str, Topology]]:
    """Topologies with one thing twice as good, most promising ones only."""
    topology = case.topology
    for use in sorted(simulated.devices, key=lambda use: -use.busy_seconds)[:_TRIED]:
        faster = [
            replace(device, speed=FlopsPerSecond(2 * device.speed), overhead=Seconds(device.overhead / 2))
            if device.name == use.device
            else device
            for device in topology.devices
        ]
        held = ", ".join(str(stage.index) for stage in case.plan.stages_of(use.device))
        many = "s" if "," in held else ""
        yield f"computing twice as fast on {use.device} (stage{many} {held})", topology.with_devices(faster)
    for here, there in _busiest(simulated):
        yield f"twice the rate between {here} and {there}", changed_topology(topology, f"double {here} {there}")
    regions = [
        tuple(sorted({topology.device(here).region, topology.device(there).region})) for here, there in _busiest(simulated)
    ]
    for pair in dict.fromkeys(pair for pair in regions if regions.count(pair) > 1 and len(pair) == 2 and all(pair)):
        yield (
            f"twice the rate between the regions {pair[0]} and {pair[1]}",
            changed_topology(topology, f"double {pair[0]} {pair[1]}"),
        )
    ends = {name: topology.device(name) for pair in _busiest(simulated) for name in pair}
    for name, device in ends.items():
        if device.uplink is not None or device.downlink is not None:
            yield f"twice the up- and down-link of {name}", changed_topology(topology, f"double {name}")
    if simulated.links:
        yield "half of all latencies", replace(topology, alpha=topology.alpha * 0.5)


def _busiest(simulated: Simulation) -> list[tuple[str, str]]:
    """Pairs of devices with the busiest link between them, either way."""
    pairs: dict[tuple[str, str], float] = {}
    for use in simulated.links:
        pair = (use.source, use.target) if use.source < use.target else (use.target, use.source)
        pairs[pair] = max(pairs.get(pair, 0.0), use.busy_seconds)
    return sorted(pairs, key=lambda pair: (-pairs[pair], pair))[:_TRIED]


def _memory(case: Case) -> str:
    fullest = max(case.estimate.devices, key=lambda device: device.memory_bytes / device.memory_limit)
    share = fullest.memory_bytes / fullest.memory_limit
    again = [stage for stage in case.estimate.stages if stage.recompute]
    text = f"{fullest.device} is the fullest device, {share:.0%} of its limit"
    text += "".join(f"; {line}" for _, line in saving_lines(case.estimate))
    if not again:
        return text + (
            "; memory does not limit the plan"
            if share < 0.9
            else "; little is free for other cuts or more micro-batches in flight"
        )
    if case.job.plan.recompute == "always":
        return f"{text}; all stages recompute activations, as the job sets"
    names = ", ".join(str(stage.index) for stage in again)
    cost = max(stage.forward_seconds for stage in again)
    return (
        f"{text}; memory limits the plan: stages {names} recompute activations, which costs up to {Seconds(cost)} per micro-batch"
    )


def _waiting(simulated: Simulation) -> str:
    busiest = max(simulated.devices, key=lambda use: use.busy_seconds)
    first = f"devices are idle for {simulated.bubble:.0%} of the step"
    link = max(simulated.links, key=lambda use: use.share, default=None)
    top = max(1 - busiest.bubble, link.share if link else 0.0)
    if top >= 0.6:
        return first
    return (
        f"{first}; no device or link is busy for more than {top:.0%} of the step, because the pipeline fills, drains and "
        "waits for messages. Try more and smaller micro-batches, fewer stages, or another schedule"
    )


def _alternatives(case: Case, clock: Clock, until: float) -> tuple[tuple[Alternative, ...], tuple[str, ...]]:
    """The plans of the other planners, best first."""
    evaluate = Simulator(case.graph, case.topology, case.job).evaluate
    found: list[Alternative] = []
    skipped: list[str] = []
    for name in planner_names():
        if name == case.plan.planner:
            continue
        if clock.now() > until:
            skipped.append(name)
            continue
        planner = Constrained(get_planner(name), evaluate, advise=False)
        try:
            plan = planner.plan(case.graph, case.topology, job=case.job)
            judged = evaluate(plan)
        except FarflungError:
            found.append(Alternative(name=name, seconds=float("inf"), note="finds no plan"))
            continue
        if not judged.feasible:
            found.append(Alternative(name=name, seconds=float("inf"), note="does not fit"))
        else:
            same = _SAME if plan.stages == case.plan.stages and plan.schedule == case.plan.schedule else ""
            found.append(Alternative(name=name, seconds=judged.step_seconds, note=same))
    others = sorted(found, key=lambda one: (math.isinf(one.seconds), one.note == _SAME, one.seconds))
    return tuple(others), tuple(skipped)


def _changes(case: Case, simulated: Simulation, again: Callable[..., float], time: tuple[Clock, float]) -> Iterator[Gain]:
    """Plans for one more device, and for the busiest link twice as fast."""
    clock, until = time
    busiest = max(simulated.devices, key=lambda use: use.busy_seconds).device
    tried = [f"add 1 like {busiest}"]
    tried += [f"double {here} {there}" for here, there in _busiest(simulated)[:1]]
    for change in tried:
        if clock.now() > until:
            return
        topology = changed_topology(case.topology, change)
        seconds, devices = again(topology), len(case.plan.devices)  # the plan as it is fits there too
        try:
            plan = case.replan(topology)
        except FarflungError:
            plan = case.plan
        other = again(topology, plan)
        if other < seconds:
            seconds, devices = other, len(plan.devices)
        yield Gain(what=change, seconds=seconds, factor=simulated.step_seconds / seconds, devices=devices)


def _told(gain: Gain) -> str:
    return f"{Seconds(gain.seconds)} ({gain.factor:.2f} x as fast)"


def _longer(factor: float) -> str:
    if factor >= 2:
        return f"{factor:.3g} x as long"
    return f"{factor - 1:.1%} longer" if factor >= 1 + 1e-4 else "as long"
