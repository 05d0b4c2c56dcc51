"""What the figures of predictions, planners and searches show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.pictures.charts import Bars, Curves, Panel

__all__ = ["PICTURES"]

#: The figures of a stored result, by its name.
Results = Callable[[str], Any]


def _prediction(results: Results) -> list[Panel]:
    trials = results("prediction")["trials"]
    dots = {
        name: [(one["measured"], one["predicted"]) for one in trials if (one["replicas"] > 1) == several]
        for name, several in (("one pipeline", False), ("grid with replicas", True))
    }
    x, y = "measured seconds per step", "predicted seconds per step"
    return [Curves(title="30 random topologies and splits", x=x, y=y, curves=dots, dots=True, diagonal=True, log=True)]


def _shared_cores(results: Results) -> list[Panel]:
    models = results("shared-cores")["models"]
    dots = {name: [(place, one["ratio"]) for one in models[name]["runs"]] for place, name in enumerate(models, 1)}
    levels = {"target, at most": 1.25, "target, at least": 0.8}
    return [Curves(title="Three workers on two cores", x="", y="predicted / measured", curves=dots, levels=levels, dots=True)]


def _planning(results: Results) -> list[Panel]:
    found = results("planning")
    parts = {"import of PyTorch": "import_seconds", "capture": "capture_seconds", "plan": "plan_seconds"}
    rows = {name: {"": found[key]} for name, key in parts.items()}
    return [Bars(title="Llama 70 B on 64 machines", unit="seconds", rows=rows)]


def _auto(results: Results) -> list[Panel]:
    found = results("auto")
    order = sorted(found["over"], key=lambda name: float(found["over"][name]["equal_geometric"]))
    rows = {
        name: {
            "auto chooses codec and micro-batches": found["over"][name]["free_geometric"],
            "same codec and micro-batches": found["over"][name]["equal_geometric"],
        }
        for name in order
    }
    measured = [(one["devices"], one["wall_seconds"]) for one in found["scales"]]
    targets = [(one["devices"], limit) for one, limit in zip(found["scales"], (2, 5, 15, 60, 300), strict=True)]
    return [
        Bars(title="Other planners", unit="step / step of auto (geometric mean)", rows=rows, log=True),
        Curves(title="Planning time", x="devices", y="seconds", curves={"measured": measured, "target": targets}, log=True),
    ]


def _grid(results: Results) -> list[Panel]:
    names = {"search": "search (worst of 10)", "dtfm": "genetic search", "kernighan_lin": "Kernighan-Lin", "random": "random"}
    keys = {"search": "search_worst"}
    rows = {
        f"case {case[-1]}": {name: found[keys.get(key, key)] for key, name in names.items()}
        for case, found in results("grid")["cases"].items()
    }
    return [Bars(title="DT-FM's cases", unit="seconds of communication", rows=rows)]


def _sync_schedule(results: Results) -> list[Panel]:
    kinds = {"optimal": "neighboring sets", "free": "free sets"}
    rows: dict[str, dict[str, float]] = {}
    for name, seconds in results("sync-schedule")["seconds"].items():
        size, kind = name.split()
        layers, period = size.split("x")
        rows.setdefault(f"{layers} layers, H = {period}", {})[kinds[kind]] = 1e3 * seconds
    return [Bars(title="Time of the search", unit="ms", rows=rows, log=True)]


def _dtfm(results: Results) -> list[Panel]:
    systems = ("dtfm", "random_grid", "Megatron-LM, random ranks", "DeepSpeed, random ranks")
    names = {f"dtfm-case{number}": f"case {number}" for number in range(1, 6)} | {"fluidstack": "FluidStack"}
    rows = {
        names[run["case"]]: {name: run["systems"][name]["step_seconds"] for name in systems} for run in results("dtfm")["runs"]
    }
    return [Bars(title="GPT3-1.3B, simulated", unit="seconds per step", rows=rows)]


def _fusionllm(results: Results) -> list[Panel]:
    planners = ("equal_number", "equal_compute", "op_fence as written", "op_fence", "auto")
    codecs = {"dense": "dense", "topk 100": "top-k 100", "adatopk 100": "AdaTopK 100"}
    runs = {
        (run["model"], run["topology"], run["planner"], run["codec"]): run["step_seconds"] for run in results("fusionllm")["runs"]
    }
    return [
        Bars(
            title=f"GPT2-XL, testbed {testbed}, simulated",
            unit="seconds per step",
            log=True,
            rows={
                planner: {name: runs["gpt2-xl", f"fusionllm-testbed{testbed}", planner, codec] for codec, name in codecs.items()}
                for planner in planners
            },
        )
        for testbed in (1, 2)
    ]


def _coverage(results: Results) -> list[Panel]:
    found = results("coverage")["models"]
    rows = {
        library: {
            result: sum(one["library"] == library and one["result"] == result for one in found)
            for result in ("equal", "different", "refused")
            if any(one["library"] == library and one["result"] == result for one in found)
        }
        for library in ("transformers", "torchvision")
    }
    return [Bars(title="Random models", unit="models, compared with a plain loop", rows=rows)]


PICTURES: dict[str, Callable[[Results], list[Panel]]] = {
    "auto": _auto,
    "coverage": _coverage,
    "dtfm": _dtfm,
    "fusionllm": _fusionllm,
    "grid": _grid,
    "planning": _planning,
    "prediction": _prediction,
    "shared-cores": _shared_cores,
    "sync-schedule": _sync_schedule,
}
