"""``joining``: seconds from the moment that a worker joins to its first useful work in a run under way.

Three ways in: ``helps`` (an unreliable worker, in a hybrid plan: its first slice), ``replaces`` (a worker was killed, and the run
waits for another: the first step with the newcomer) and ``again`` (``plan.again``: the first step of the better plan with it).
Broker and workers are processes of one machine, so a state's transfer takes next to nothing, and what is measured is all else:
measuring links, planning, getting ready, and the steps that are made again. How long ``farflung join`` takes before that is
told beside it.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.api.submission import bundle_job
from farflung.chaos.local_cluster import LocalCluster
from farflung.client.connection import Client
from farflung.errors import InputError
from farflung.job import make_job
from farflung.messages.submission import Bundle
from farflung.messages.watching import Planned, RecordLine
from farflung.telemetry import StepRecord, read_record

__all__ = ["WAYS", "Joining", "JoiningSettings"]

#: Settings of the job, and how many workers are there before.
WAYS: Mapping[str, tuple[Mapping[str, Any], int]] = {
    "helps": ({"plan": {"planner": "equal_compute", "helpers": True}, "workers": 1}, 1),
    "replaces": ({"plan": {"planner": "equal_compute"}, "workers": 2}, 2),
    "again": ({"plan": {"planner": "equal_compute", "again": True}}, 1),
}
_LATE, _STEPS, _TARGET = "late", 1_000_000, 10.0
_NEVER = float("inf")
#: What a worker says when it has helped for the first time, and the broker when it has joined.
_HELPED, _JOINED = "its first slice", f"worker {_LATE} joined"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningSettings(Settings):
    """``times`` for each of the ``ways``; the newcomer starts after ``before`` steps, given up after ``patience`` seconds."""

    ways: tuple[str, ...] = tuple(WAYS)
    times: int = 3
    before: int = 5
    patience: float = 60.0
    width: int = 192
    layers: int = 4


class Joining:
    """Late workers: how soon they are of use."""

    name = "joining"
    summary = "a worker joins in mid run: seconds until its first useful work, as a helper, a replacement, and in a better plan"

    def settings(self, quick: bool) -> JoiningSettings:
        """Quick: one helper, once."""
        return JoiningSettings(quick=True, ways=("helps",), times=1, width=16, layers=2) if quick else JoiningSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, JoiningSettings)
        unknown = [way for way in settings.ways if way not in WAYS]
        if unknown or not settings.ways:
            raise InputError(f"unknown way {unknown[0] if unknown else ''!r}: known are {', '.join(WAYS)}")
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in settings.ways}
        with tempfile.TemporaryDirectory(prefix="farflung-joining-") as place:
            folder = Path(place)
            (folder / "corpus").mkdir()
            (folder / "corpus" / "text.txt").write_text("".join(f"def f{i}(x):\n    return x + {i * i}\n" for i in range(400)))
            bundles = {way: _bundle(settings, way, folder) for way in settings.ways}
            for turn in range(settings.times):
                for way in settings.ways:
                    found[way].append(_once(settings, way, bundles[way], folder / f"{way}-{turn}"))
                    say(f"{way}: joined after {found[way][-1][1]:.2f} s, useful after {found[way][-1][0]:.2f} s")
        state = next(iter(bundles.values())).graph.states
        return _report(found, 3 * sum(item.spec.nbytes for item in state if item.trainable))


def _bundle(settings: JoiningSettings, way: str, folder: Path) -> Bundle:
    args = {"vocab": 256, "sequence": 32, "layers": settings.layers, "width": settings.width, "heads": 2}
    document = {
        "name": f"joining-{way}",
        "seed": settings.seed,
        "steps": _STEPS,
        "micro_batch_sizes": [2, 2, 2, 2],
        "model": {"recipe": "gpt", "args": args},
        "data": {"kind": "text", "path": "corpus", "tokenizer": "bytes", "sequence": 32},
        "optimizer": {"name": "adamw", "lr": 1e-3},
        "checkpoint": {"at_end": False, "recover_every": 5.0},
        **WAYS[way][0],
    }
    return bundle_job(make_job(document), base=folder)


def _once(settings: JoiningSettings, way: str, bundle: Bundle, folder: Path) -> tuple[float, float]:
    """Seconds from the start of the newcomer's process until it is of use, and until it has joined (infinite: not in time)."""
    names = [f"worker-{index}" for index in range(WAYS[way][1])]
    with LocalCluster(folder, names, data=folder.parent) as cluster:
        client = cluster.client()
        try:
            client.submit(bundle)
            events = _events(client, bundle.run)
            for count, event in enumerate(events):
                if event != "planned" and count >= settings.before:
                    break
            if way == "replaces":
                cluster.kill(names[-1])
            begin, joined, over = time.monotonic(), list[float](), threading.Event()
            cluster.add(_LATE, unreliable=way == "helps")
            watch = threading.Thread(target=_see, args=(cluster, over, joined), daemon=True)
            watch.start()
            end = _useful(way, cluster, events, begin + settings.patience)
            over.set()
            watch.join()
        finally:
            client.close()
    return end - begin, (joined[0] - begin) if joined else _NEVER


def _events(client: Client, run: str) -> Iterator[str]:
    """``planned late`` or ``planned`` for each plan, with or without the newcomer, and ``step`` for each step."""
    for message in client.watch(run):
        if isinstance(message, Planned):
            yield f"planned {_LATE}" if _LATE in message.addresses else "planned"
        elif isinstance(message, RecordLine) and isinstance(read_record(message.line), StepRecord):
            yield "step"


def _useful(way: str, cluster: LocalCluster, events: Iterator[str], until: float) -> float:
    """When the newcomer was of use."""
    part = False
    for event in events:
        part = event == f"planned {_LATE}" or (part and event == "step")
        if part and event == "step":
            return time.monotonic()
        if way == "helps" and _HELPED in cluster.log(_LATE):
            return time.monotonic()
        if time.monotonic() > until:
            break
    return _NEVER


def _see(cluster: LocalCluster, over: threading.Event, joined: list[float]) -> None:
    while not over.wait(0.02):
        if _JOINED in cluster.log("broker"):
            joined.append(time.monotonic())
            return


def _report(found: Mapping[str, list[tuple[float, float]]], nbytes: int) -> Report:
    rows, checks, table = [], [], {}
    for way, times in found.items():
        came = [joined for _, joined in times if joined < _NEVER]
        spans = [useful - joined if useful < _NEVER else _NEVER for useful, joined in times]
        middle, worst = statistics.median(spans), max(spans)
        table[way] = {"joined_seconds": came, "useful_seconds": [span for span in spans if span < _NEVER], "times": len(times)}
        rows.append((way, len(times), statistics.median(came) if came else "never", *map(_told, (middle, worst))))
        measured = f"{_told(middle)} s (at most {_told(worst)})"
        target = f"its state's transfer time plus {_TARGET:g} s"
        checks.append(Check(name=f"a device that joins: {way}", target=target, measured=measured, passed=worst <= _TARGET))
    figures = {"ways": table, "state_bytes": nbytes}
    return Report(figures=figures, columns=("way", "times", "joined s", "useful s", "worst s"), rows=rows, checks=checks)


def _told(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < _NEVER else "never"
