"""What a plan survives, and what is left of its throughput under failure rates, with plans for the machines that stay."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from farflung.cluster import Topology
from farflung.errors import FarflungError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import Estimate, Plan
from farflung.plan.fault_tolerance.faults import FaultModel, Survival, fault_model, survival
from farflung.simulator import FailureRun, Simulator, simulate_failures
from farflung.units import Seconds, counted

__all__ = ["FaultSettings", "Tolerance", "tolerance"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSettings:
    """Seconds: ``mtbf`` of devices of which the topology says nothing (None: that of the job), ``recovery`` (None: estimated),
    ``away`` that a machine is gone. ``deaths``: that are injected (0: only the formula), from ``seed``.
    """

    mtbf: float | None = None
    recovery: float | None = None
    away: float = 0.0
    deaths: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """``model``: the expected throughput by formula; ``played``: by injected deaths, where they were asked for."""

    survival: Survival
    model: FaultModel
    played: FailureRun | None = None

    @property
    def text(self) -> str:
        """All of it as sentences, one on a line."""
        lines = [f"machine deaths: {self.survival.text}", f"throughput with deaths: {self.model.text}"]
        if self.played is not None:
            run, kept = self.played, self.played.samples_per_second / self.model.undisturbed
            lines.append(
                f"simulated deaths: {counted(run.deaths, 'death')} in {Seconds(run.seconds)}: "
                f"{run.samples_per_second:.4g} samples/s, {kept:.1%} of the throughput without deaths; "
                f"{run.again:.0f} steps repeated, "
                f"{Seconds(run.paused)} of pauses, {Seconds(run.waited)} waiting for machines"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        run = self.played
        body: dict[str, Any] = {
            "copies": self.survival.copies,
            "deaths_in_memory": self.survival.in_memory,
            "deaths_to_go_on": self.survival.goes_on,
            "checkpointed": self.survival.checkpointed,
            "rate": self.model.rate,
            "checkpoint_steps": self.model.interval,
            "samples_per_second": self.model.samples_per_second,
            "share": self.model.share,
        }
        if run is not None:
            body["injected"] = {key: getattr(run, key) for key in ("deaths", "samples_per_second", "again", "paused", "waited")}
        return body


def tolerance(
    graph: Graph,
    topology: Topology,
    job: JobSpec,
    found: tuple[Plan, Estimate],
    settings: FaultSettings,
    replan: Callable[[Topology], Plan],
) -> Tolerance:
    """What ``found`` (a plan with its estimate) survives. ``replan`` is asked only where machines stay away."""
    plan, estimate = found
    mtbf = job.mtbf_hours * 3600.0 if settings.mtbf is None else settings.mtbf
    model = fault_model(plan, topology, job, estimate, mtbf=mtbf, recovery=settings.recovery)
    known: dict[frozenset[str], float] = {}

    def without(missing: frozenset[str]) -> float:
        if missing not in known:
            known[missing] = _step(graph, topology, job, missing, replan)
        return known[missing]

    if settings.away > 0:
        single = {device: without(frozenset({device})) for device in model.rates}
        model = replace(model, away=settings.away, without=single)
    played = None
    if settings.deaths > 0 and model.rate > 0:
        played = simulate_failures(model, deaths=settings.deaths, seed=settings.seed, without=without)
    return Tolerance(survival=survival(plan, topology, job, estimate), model=model, played=played)


def _step(graph: Graph, topology: Topology, job: JobSpec, missing: frozenset[str], replan: Callable[[Topology], Plan]) -> float:
    """Step seconds of a plan for the machines that are left (infinite: there is none)."""
    left = [name for name in topology.names if name not in missing]
    if not left:
        return math.inf
    rest = topology.select(left)
    try:
        plan = replan(rest)
        estimate = Simulator(graph, rest, job).evaluate(plan)
    except FarflungError:
        return math.inf
    return estimate.step_seconds if estimate.feasible else math.inf
