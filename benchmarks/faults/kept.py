"""``kept``: what is left of the throughput of 8 workers of which one is killed every 30 s, or every 120 s.

Real broker and workers as processes of one machine; two processors cannot be eight devices, so devices are emulated
(``paced``). Data parallel x pipeline: two replicas of each stage. A worker of the plan gets SIGKILL and is started again at
once. A plan goes on with those that are there, so a device that died is missed until the next plan: its share of the time is
taken off what is expected. Steps that are made again do not count.
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.clusters import PacedCluster
from benchmarks.harness.gpt_stages import GptSize, small_gpt, variant
from benchmarks.harness.paced import pace_of
from benchmarks.harness.priority import favoured
from benchmarks.harness.stand_in import SPEEDS
from benchmarks.network.pipeline import network
from farflung.chaos.local_cluster import LocalCluster
from farflung.client.connection import Client
from farflung.engines.base import EngineSettings
from farflung.graph.cut import cut
from farflung.job.spec import CheckpointSpec, OptimizerSpec
from farflung.messages.schema import Message
from farflung.messages.submission import Bundle
from farflung.messages.watching import Planned, RecordLine
from farflung.telemetry import StepRecord, read_record

__all__ = ["Kept", "KeptSettings", "Seen", "kept_of"]

_STEPS = 1_000_000
#: Seconds between faults -> what is to be kept.
_TARGETS = {30.0: 0.85, 120.0: 0.95}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSettings(Settings):
    """``spacings``: seconds from fault to fault, and ``faults`` for each of them. ``calm``: seconds without one, before.

    ``seconds``: of forward and backward of one micro-batch through the whole model on one device.
    """

    workers: int = 8
    replicas: int = 2
    spacings: tuple[float, ...] = (30.0, 120.0)
    faults: tuple[int, ...] = (3, 1)
    calm: float = 20.0
    micro_batches: int = 16
    blocks: int = 24
    seconds: float = 0.4
    width: int = 16
    sequence: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Between ``begin`` and ``end`` (seconds): steps that count, and (from when on, how many devices the plan had)."""

    begin: float
    end: float
    steps: int
    devices: Sequence[tuple[float, int]]

    def share(self, workers: int) -> float:
        """The devices at work over ``workers``, on average over the time."""
        times = [max(at, self.begin) for at, _ in self.devices] + [self.end]
        held = zip(self.devices, times, times[1:], strict=False)
        return sum(count * max(after - at, 0.0) for (_, count), at, after in held) / (self.end - self.begin) / workers


def kept_of(seen: Seen, calm: float, workers: int) -> tuple[float, float]:
    """Throughput over ``calm`` (steps per second), and over that of the devices that were there."""
    rate = seen.steps / (seen.end - seen.begin) / calm
    return rate, rate / seen.share(workers)


class Kept:
    """Throughput under faults."""

    name = "kept"
    summary = "throughput kept by 8 emulated devices of which one is killed every 30 s, or every 120 s"

    def settings(self, quick: bool) -> KeptSettings:
        """Quick: two workers, one fault."""
        small: dict[str, Any] = {"workers": 2, "replicas": 1, "spacings": (8.0,), "faults": (1,), "calm": 1.0, "blocks": 2}
        return KeptSettings(quick=True, micro_batches=2, seconds=0.02, **small) if quick else KeptSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, KeptSettings)
        names = [f"worker-{index}" for index in range(settings.workers)]
        with tempfile.TemporaryDirectory(prefix="farflung-kept-") as place:
            folder = Path(place) / "cluster"
            folder.mkdir()
            bundle = _prepare(settings, folder, names)
            with favoured(), PacedCluster(folder, names, data=folder) as cluster:
                client = cluster.client()
                try:
                    found = _Watch(cluster, client, bundle, say).measure(settings)
                finally:
                    client.close()
        return _report(settings, found)


def _prepare(settings: KeptSettings, folder: Path, names: Sequence[str]) -> Bundle:
    blank = network(max(len(names), 2), "1000:0")
    size = GptSize(blocks=settings.blocks, width=settings.width, sequence=settings.sequence, rows=1)
    base = small_gpt(size, blank, threads=settings.threads, seed=settings.seed)
    (whole,) = cut(base.graph, [(0, len(base.graph.ops))])
    pace = pace_of(whole, EngineSettings(optimizer=OptimizerSpec(name="adamw")), 1.0)
    speed = (pace.forward + pace.backward) / settings.seconds
    (folder / SPEEDS).write_text(json.dumps(dict.fromkeys(names, speed)), encoding="utf-8")
    bundle = variant(base, blank, settings.micro_batches, _STEPS, {})
    plan = bundle.job.plan.model_copy(update={"planner": "equal_compute", "replicas": settings.replicas})
    changes = {"plan": plan, "checkpoint": CheckpointSpec(at_end=False), "on_loss": "recover"}
    return replace(bundle, job=bundle.job.model_copy(update=changes), topology=None)


class _Watch:
    """Follows one run, and lets workers die."""

    def __init__(self, cluster: LocalCluster, client: Client, bundle: Bundle, say: Say) -> None:
        self._cluster, self._client, self._run, self._say = cluster, client, bundle.run, say
        client.submit(bundle)
        self._messages = iter(client.watch(bundle.run))
        self._devices: list[str] = []
        self._plans: list[tuple[float, int]] = []
        self._furthest = -1

    def measure(self, settings: KeptSettings) -> dict[str, Any]:
        """The calm rate, and what is left of it for each spacing."""
        times = [seconds for seconds, _ in self._steps(until=None, count=3)]
        times += [seconds for seconds, _ in self._steps(until=time.monotonic() + settings.calm)]
        calm = 1.0 / median(times[3:])
        self._say(f"undisturbed: {calm:.2f} steps per second")
        chance, cases = random.Random(settings.seed), []
        for spacing, count in zip(settings.spacings, settings.faults, strict=True):
            seen = self._faults(spacing, count, chance)
            kept, of_share = kept_of(seen, calm, settings.workers)
            self._say(f"a fault every {spacing:g} s: {kept:.1%} of the throughput, {of_share:.1%} of that of who was there")
            cases.append({"spacing": spacing, "faults": count, "kept": kept, "kept_of_share": of_share, "steps": seen.steps})
            cases[-1] |= {"seconds": seen.end - seen.begin, "share": seen.share(settings.workers)}
        self._client.stop(self._run)
        for _ in self._messages:
            pass
        return {"steps_per_second": calm, "cases": cases}

    def _faults(self, spacing: float, count: int, chance: random.Random) -> Seen:
        begin, steps = time.monotonic(), 0
        before = [self._plans[-1]]
        first = len(self._plans)
        for number in range(count):
            victim = chance.choice(self._devices)
            self._cluster.kill(victim)
            threading.Thread(target=self._cluster.restart, args=(victim,), daemon=True).start()
            steps += sum(new for _, new in self._steps(until=begin + (number + 1) * spacing))
        return Seen(begin=begin, end=time.monotonic(), steps=steps, devices=before + self._plans[first:])

    def _steps(self, until: float | None, count: int = _STEPS) -> Iterator[tuple[float, int]]:
        """Steps until then: seconds of each, and 1 if it was never made before (else 0)."""
        for message in self._messages:
            record = self._take(message)
            if record is not None:
                new, self._furthest = int(record.step > self._furthest), max(self._furthest, record.step)
                yield record.seconds, new
                count -= 1
            if count <= 0 or (until is not None and time.monotonic() >= until):
                return

    def _take(self, message: Message) -> StepRecord | None:
        if isinstance(message, Planned):
            self._devices = list(message.addresses)
            self._plans.append((time.monotonic(), len(self._devices)))
        record = read_record(message.line) if isinstance(message, RecordLine) else None
        return record if isinstance(record, StepRecord) else None


def _report(settings: KeptSettings, found: dict[str, Any]) -> Report:
    rows = [(case["spacing"], case["faults"], case["kept"], case["share"], case["kept_of_share"]) for case in found["cases"]]
    checks = [
        Check(
            name=f"a fault every {case['spacing']:g} s: throughput kept, minus the dead devices' share",
            target=f"{_TARGETS[case['spacing']]:.0%}",
            measured=f"{case['kept_of_share']:.1%}",
            passed=None if settings.quick else case["kept_of_share"] >= _TARGETS[case["spacing"]],
        )
        for case in found["cases"]
        if case["spacing"] in _TARGETS
    ]
    return Report(
        figures=found, columns=("every s", "faults", "kept", "devices there", "kept of these"), rows=rows, checks=checks
    )
