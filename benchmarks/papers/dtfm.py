"""``dtfm``: GPT3-1.3B in DT-FM's cases, simulated: with and without a scheduler, Megatron-LM and ZeRO-3 (figures 3 to 7)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.api.other_systems import other_systems
from farflung.api.planning import judge
from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec, OptimizerSpec, PlanSpec, SyncSpec
from farflung.plan import CostTables
from farflung.planners import assign_grid, get_planner

__all__ = ["Dtfm", "DtfmSettings"]

#: What the authors' published scheduler counts for the search curves: float16 activations and float32 gradients of a stage.
_PP_BYTES, _DP_BYTES = 0.47113e9, 0.65e9
_WORLD = "dtfm-case5"


@dataclass(frozen=True, slots=True, kw_only=True)
class DtfmSettings(Settings):
    """GPT3-1.3B with 24 layers; the text also has 32 and 40. ``size``: samples of a micro-batch, ``replicas``: D_dp.

    ``draws``: random placements, and random orders of Megatron's and ZeRO-3's ranks. ``bits``: of a number on a link; all
    systems send as many. ``evaluations``: points of the search curves.
    """

    layers: tuple[int, ...] = (24,)
    width: int = 2048
    heads: int = 16
    vocabulary: int = 50257
    sequence: int = 2048
    batches: tuple[int, ...] = (1024,)
    size: int = 4
    replicas: int = 8
    cases: tuple[str, ...] = ("dtfm-case1", "dtfm-case2", "dtfm-case3", "dtfm-case4", _WORLD, "fluidstack")
    draws: int = 5
    bits: int = 16
    evaluations: tuple[int, ...] = (100, 500, 1500, 5000)


class Dtfm:
    """Simulated step and PFLOPS of each system in each case, and costs (1) by evaluations of the searches in case 5."""

    name = "dtfm"
    summary = "GPT3-1.3B on DT-FM's cases, simulated: with and without the scheduler, Megatron-LM and ZeRO-3"

    def settings(self, quick: bool) -> DtfmSettings:
        """Quick: two narrow layers on four devices."""
        if quick:
            return DtfmSettings(
                quick=True,
                layers=(2,),
                width=32,
                heads=2,
                vocabulary=61,
                sequence=16,
                batches=(16,),
                replicas=2,
                cases=("local4-two-regions",),
                draws=1,
                evaluations=(20,),
            )
        return DtfmSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Plan and simulate."""
        assert isinstance(settings, DtfmSettings)
        runs: list[dict[str, Any]] = []
        for layers in settings.layers:
            graph = _graph(settings, layers)
            for case in settings.cases:
                for batch in settings.batches:
                    say(f"{case}: {layers} layers, batch {batch}")
                    runs.append({"case": case, "layers": layers, "batch": batch} | _case(graph, case, batch, settings))
        say("search curves")
        curves = {case: _curves(case, settings) for case in settings.cases[-2:-1] or settings.cases}
        columns = ("case", "layers", "batch", "system", "step s", "PFLOPS")
        rows = [
            (run["case"], run["layers"], run["batch"], name, found["step_seconds"] or "-", found["pflops"] or "-")
            for run in runs
            for name, found in run["systems"].items()
        ]
        return Report(figures={"runs": runs, "curves": curves}, columns=columns, rows=rows, checks=_checks(runs, settings.quick))


def _graph(settings: DtfmSettings, layers: int) -> Graph:
    from farflung.frontends.recipes import load_recipe

    args = {"vocab": settings.vocabulary, "sequence": settings.sequence, "layers": layers, "width": settings.width}
    return load_recipe("gpt", args | {"heads": settings.heads}).graph("train", settings.size)


def _case(graph: Graph, case: str, batch: int, settings: DtfmSettings) -> dict[str, Any]:
    plain = Topology.preset(case)
    topology = replace(plain, beta=plain.beta * 32 / settings.bits)
    tables = CostTables.of(graph)
    cost = tables.table(topology.devices[0].kind)
    flops = float(cost.forward_sum[-1] + cost.backward_sum[-1]) * batch / settings.size

    def job(seed: int) -> JobSpec:
        return JobSpec(
            micro_batch_sizes=(settings.size,) * (batch // settings.size),
            optimizer=OptimizerSpec(name="adamw"),
            plan=PlanSpec(replicas=settings.replicas),
            sync=SyncSpec(strategy="ssgd"),
            seed=seed,
        )

    def planned(planner: str, seed: int) -> float | None:
        try:
            return judge(graph, topology, job(seed))(get_planner(planner).plan(graph, topology, job=job(seed))).step_seconds
        except PlanError:
            return None

    draws = range(settings.seed, settings.seed + settings.draws)
    found: dict[str, float | None] = {"grid": planned("grid", settings.seed), "dtfm": planned("dtfm", settings.seed)}
    found["random_grid"] = _mean([planned("random_grid", seed) for seed in draws])
    for label, orders in (("", [topology]), (", random ranks", [_shuffled(topology, seed) for seed in draws])):
        steps = [{one.name: one.seconds for one in other_systems(graph, order, job(0), tables)} for order in orders]
        for name in ("Megatron-LM", "ZeRO-3"):
            found[name + label] = _mean([step.get(name) for step in steps])
    systems = {name: {"step_seconds": s, "pflops": flops / s / 1e15 if s else None} for name, s in found.items()}
    return {"flops": flops, "systems": systems}


def _mean(steps: list[float | None]) -> float | None:
    """The mean (None: one has no plan)."""
    return None if None in steps else fmean(step for step in steps if step is not None)


def _shuffled(topology: Topology, seed: int) -> Topology:
    return topology.select([topology.names[int(i)] for i in np.random.default_rng(seed).permutation(len(topology))])


def _curves(case: str, settings: DtfmSettings) -> dict[str, list[float]]:
    """Cost (1) after each number of evaluations, by method."""
    topology, dp = Topology.preset(case), settings.replicas
    return {
        method: [
            assign_grid(
                topology,
                dp=dp,
                pp=len(topology) // dp,
                pp_bytes=_PP_BYTES,
                dp_bytes=_DP_BYTES,
                method=method,
                seconds=None,
                evaluations=evaluations,
                seed=settings.seed,
            ).cost_seconds
            for evaluations in settings.evaluations
        ]
        for method in ("search", "dtfm", "kernighan_lin", "random")
    }


def _checks(runs: list[dict[str, Any]], quick: bool) -> tuple[Check, ...]:
    world = [run["systems"] for run in runs if run["case"] == _WORLD] or [runs[-1]["systems"]]

    def over(base: str) -> float:
        pairs = [(one[base]["step_seconds"], one["dtfm"]["step_seconds"]) for one in world]
        return max((slow / fast for slow, fast in pairs if slow and fast), default=0.0)

    def check(name: str, base: str, target: float, note: str = "") -> Check:
        gain = over(base)
        passed = None if quick else gain >= target
        return Check(name=name, target=f"at least {target} x", measured=f"{gain:.2f} x", passed=passed, note=note)

    return (
        check("dtfm over random placement, case 5", "random_grid", 2.3),
        check("dtfm over Megatron-LM with random ranks, case 5", "Megatron-LM, random ranks", 4.8, "a cost model that favors it"),
        check("dtfm over ZeRO-3, case 5", "ZeRO-3", 3.6, "a cost model that favors it"),
    )
