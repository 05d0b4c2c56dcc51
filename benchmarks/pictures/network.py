"""What the figures of networks and of commands show."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.pictures.charts import Bars, Curves, Panel

__all__ = ["PICTURES"]

#: The figures of a stored result, by its name.
Results = Callable[[str], Any]


def _pipeline(results: Results) -> list[Panel]:
    names = {"torch": "torch, 1F1B", "dense": "dense, 1F1B", "dense auto": "dense, auto schedule", "adatopk": "AdaTopK 100"}
    (case,) = results("pipeline")["cases"]
    rows = {name: {"": case["seconds_per_step"][key]} for key, name in names.items()}
    return [Bars(title="Four stages, 8 Mbit/s, 40 ms", unit="seconds per step", rows=rows)]


def _replicas(results: Results) -> list[Panel]:
    (case,) = results("replicas")["cases"]
    seconds = {name: median(values) for name, values in case["seconds"].items()}
    pairs = {
        "torch DDP | wfbp": ("torch ddp", "wfbp"),
        "torchft, local SGD | local_sgd": ("torchft local_sgd", "local_sgd"),
        "torchft, DiLoCo | diloco": ("torchft diloco", "diloco"),
        "hivemind | local_sgd": ("hivemind", "local_sgd"),
    }
    rows = {name: {"library": seconds[theirs], "farflung": seconds[ours]} for name, (theirs, ours) in pairs.items()}
    return [Bars(title="Four replicas, 20 Mbit/s, 20 ms", unit="seconds per step", rows=rows)]


def _overlap(results: Results) -> list[Panel]:
    found = results("overlap")["runs"]
    rows = {
        f"{run['stages']} stages, {run['case']}": {"measured": run["ratio"], "simulated": run["predicted"] / run["bound"]}
        for run in found
    }
    return [Bars(title="Step over its lower bound", unit="step / bound", rows=rows, targets=dict.fromkeys(rows, 1.1))]


def _serving(results: Results) -> list[Panel]:
    found = results("serving")
    rows = {
        "one request, bound": {"": found["bound_tokens_per_second"]},
        "one request": {"": found["single_tokens_per_second"]},
        "eight requests": {"": found["several_tokens_per_second"]},
    }
    targets = {"one request": 0.9 * found["bound_tokens_per_second"], "eight requests": 5 * found["single_tokens_per_second"]}
    return [Bars(title="GPT-2 on three workers, 20 ms apart", unit="tokens/s", rows=rows, targets=targets)]


def _emulator(results: Results) -> list[Panel]:
    found = results("emulator")
    trips = {
        f"{idle['set_ms']:g} ms": {"idle": idle["error_ms"], "loaded": loaded["error_ms"]}
        for idle, loaded in zip(found["idle"], found["loaded"], strict=True)
    }
    rates = {f"{one['set_mbit']:g} Mbit/s": {"": 100 * abs(one["error"])} for one in found["rates"]}
    return [
        Bars(title="Error of round trips", unit="ms", rows=trips, targets=dict.fromkeys(trips, 1.0)),
        Bars(title="Error of rates", unit="%", rows=rates, targets=dict.fromkeys(rates, 5.0)),
    ]


def _transport(results: Results) -> list[Panel]:
    names = {
        "8-40": ("8 Mbit/s, 40 ms", 0.92),
        "100-50": ("100 Mbit/s, 50 ms", 0.92),
        "1000-20": ("1 Gbit/s, 20 ms", 0.91),
        "500-100": ("500 Mbit/s, 100 ms", 0.85),
        "100-50-loss": ("100 Mbit/s, 50 ms, 0.5 % loss", 0.80),
    }
    rows = {names[one["case"]][0]: {"": one["fraction"]} for one in results("transport")["links"]}
    return [Bars(title="Goodput of 64 MB", unit="share of the link's rate", rows=rows, targets=dict(names.values()))]


def _nat(results: Results) -> list[Panel]:
    found = sorted(results("nat")["ratios"].items(), key=lambda one: float(one[1]))
    rows = {name: {"": ratio} for name, ratio in found}
    return [Bars(title="Pairs of NAT types", unit="goodput / goodput without NAT", rows=rows, targets=dict.fromkeys(rows, 0.9))]


def _changing(results: Results) -> list[Panel]:
    steps = [step for step in results("changing")["steps"] if step["turn"] == 0]
    curves = {
        f"{step['from']:g} to {step['to']:g} Mbit/s": [
            (12 * place / len(step["goodputs"]), value) for place, value in enumerate(step["goodputs"])
        ]
        for step in steps
    }
    x, y = "seconds after the change", "goodput / new rate"
    return [Curves(title="A link changes its rate", x=x, y=y, curves=curves, levels={"target": 0.8})]


def _profile(results: Results) -> list[Panel]:
    found = results("profile")
    sources = {
        "farflung profile": found["links"],
        "training": found["training"]["during"]["links"],
        "training, after a change": found["training"]["changed"]["links"],
    }

    def dots(measured: str, true: str) -> dict[str, list[tuple[float, float]]]:
        return {name: [(link[true], link[measured]) for link in links] for name, links in sources.items()}

    bandwidths, latencies = dots("beta_mbps", "beta_true_mbps"), dots("alpha_ms", "alpha_true_ms")
    return [
        Curves(title="Bandwidth", x="true Mbit/s", y="measured Mbit/s", curves=bandwidths, dots=True, diagonal=True, log=True),
        Curves(title="Latency", x="true ms", y="measured ms", curves=latencies, dots=True, diagonal=True, log=True),
    ]


def _startup(results: Results) -> list[Panel]:
    names = {"import typer": "import typer", "help": "--help", "status": "status", "join": "join, until registered"}
    found = results("startup")["median_seconds"]
    targets = {"--help": 2.0, "status": 4.0, "join, until registered": 10.0}
    rows = {name: {"": 1e3 * found[key]} for key, name in names.items()}
    marks = {name: multiple * 1e3 * found["import typer"] for name, multiple in targets.items()}
    return [Bars(title="CPU time of commands", unit="ms", rows=rows, targets=marks)]


def _launchers(results: Results) -> list[Panel]:
    names = {"ssh": "SSH, 3 hosts", "slurm": "Slurm, 4 tasks", "ray": "Ray, 4 actors"}
    found = results("launchers")
    joined = {key: median(one["joined"] for one in found["seconds"][key]) for key in names}
    rows = {name: {"all joined": joined[key], "first step": found["median_seconds"][key]} for key, name in names.items()}
    return [Bars(title="From farflung up, on two cores", unit="seconds", rows=rows, targets=dict.fromkeys(rows, 30.0))]


def _messages(results: Results) -> list[Panel]:
    rows: dict[str, dict[str, float]] = {}
    for name, value in results("messages")["median_microseconds"].items():
        message, _, part = name.partition(": ")
        rows.setdefault(message, {})[part.partition(",")[0]] = value
    return [Bars(title="Reading a message", unit="microseconds", rows=rows)]


def _web(results: Results) -> list[Panel]:
    found = results("web")
    measured = {
        "first paint": (found["first_paint"], 1.0, "s"),
        "update interval": (found["update_interval"], 1.0, "s"),
        "CPU of the broker": (100 * found["broker_cpu"], 5.0, "%"),
    }
    return [_shares("64 machines, 10,000 steps", measured)]


def _shares(title: str, measured: dict[str, tuple[float, float, str]]) -> Bars:
    """Measurements in different units, each as a share of its target."""
    rows = {name: {"": 100 * value / target} for name, (value, target, _) in measured.items()}
    text = {name: f"{value:.2g} of {target:g} {unit}" for name, (value, target, unit) in measured.items()}
    return Bars(title=title, unit="% of the target", rows=rows, text=text, targets=dict.fromkeys(rows, 100.0))


def _members(results: Results) -> list[Panel]:
    found = results("members")
    measured = {
        "CPU of the broker": (100 * found["cpu"], 30.0, "%"),
        "memory of the broker": (found["memory"] / 1e9, 1.5, "GB"),
        "slowest status": (max(found["status_seconds"]), 1.0, "s"),
        "slowest join": (max(found["join_seconds"]), 1.0, "s"),
        "slowest detection of a frozen member": (max(found["death_seconds"]["frozen"]), 6.0, "s"),
    }
    return [_shares("1,000 members", measured)]


PICTURES: dict[str, Callable[[Results], list[Panel]]] = {
    "changing": _changing,
    "emulator": _emulator,
    "members": _members,
    "messages": _messages,
    "nat": _nat,
    "overlap": _overlap,
    "pipeline": _pipeline,
    "profile": _profile,
    "replicas": _replicas,
    "serving": _serving,
    "startup": _startup,
    "transport": _transport,
    "web": _web,
}
