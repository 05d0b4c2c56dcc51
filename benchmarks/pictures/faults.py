"""What the figures of deaths, joins and hostile members show."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.pictures.charts import Bars, Curves, Panel

__all__ = ["PICTURES"]

#: The figures of a stored result, by its name.
Results = Callable[[str], Any]


def _chaos(results: Results) -> list[Panel]:
    sources = {
        "worker, from memory": "worker, live replica",
        "worker, from copies": "worker, copy",
        "worker, from checkpoint": "worker, checkpoint",
        "helper": "helper",
        "broker": "broker, with its start",
    }
    found = results("chaos")["recovery_seconds"]
    rows = {name: {"median": found[key]["p50"], "worst": found[key]["max"]} for key, name in sources.items()}
    return [Bars(title="32 kills (run A)", unit="seconds until training continues", rows=rows)]


def _takeover(results: Results) -> list[Panel]:
    found = results("takeover")
    trials = zip(found["leads_seconds"], found["trains_seconds"], strict=True)
    rows = {f"loss {number}": {"standby leads": leads, "next step": trains} for number, (leads, trains) in enumerate(trials, 1)}
    return [Bars(title="The leader's machine is lost", unit="seconds", rows=rows, targets=dict.fromkeys(rows, 15.0))]


def _joining(results: Results) -> list[Panel]:
    names = {"helps": "helper: first slice", "replaces": "replacement: first step", "again": "better plan"}
    ways = results("joining")["ways"]
    rows = {
        name: {"median": median(ways[key]["useful_seconds"]), "worst of three": max(ways[key]["useful_seconds"])}
        for key, name in names.items()
    }
    return [Bars(title="A worker joins a run", unit="seconds until useful", rows=rows, targets=dict.fromkeys(rows, 10.0))]


def _kept(results: Results) -> list[Panel]:
    rows = {
        f"a fault every {case['spacing']:g} s": {"throughput": 100 * case["kept"], "devices of the plan": 100 * case["share"]}
        for case in results("kept")["cases"]
    }
    return [Bars(title="Eight devices, one at a time dies", unit="% of the undisturbed run", rows=rows)]


def _hostile(results: Results) -> list[Panel]:
    rows = dict[str, dict[str, float]]()
    for defense, losses in results("hostile")["losses"].items():
        for attack, loss in losses.items():
            if attack != "none":
                rows.setdefault(attack, {})[defense] = 100 * abs(loss / losses["none"] - 1)
    unit = "% difference of the loss"
    return [Bars(title="One hostile replica of five", unit=unit, rows=rows, targets=dict.fromkeys(rows, 5.0))]


def _verification(results: Results) -> list[Panel]:
    found = results("verification")["steps_until_named"]
    middle = median(found)
    levels = {f"median {middle:.0f}": middle, "target 1000": 1000.0}
    dots = list(enumerate(sorted(map(float, found)), 1))
    title = "A worker forges one step of a hundred"
    return [Curves(title=title, x="run", y="steps until it is named", curves={"run": dots}, levels=levels, dots=True)]


def _hybrid(results: Results) -> list[Panel]:
    names = {"takes over": "others take over", "first restarts": "first loss restarts", "each restarts": "each loss restarts"}
    rows = {
        f"chance of a loss {case['chance']:.0%}": {names[key]: case["seconds_per_batch"][key] for key in names}
        for case in results("hybrid")["cases"]
    }
    return [Bars(title="Three servers, five helpers", unit="seconds per batch", rows=rows)]


PICTURES: dict[str, Callable[[Results], list[Panel]]] = {
    "chaos": _chaos,
    "hostile": _hostile,
    "hybrid": _hybrid,
    "joining": _joining,
    "kept": _kept,
    "takeover": _takeover,
    "verification": _verification,
}
