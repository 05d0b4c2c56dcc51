"""``planners``: every planner on every preset and zoo model: a plan wherever one exists, in how many seconds.

A plan exists where any planner of the pair has found one that fits. A planner that refuses such a pair must have a reason that
its definition gives; each refusal is listed with its text.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.planning.zoo import MODELS, PRESETS, zoo_graph, zoo_job
from farflung.api.planning import judge
from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.graph.ir import Graph
from farflung.planners import get_planner
from farflung.planners.auto import Auto, AutoSettings

__all__ = ["Planners", "PlannersSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannersSettings(Settings):
    """``seconds``: of CPU time that a planner may take for one pair. ``evaluations``: of ``auto``."""

    models: tuple[str, ...] = tuple(name for name in MODELS if name != "tiny")
    topologies: tuple[str, ...] = PRESETS
    planners: tuple[str, ...] = ("hybrid_ps", "dtfm", "op_fence", "auto")
    micro_batches: int = 16
    evaluations: int = 16
    seconds: float = 120.0


class Planners:
    """Which planner refuses which pair of a model and a preset, and why."""

    name = "planners"
    summary = "hybrid_ps, dtfm, op_fence and auto on every preset and zoo model: a plan wherever one exists"

    def settings(self, quick: bool) -> PlannersSettings:
        """Quick: a tiny model on two presets."""
        if quick:
            small = ("local4-two-regions", "two-laptops")
            return PlannersSettings(quick=True, models=("tiny",), topologies=small, micro_batches=4, evaluations=4)
        return PlannersSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Plan each pair with each planner."""
        assert isinstance(settings, PlannersSettings)
        pairs: list[dict[str, Any]] = []
        for model in settings.models:
            say(f"capturing {model}")
            graph = zoo_graph(model)
            for preset in settings.topologies:
                found = {planner: _planned(graph, model, preset, planner, settings) for planner in settings.planners}
                pairs.append({"model": model, "topology": preset, "planners": found})
                refused = [planner for planner, one in found.items() if one["refused"]]
                say(f"{model}, {preset}: {'no plan of ' + ', '.join(refused) if refused else 'all have a plan'}")
        missing = _missing(pairs)
        rows = [
            (pair["model"], pair["topology"], *(one["step_seconds"] or "-" for one in pair["planners"].values()))
            for pair in pairs
        ]
        return Report(
            figures={"pairs": pairs, "missing": missing},
            columns=("model", "topology", *(f"{planner} s" for planner in settings.planners)),
            rows=rows,
            checks=_checks(pairs, missing, settings),
        )


def _planned(graph: Graph, model: str, preset: str, name: str, settings: PlannersSettings) -> dict[str, Any]:
    topology, job = Topology.preset(preset), zoo_job(model, settings.micro_batches, seed=settings.seed)
    evaluate = judge(graph, topology, job)
    planner = Auto(AutoSettings(evaluations=settings.evaluations), evaluate) if name == "auto" else get_planner(name)
    begin, step, why, devices = time.process_time(), None, "", 0
    try:
        with _limited(settings.seconds):
            plan = planner.plan(graph, topology, job=job)
            judged = evaluate(plan)
        devices = len(plan.devices)
        step, why = (judged.step_seconds, "") if judged.feasible else (None, "its plan does not fit into memory")
    except PlanError as error:
        why = str(error)[:300]
    except TimeoutError:
        why = f"it took more than {settings.seconds:g} s of CPU time"
    return {"step_seconds": step, "devices": devices, "refused": why, "cpu_seconds": time.process_time() - begin}


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread after ``seconds`` of CPU time: other programs may use the machine, too."""

    def over(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def _missing(pairs: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Refusals of pairs that another planner has a plan for."""
    return [
        {"model": pair["model"], "topology": pair["topology"], "planner": planner, "why": one["refused"]}
        for pair in pairs
        if any(one["step_seconds"] for one in pair["planners"].values())
        for planner, one in pair["planners"].items()
        if one["refused"]
    ]


def _checks(pairs: Sequence[Mapping[str, Any]], missing: Sequence[object], settings: PlannersSettings) -> tuple[Check, ...]:
    exist = sum(any(one["step_seconds"] for one in pair["planners"].values()) for pair in pairs)
    slowest = max(one["cpu_seconds"] for pair in pairs for one in pair["planners"].values())
    return (
        Check(
            name=f"refusals where a plan exists ({exist} of {len(pairs)} pairs)",
            target="0",
            measured=f"{len(missing)}",
            passed=None if settings.quick else not missing,
        ),
        Check(
            name="slowest planner, CPU time",
            target=f"at most {settings.seconds:g} s",
            measured=f"{slowest:.1f} s",
            passed=None if settings.quick else slowest <= settings.seconds,
        ),
    )
