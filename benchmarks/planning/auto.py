"""``auto``: against the best of all other planners on every preset and three models, and how long it plans by devices.

Two columns. *Equal*: codec, synchronization and micro-batches are the job's own, memory limits those of the devices. *Free*:
``auto`` may also take AdaTopK, divide the samples of a step into smaller micro-batches, and let replicas average their weights
every eighth step. The papers' planners stay as they are; ``op_fence`` with AdaTopK, FusionLLM's whole proposal, competes too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.probe import peak_bytes
from benchmarks.planning.zoo import PRESETS, zoo_graph, zoo_job
from farflung.api.planning import judge
from farflung.cluster import Topology
from farflung.errors import InputError, PlanError, TrainingError
from farflung.graph.ir import Graph
from farflung.job.spec import CodecSpec, JobSpec, SyncSpec
from farflung.planners import get_planner
from farflung.planners.auto import Auto, AutoSettings, Trial

__all__ = ["AutoBench", "AutoBenchSettings", "measure"]

_PAPERS = ("equal_number", "equal_compute", "op_fence", "dtfm", "kernighan_lin", "hybrid_ps")
_WITH_CODEC = "op_fence, adatopk"
#: devices -> seconds that planning may take
_LIMITS = {24: 2.0, 64: 5.0, 256: 15.0, 1024: 60.0, 10_000: 300.0}
_MEMORY = 2e9


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoBenchSettings(Settings):
    """``micro_batches`` in a step; ``ratios`` of AdaTopK in the free column. ``evaluations`` of each search. ``scales``: how many
    devices whose planning is timed (``regions-N``, model ``scale_model``). ``kept``: files to which each pair goes as it is done
    (the first) and from which pairs are taken that were done (all), so that a benchmark that was ended goes on.
    """

    kept: tuple[str, ...] = ()

    models: tuple[str, ...] = ("gpt2-xl", "llama-7b", "resnet-101")
    topologies: tuple[str, ...] = PRESETS
    micro_batches: int = 16
    evaluations: int = 40
    ratios: tuple[float, ...] = (100.0,)
    scales: tuple[int, ...] = tuple(_LIMITS)
    scale_model: str = "gpt2-xl"


class AutoBench:
    """Simulated seconds of a step by planner, and seconds of planning."""

    name = "auto"
    summary = "auto against the best of all other planners (all presets, three models), and its planning time"

    def settings(self, quick: bool) -> AutoBenchSettings:
        """Quick: a tiny model on two presets."""
        if quick:
            return AutoBenchSettings(
                quick=True,
                models=("tiny",),
                topologies=("local4-two-regions", "two-laptops"),
                micro_batches=4,
                evaluations=4,
                scales=(8,),
                scale_model="tiny",
            )
        return AutoBenchSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Plan and simulate."""
        assert isinstance(settings, AutoBenchSettings)
        pairs: list[dict[str, Any]] = []
        scales: list[dict[str, Any]] = []
        kept = _Kept(settings)
        for name in dict.fromkeys((*settings.models, *([settings.scale_model] if settings.scales else []))):
            timed = name == settings.scale_model and settings.scales
            if not timed and all((name, topology) in kept.pairs for topology in settings.topologies):
                pairs += [kept.pairs[name, topology] for topology in settings.topologies]
                continue
            say(f"capturing {name}")
            graph = zoo_graph(name)
            if name in settings.models:
                for topology in settings.topologies:
                    pairs.append(kept.pairs.get((name, topology)) or kept.add(_pair(graph, name, topology, settings, say)))
            if name == settings.scale_model:
                scales = [_scale(graph, name, count, settings, say) for count in settings.scales]
        feasible = [pair for pair in pairs if pair["equal"] is not None]
        over = _over(feasible)
        figures = {"pairs": pairs, "over": over, "feasible": len(feasible), "scales": scales}
        rows = [
            (p["model"], p["topology"], p["best"] or "-", p["best_seconds"] or "-", p["equal"] or "-", p["free"] or "-")
            for p in pairs
        ]
        rows += [
            ("planning", f"{s['devices']} devices", "", s["cpu_seconds"], s["wall_seconds"], s["peak_bytes"]) for s in scales
        ]
        columns = ("model", "topology", "best other", "its step s", "auto equal s", "auto free s")
        checks = (*_checks(feasible, over, settings.quick), *_scale_checks(scales, settings.quick))
        return Report(figures=figures, columns=columns, rows=rows, checks=checks)


#: What decides a pair's figures.
_DECIDES = ("seed", "micro_batches", "evaluations", "ratios")


class _Kept:
    """Pairs that were done before, one JSON object a line."""

    def __init__(self, settings: AutoBenchSettings) -> None:
        self.settings = settings
        self.pairs: dict[tuple[str, str], dict[str, Any]] = {}
        for name in settings.kept:
            try:
                lines = Path(name).read_text(encoding="utf-8").splitlines() if Path(name).exists() else []
                found = [(json.loads(line)["settings"], json.loads(line)["pair"]) for line in lines]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(f"{name} can't be gone on from: it does not hold pairs of this benchmark ({error!r})") from None
            for told, pair in found:
                if told != self._told():
                    raise InputError(f"{name} can't be gone on from: its pairs have the settings {told}, here {self._told()}")
                self.pairs[pair["model"], pair["topology"]] = pair

    def _told(self) -> dict[str, Any]:
        return {key: list(v) if isinstance(v := getattr(self.settings, key), tuple) else v for key in _DECIDES}

    def add(self, pair: dict[str, Any]) -> dict[str, Any]:
        """Keep ``pair``, too."""
        if self.settings.kept:
            with Path(self.settings.kept[0]).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"settings": self._told(), "pair": pair}) + "\n")
        return pair


def _pair(graph: Graph, name: str, preset: str, settings: AutoBenchSettings, say: Say) -> dict[str, Any]:
    topology, job = Topology.preset(preset), zoo_job(name, settings.micro_batches, seed=settings.seed)
    evaluate = judge(graph, topology, job)
    begin = time.process_time()
    result: dict[str, Any] = {"model": name, "topology": preset, "devices": len(topology), "best": None, "best_seconds": None}
    auto = Auto(AutoSettings(evaluations=settings.evaluations), evaluate)
    try:
        plan = auto.plan(graph, topology, job=job)
    except PlanError as error:
        say(f"{name}, {preset}: nothing fits")
        return result | {"equal": None, "free": None, "planners": {}, "refused": str(error)[:300]}
    others = {trial.planner: trial.seconds for trial in auto.trials if trial.planner != "auto" and trial.seconds < float("inf")}
    with_codec = _with_codec(
        graph,
        topology,
        zoo_job(name, settings.micro_batches, seed=settings.seed, codec=CodecSpec(name="adatopk", ratio=settings.ratios[0])),
    )
    free = Auto(
        AutoSettings(
            evaluations=settings.evaluations,
            ratios=settings.ratios,
            syncs=(SyncSpec(strategy="local_sgd", settings={"sync_every": 8}),),
            micro_batches=True,
            members=(),
            start=(plan,),
        ),
        evaluate,
    )
    free.plan(graph, topology, job=job)
    best = min(others, key=lambda planner: others[planner], default=None)
    equal, opened = _least(auto.trials), _least(free.trials)
    result |= {
        "best": best,
        "best_seconds": others[best] if best else None,
        "planners": others | ({_WITH_CODEC: with_codec} if with_codec else {}),
        "equal": equal.seconds,
        "free": opened.seconds,
        "equal_plan": _brief(equal),
        "free_plan": _brief(opened),
        "cpu_seconds": time.process_time() - begin,
    }
    say(f"{name}, {preset}: {best} {result['best_seconds']}, auto {equal.seconds:.4g}, free {opened.seconds:.4g}")
    return result


def _least(trials: Sequence[Trial]) -> Trial:
    return min(trials, key=lambda trial: trial.seconds)


def _brief(trial: Trial) -> dict[str, Any]:
    plan = trial.plan
    return {
        "stages": len(plan.stages),
        "devices": len(plan.devices),
        "replicas": max(len(stage.devices) for stage in plan.stages),
        "schedule": plan.schedule,
        "micro_batches": len(plan.micro_batch_sizes),
        "codec": any(link.activations.name != "identity" for link in plan.links),
        "sync": plan.sync.strategy if plan.sync else "exact",
    }


def _with_codec(graph: Graph, topology: Topology, job: JobSpec) -> float | None:
    """The step of FusionLLM's own proposal: OP-Fence with AdaTopK."""
    try:
        found = judge(graph, topology, job)(get_planner("op_fence").plan(graph, topology, job=job))
    except PlanError:
        return None
    return found.step_seconds if found.feasible else None


def _over(pairs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """How many times longer each planner's step is than ``auto``'s, over the pairs that it has a plan for."""
    found = {}
    for planner in (*_PAPERS, _WITH_CODEC):
        own = [pair for pair in pairs if planner in pair["planners"]]
        if own:
            equal, free = ([pair["planners"][planner] / pair[key] for pair in own] for key in ("equal", "free"))
            found[planner] = {
                "pairs": len(own),
                "equal_geometric": geometric_mean(equal),
                "equal_mean": fmean(equal),
                "free_geometric": geometric_mean(free),
                "free_mean": fmean(free),
            }
    return found


def _checks(pairs: Sequence[Mapping[str, Any]], over: Mapping[str, Mapping[str, float]], quick: bool) -> list[Check]:
    ratios = {key: [pair["best_seconds"] / pair[key] for pair in pairs if pair["best_seconds"]] for key in ("equal", "free")}
    checks = [
        Check(
            name=f"best other planner over auto, {key}",
            target="never below 1",
            measured=f"least {min(values):.3f}, mean {fmean(values):.2f}" if values else "no pair",
            passed=None if quick or not values else min(values) >= 1.0,
            note=f"{len(values)} pairs",
        )
        for key, values in ratios.items()
    ]
    if over:
        most = max(found["pairs"] for found in over.values())
        rivals = [planner for planner in over if over[planner]["pairs"] >= 0.9 * most]
        best = min(rivals, key=lambda planner: over[planner]["free_geometric"])
        gain = over[best]["free_geometric"]
        checks.append(
            Check(
                name="best single paper planner over auto, free",
                target="1.3 x on average (geometric)",
                measured=f"{gain:.2f} x over {best}",
                passed=None if quick else gain >= 1.3,
                note=f"equal: {over[best]['equal_geometric']:.2f} x",
            )
        )
    return checks


# -- planning time -------------------------------------------------------------------------------------------------------


def _scale(graph: Graph, name: str, count: int, settings: AutoBenchSettings, say: Say) -> dict[str, Any]:
    """Plan in a process of its own, which reads the graph and knows no tensor library."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "graph.json"
        file.write_text(graph.to_json(), encoding="ascii")
        told = json.dumps({"settings": asdict(settings), "graph": str(file), "model": name, "count": count})
        command = [sys.executable, "-m", "benchmarks.planning.auto", told]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise TrainingError(f"planning for {count} devices ended with {done.returncode}: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    say(f"{count} devices: {found['cpu_seconds']:.1f} s of processor time, {found['wall_seconds']:.1f} s")
    return found


def measure(settings: AutoBenchSettings, graph: Graph, name: str, count: int) -> dict[str, Any]:
    """Plan ``graph`` for ``regions-<count>`` here: seconds, processor seconds, peak of resident bytes."""
    topology, job = Topology.preset(f"regions-{count}"), zoo_job(name, settings.micro_batches, seed=settings.seed)
    wall, cpu = time.perf_counter(), time.process_time()
    auto = Auto(AutoSettings(evaluations=settings.evaluations), judge(graph, topology, job))
    plan = auto.plan(graph, topology, job=job)
    return {
        "devices": count,
        "wall_seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "peak_bytes": peak_bytes(),
        "devices_used": len(plan.devices),
        "step_seconds": _least(auto.trials).seconds,
        "best_other_seconds": min((t.seconds for t in auto.trials if t.planner != "auto"), default=None),
    }


def _scale_checks(scales: Sequence[Mapping[str, Any]], quick: bool) -> list[Check]:
    checks = []
    for found in scales:
        limit = _LIMITS.get(found["devices"])
        checks.append(
            Check(
                name=f"planning for {found['devices']} devices",
                target=f"{limit:g} s, under 2 GB" if limit else "no target",
                measured=f"{found['wall_seconds']:.1f} s, {found['peak_bytes'] / 1e9:.2f} GB",
                passed=None if quick or limit is None else found["wall_seconds"] <= limit and found["peak_bytes"] < _MEMORY,
                note=f"{found['cpu_seconds']:.1f} s of processor time",
            )
        )
    return checks


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    given: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in told["settings"].items()}
    chosen = AutoBenchSettings(**given)
    text = Path(told["graph"]).read_text(encoding="ascii")
    sys.stdout.write(json.dumps(measure(chosen, Graph.from_json(text), told["model"], told["count"])) + "\n")
