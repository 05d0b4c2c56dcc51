"""What the figures of speed, memory and compression show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from benchmarks.pictures.charts import Bars, Curves, Panel

__all__ = ["PICTURES"]

#: The figures of a stored result, by its name.
Results = Callable[[str], Any]


def _architectures(results: Results) -> list[Panel]:
    counts = Counter((one["family"], one["result"]) for one in results("architectures")["models"])
    families = sorted({family for family, _ in counts}, key=lambda family: (-counts[family, "equal"], family))
    kinds = [kind for kind in ("equal", "different", "refused") if any((family, kind) in counts for family in families)]
    rows = {family: {kind: counts[family, kind] for kind in kinds if counts[family, kind]} for family in families}
    return [Bars(title="Architectures of transformers", unit="models, compared with a plain loop", rows=rows)]


def _overhead(results: Results) -> list[Panel]:
    models = results("overhead")["models"]
    dots = {one["model"]: list(enumerate(one["ratios"], 1)) for one in models}
    levels = {"target": 0.95}
    return [
        Curves(
            title="Worker against plain loop",
            x="pair of steps",
            y="speed of the worker / loop",
            curves=dots,
            levels=levels,
            dots=True,
        )
    ]


def _environments(results: Results) -> list[Panel]:
    models = {"gpt2": "GPT-2", "llama": "Llama", "bert": "BERT", "resnet18": "ResNet-18"}
    names = {"releases of PyTorch": "PyTorch 2.13 and 2.15", "all": "and JAX"}
    found = results("environments")["deviations"]
    rows = {models[model]: {names[key]: found[key][model] for key in names} for model in models}
    title, unit = "Gradients of a mixed pipeline", "deviation from a plain loop"
    return [Bars(title=title, unit=unit, rows=rows, targets=dict.fromkeys(rows, 2e-5), log=True)]


def _isolation(results: Results) -> list[Panel]:
    rows = {
        f"GPT-2, {one['model']}": {"without": one["without"], "with a process of its own": one["with"]}
        for one in results("isolation")["models"]
    }
    return [Bars(title="Two stages on one machine", unit="seconds of a step", rows=rows)]


def _sites(results: Results) -> list[Panel]:
    speeds = results("sites")["steps_per_second"]
    return [Bars(title="Two ranks of one machine", unit="steps/s", rows={name: {"": value} for name, value in speeds.items()})]


def _memory(results: Results) -> list[Panel]:
    workers = {f"worker {one['worker'][-1]} of 2": one for one in results("memory-2-workers")["workers"]}
    empty = {name: float(one["after_imports"]) for name, one in workers.items()}
    return [_shares_of_plan("GPT-2 124 M", dict(sorted(workers.items())), empty)]


def _crawl(results: Results) -> list[Panel]:
    found = results("crawl")
    workers = {f"worker {one['worker']}": one for one in found["workers"]}
    order = ("worker one", "worker two", "worker three")
    empty = dict.fromkeys(order, float(found["process"]))
    return [_shares_of_plan("85 M model, links of 8 Mbit/s", {name: workers[name] for name in order}, empty)]


def _shares_of_plan(title: str, workers: Mapping[str, Mapping[str, Any]], empty: Mapping[str, float]) -> Curves:
    """``empty``: bytes of each worker before it has any part of a run."""
    curves = {
        name: [(seconds, max(size - empty[name], 0.0) / one["plan"]) for seconds, size in one["curve"]]
        for name, one in workers.items()
    }
    return Curves(title=title, x="seconds", y="memory / the plan's figure", curves=curves, levels={"plan": 1.0})


def _compression(results: Results) -> list[Panel]:
    names = {"dense": "dense", "adatopk": "AdaTopK 100", "compute only": "dense, without the links"}
    rows = {names[name]: {"": value} for name, value in results("compression")["seconds_per_step"].items()}
    return [Bars(title="GPT on two regions, 8 Mbit/s", unit="seconds per step", rows=rows)]


def _codecs(results: Results) -> list[Panel]:
    rows: dict[str, dict[str, float]] = {}
    for one in results("codecs")["auto"]:
        rows.setdefault(one["rate"], {})[one["way"]] = one["seconds"] / one["plain_seconds"]
    title, unit = "Codec auto: encode, send and decode", "time over plain sending"
    return [Bars(title=title, unit=unit, rows=rows, targets=dict.fromkeys(rows, 1.0))]


def _strategies(results: Results) -> list[Panel]:
    found = results("sync-strategies")["strategies"]
    order = sorted(found, key=lambda name: float(found[name]["loss"]))
    losses = {name: {"": found[name]["loss"]} for name in order}
    sizes = {name: {"": found[name]["bytes_per_parameter_per_step"]} for name in order}
    return [
        Bars(title="Loss after equal steps", unit="nats per byte", rows=losses),
        Bars(title="Sent by a member", unit="bytes per parameter and step", rows=sizes),
    ]


def _sync_memory(results: Results) -> list[Panel]:
    found = results("sync-memory")
    rows = {
        "one worker alone": {"": median(found["alone"]) / 1e6},
        "each of two replicas": {"": median(found["together"]) / 1e6},
    }
    target = (median(found["alone"]) + 0.05 * found["parameters"]) / 1e6
    return [Bars(title="GPT-2 124 M, free_sets", unit="MB at the peak", rows=rows, targets={"each of two replicas": target})]


def _sync_speeds(results: Results) -> list[Panel]:
    rows = {name: {"": one["samples_per_second"]} for name, one in results("sync-speeds")["runs"].items()}
    return [Bars(title="Devices of speeds 1, 1, 0.5 and 0.35", unit="samples/s", rows=rows)]


def _trackers(results: Results) -> list[Panel]:
    seconds = results("trackers")["compared"]["step_seconds"]
    pairs = zip(seconds["with"], seconds["without"], strict=True)
    dots = [(number, 100 * (with_ / without - 1)) for number, (with_, without) in enumerate(pairs, 1)]
    middle = median(value for _, value in dots)
    levels = {f"median {middle:+.2f} %": middle}
    y = "% longer steps with dashboard and trackers"
    return [
        Curves(
            title="60 pairs of blocks of steps", x="pair", y=y, curves={"pair": dots}, levels=levels, dots=True, from_zero=False
        )
    ]


def _loss_study(results: Results) -> list[Panel]:
    models, phases = {"gpt": "GPT", "resnet18": "ResNet"}, {"scratch": "from scratch", "fine-tuning": "fine-tuned"}
    found = [row for row in results("loss-study")["means"] if row["variant"] == "auto"]
    names = [f"{models[row['model']]}, {row['way']}, {phases[row['phase']]}, 1/{row['ratio']:.0f}" for row in found]
    rows = {name: {"": 100 * row["gap"]} for name, row in zip(names, found, strict=True)}
    return [Bars(title="Codec auto", unit="% more loss than dense", rows=rows, targets=dict.fromkeys(rows, 2.0))]


def _fusionllm_loss(results: Results) -> list[Panel]:
    panels: list[Panel] = []
    for name, title in (("resnet-18", "ResNet-18"), ("resnet-101", "ResNet-101"), ("gpt", "GPT, fine-tuned")):
        (found,) = results(f"fusionllm-loss-{name}")["models"].values()
        variants = ("dense", "AdaTopK", "top-k")
        points = {variant: zip(found["steps"], found["variants"][variant]["losses"], strict=True) for variant in variants}
        curves = {variant: [(step, loss) for step, loss in own if loss is not None] for variant, own in points.items()}
        shown = {variant: own for variant, own in curves.items() if own}  # a run that diverges at once has no curve
        panels.append(Curves(title=title, x="steps", y="training loss, nats", curves=shown, from_zero=False))
    return panels


PICTURES: dict[str, Callable[[Results], list[Panel]]] = {
    "architectures": _architectures,
    "codecs": _codecs,
    "compression": _compression,
    "crawl": _crawl,
    "environments": _environments,
    "fusionllm-loss": _fusionllm_loss,
    "isolation": _isolation,
    "loss-study-auto": _loss_study,
    "memory": _memory,
    "overhead": _overhead,
    "sites": _sites,
    "sync-memory": _sync_memory,
    "sync-speeds": _sync_speeds,
    "sync-strategies": _strategies,
    "trackers": _trackers,
}
