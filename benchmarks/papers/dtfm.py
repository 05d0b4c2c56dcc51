"""``dtfm``: GPT-3 in DT-FM's cases, simulated: with and without a scheduler, Megatron-LM and DeepSpeed (figures 3 to 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.api.planning import judge
from farflung.cluster import Topology
from farflung.errors import InputError, PlanError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec, OptimizerSpec, PlanSpec, SyncSpec
from farflung.plan import CostTables
from farflung.plan.estimation.other_systems import other_systems
from farflung.planners import assign_grid, get_planner

__all__ = ["Dtfm", "DtfmSettings"]

#: What the authors' published scheduler counts for the search curves: float16 activations and float32 gradients of a stage.
_PP_BYTES, _DP_BYTES = 0.47113e9, 0.65e9
_WORLD = "dtfm-case5"
#: Figure 7, larger models: layers, width and heads of GPT-3 (Brown et al. 2020, table 2.1).
_LARGER: Mapping[str, tuple[int, int, int]] = {"6.7b": (32, 4096, 32), "13b": (40, 5120, 40)}
#: By name of ``other_systems``. The paper reports the better of DeepSpeed's two ways.
_SYSTEMS = ("Megatron-LM", "ZeRO-3", "DeepSpeed, pipelines")
_DEEPSPEED = "DeepSpeed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DtfmSettings(Settings):
    """GPT3-1.3B with each of ``layers`` (the text: 24, 32, 40) and of ``batches``.

    ``size``: samples of a micro-batch, ``replicas``: D_dp.
    ``larger``: models of Figure 7 (``6.7b``, ``13b``) with the first batch on the last case, and the first D_dp of
    ``larger_replicas`` that has a plan. ``degrees``: the largest of Megatron's and DeepSpeed's pipelines (section 10.2).
    ``draws``: random placements, and random orders of their ranks. ``bits``: of a number on a link; all systems send as many.
    ``evaluations``: points of the search curves.
    """

    layers: tuple[int, ...] = (24,)
    width: int = 2048
    heads: int = 16
    vocabulary: int = 50257
    sequence: int = 2048
    batches: tuple[int, ...] = (1024, 2048, 4096)
    size: int = 4
    replicas: int = 8
    larger: tuple[str, ...] = ()
    larger_replicas: tuple[int, ...] = (4, 2)
    degrees: int = 8
    cases: tuple[str, ...] = ("dtfm-case1", "dtfm-case2", "dtfm-case3", "dtfm-case4", _WORLD, "fluidstack")
    draws: int = 3
    bits: int = 16
    evaluations: tuple[int, ...] = (100, 500, 1500, 5000)


class Dtfm:
    """Simulated step and PFLOPS of each system in each case, and costs (1) by evaluations of the searches in case 5."""

    name = "dtfm"
    summary = "GPT-3 on DT-FM's cases, simulated: with and without the scheduler, Megatron-LM and DeepSpeed"

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
            graph = _graph(settings, (layers, settings.width, settings.heads))
            for case in settings.cases:
                for batch in settings.batches:
                    say(f"{case}: {layers} layers, batch {batch}")
                    one = {"case": case, "model": "1.3b", "layers": layers, "batch": batch}
                    runs.append(one | _case(graph, case, batch, settings))
        for model in settings.larger:
            say(f"{settings.cases[-1]}: {model}")
            graph = _graph(settings, _larger(model))
            one = {"case": settings.cases[-1], "model": model, "layers": _larger(model)[0], "batch": settings.batches[0]}
            for replicas in settings.larger_replicas:
                found = _case(graph, settings.cases[-1], settings.batches[0], replace(settings, replicas=replicas))
                if found["systems"]["dtfm"]["step_seconds"]:
                    break
            runs.append(one | found)
        say("search curves")
        curves = {case: _curves(case, settings) for case in settings.cases[-2:-1] or settings.cases}
        columns = ("case", "model", "layers", "batch", "system", "step s", "PFLOPS")
        rows = [
            (*(run[key] for key in columns[:4]), name, found["step_seconds"] or "-", found["pflops"] or "-")
            for run in runs
            for name, found in run["systems"].items()
        ]
        figures = {"runs": runs, "mean_pflops": _means(runs), "curves": curves}
        return Report(figures=figures, columns=columns, rows=rows, checks=_checks(runs, settings.quick))


def _larger(model: str) -> tuple[int, int, int]:
    if model not in _LARGER:
        raise InputError(f"unknown model {model!r}: known are {', '.join(_LARGER)}")
    return _LARGER[model]


def _graph(settings: DtfmSettings, model: tuple[int, int, int]) -> Graph:
    """``model``: layers, width and heads."""
    from farflung.frontends.recipes import load_recipe

    layers, width, heads = model
    args = {"vocab": settings.vocabulary, "sequence": settings.sequence, "layers": layers, "width": width, "heads": heads}
    return load_recipe("gpt", args).graph("train", settings.size)


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
    degrees: dict[str, str] = {}
    for label, orders in (("", [topology]), (", random ranks", [_shuffled(topology, seed) for seed in draws])):
        each = [{one.name: one for one in other_systems(graph, order, job(0), tables, settings.degrees)} for order in orders]
        for name in _SYSTEMS:
            found[name + label] = _mean([steps[name].seconds if name in steps else None for steps in each])
        degrees |= {name + label: one.degrees for name, one in each[0].items()}
        better = [seconds for name in _SYSTEMS[1:] if (seconds := found[name + label]) is not None]
        found[_DEEPSPEED + label] = min(better, default=None)
    systems = {name: {"step_seconds": s, "pflops": flops / s / 1e15 if s else None} for name, s in found.items()}
    peak = sum(float(device.speed) for device in topology.devices) / 1e15
    return {"replicas": settings.replicas, "flops": flops, "peak_pflops": peak, "systems": systems, "degrees": degrees}


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


def _means(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """PFLOPS of each system in each case, the mean over layers and batches of GPT3-1.3B (Figure 3 (c))."""
    own = [run for run in runs if run["model"] == "1.3b"]
    return {
        case: {name: _mean([run["systems"][name]["pflops"] for run in own if run["case"] == case]) for name in own[0]["systems"]}
        for case in dict.fromkeys(run["case"] for run in own)
    }


def _checks(runs: Sequence[Mapping[str, Any]], quick: bool) -> tuple[Check, ...]:
    world = [run["systems"] for run in runs if run["case"] == _WORLD or quick]
    if not world:
        return ()

    def check(base: str, target: float, note: str = "") -> Check:
        pairs = [(one[base]["step_seconds"], one["dtfm"]["step_seconds"]) for one in world]
        gains = [slow / fast for slow, fast in pairs if slow and fast] or [0.0]
        return Check(
            name=f"dtfm over {base}, case 5",
            target=f"at least {target} x",
            measured=f"{min(gains):.2f} to {max(gains):.2f} x",
            passed=None if quick else max(gains) >= target,
            note=note,
        )

    favored = "a cost model that favors it"
    return (
        check("random_grid", 2.3),
        check("Megatron-LM, random ranks", 4.8, favored),
        check(f"{_DEEPSPEED}, random ranks", 3.6, favored),
    )
