"""``hybrid``: reliable workers hold a pipeline, unreliable ones help and are cut off in the middle of batches.

Real broker, workers and task pools as processes of one machine; two processors cannot be eight devices, so each device is
emulated (``paced``): the arithmetic is done, then its thread sleeps until the modelled time is over. Each unreliable worker
loses all its connections at most once in a batch, with the given chance, at a moment drawn uniformly over the length of an
undisturbed batch, and is back before the next batch that counts (one that does not lies between).

Three ways to meet the same losses, in turns, batch by batch:

- ``takes over``: the product. Others compute the slices of who is gone.
- ``first restarts``: at the first loss of a batch all its work is thrown away and it begins again, once, without the lost one;
  later losses are taken over. It takes the time of that loss, and then a batch with the losses that are left, so much earlier.
- ``each restarts``: each loss does that, so the batch that ends is one without all who were lost: it takes the time of the last
  loss, and then a batch without them.

The two latter are put together from batches that the product runs; that a restart itself takes no time favours them.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from benchmarks.harness.clusters import PacedCluster
from benchmarks.harness.gpt_stages import GptSize, place_blocks, small_gpt, variant
from benchmarks.harness.outage import cuts, send_away
from benchmarks.harness.paced import pace_of
from benchmarks.harness.priority import favoured
from benchmarks.harness.stand_in import SPEEDS, STAGES
from benchmarks.network.pipeline import network
from farflung.chaos.local_cluster import LocalCluster
from farflung.client.connection import Client
from farflung.engines.base import EngineSettings
from farflung.errors import TrainingError
from farflung.graph.cut import cut
from farflung.job.spec import CheckpointSpec, OptimizerSpec
from farflung.messages.submission import Bundle
from farflung.messages.watching import RecordLine, Started
from farflung.telemetry import StepRecord, read_record

__all__ = ["WAYS", "Hybrid", "HybridSettings", "draw_losses", "timelines"]

WAYS = ("takes over", "first restarts", "each restarts")
_TARGET = 1.3
#: Of the predicted length of a batch.
_ERROR = 0.05
#: Undisturbed batches at first, of which the first does not count; helpers may come until then.
_CALM = 5
_STEPS = 1_000_000
#: How long those that were lost are waited for.
_BACK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridSettings(Settings):
    """``chances``: that a helper is lost in a batch; ``batches``: drawn for each of them, and run in each way.

    ``seconds``: a device's forward and backward of one slice through the whole model. ``slices`` in a batch. ``schedule``: how
    many slices a device may hold; under ``1f1b`` few, and the way through a server takes its time.
    """

    reliable: int = 3
    unreliable: int = 5
    chances: tuple[float, ...] = bounded((0.5, 0.9), most=1.0)
    batches: int = 8
    slices: int = 24
    seconds: float = 0.75
    schedule: str = "gpipe"
    width: int = 32
    sequence: int = 32


def draw_losses(chance: random.Random, names: Sequence[str], share: float, length: float) -> dict[str, float]:
    """Who is lost in a batch of ``length`` seconds, and when: each with the chance ``share``, at any moment alike."""
    return {name: chance.random() * length for name in names if chance.random() < share}


def timelines(losses: Mapping[str, float]) -> dict[str, tuple[float, dict[str, float]]]:
    """way -> seconds of work that are thrown away, and the losses of the batch that is run to its end."""
    first, last = min(losses.values(), default=0.0), max(losses.values(), default=0.0)
    return {
        "takes over": (0.0, dict(losses)),
        "first restarts": (first, {name: at - first for name, at in losses.items()}),
        "each restarts": (last, dict.fromkeys(losses, 0.0)),
    }


class Hybrid:
    """Throughput of a hybrid plan under losses, against restarts."""

    name = "hybrid"
    summary = "hybrid plan under disconnections of its helpers, against batches that are restarted: throughput (emulated devices)"

    def settings(self, quick: bool) -> HybridSettings:
        """Quick: one server, one helper, one batch."""
        small = {"reliable": 1, "unreliable": 1, "chances": (1.0,), "batches": 1, "slices": 4, "seconds": 0.05}
        return HybridSettings(quick=True, width=16, sequence=16, **small) if quick else HybridSettings()  # type: ignore[arg-type]

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, HybridSettings)
        servers = [f"server-{index}" for index in range(settings.reliable)]
        helpers = [f"helper-{index}" for index in range(settings.unreliable)]
        with tempfile.TemporaryDirectory(prefix="farflung-hybrid-") as place:
            folder = Path(place) / "cluster"
            folder.mkdir()
            bundle = _prepare(settings, folder, servers, helpers)
            with favoured(), PacedCluster(folder, servers, data=folder, unreliable=helpers) as cluster:
                client = cluster.client()
                try:
                    drive = _Drive(cluster, client, bundle, say)
                    found = drive.measure(settings, helpers)
                finally:
                    client.close()
        return _report(settings, found)


def _prepare(settings: HybridSettings, folder: Path, servers: Sequence[str], helpers: Sequence[str]) -> Bundle:
    """The job, and what the stand-ins read."""
    blank = network(max(len(servers), 2), "1000:0")
    size = GptSize(blocks=len(servers), width=settings.width, sequence=settings.sequence, rows=1)
    base = small_gpt(size, blank, threads=settings.threads, seed=settings.seed)
    (whole,) = cut(base.graph, [(0, len(base.graph.ops))])
    pace = pace_of(whole, EngineSettings(optimizer=OptimizerSpec(name="adamw")), 1.0)
    speed = (pace.forward + pace.backward) / settings.seconds
    (folder / SPEEDS).write_text(json.dumps(dict.fromkeys([*servers, *helpers], speed)), encoding="utf-8")
    (folder / STAGES).write_text(json.dumps(place_blocks(base.graph, [1] * len(servers), servers)), encoding="utf-8")
    send_away(folder, ())
    bundle = variant(base, blank, settings.slices, _STEPS, {"schedule": settings.schedule})
    plan = bundle.job.plan.model_copy(update={"helpers": True})
    checkpoint = CheckpointSpec(at_end=False, recover_every=0.0)
    job = bundle.job.model_copy(update={"plan": plan, "checkpoint": checkpoint, "workers": len(servers)})
    return replace(bundle, job=job, topology=None)


class _Drive:
    """One run, whose batches are disturbed one by one."""

    def __init__(self, cluster: LocalCluster, client: Client, bundle: Bundle, say: Say) -> None:
        self._cluster, self._client, self._run, self._say = cluster, client, bundle.run, say
        self._lock = threading.Lock()
        self._away: set[str] = set()
        self._lost = 0
        client.submit(bundle)
        self._records = self._follow()

    def measure(self, settings: HybridSettings, helpers: Sequence[str]) -> dict[str, Any]:
        """All chances: what was drawn, and how long each batch took in each way."""
        while not all(self._cluster.log("broker").count(f"{name} helps ") for name in helpers):
            next(self._records)
        first = [next(self._records) for _ in range(_CALM)]
        calm = [record.seconds for record in first[1:]]
        length, predicted = statistics.median(calm), float(first[-1].predicted_seconds or 0.0)
        self._say(f"an undisturbed batch takes {length:.2f} s, predicted {predicted:.2f} s")
        chance, cases = random.Random(settings.seed), []
        for share in settings.chances:
            drawn = [draw_losses(chance, helpers, share, length) for _ in range(settings.batches)]
            batches = []
            for losses in drawn:
                seconds = {way: self._batch(way, losses, calm) for way in WAYS}
                batches.append({"losses": losses, "seconds": seconds})
                told = ", ".join(f"{way} {one:.2f} s" for way, one in seconds.items())
                self._say(f"chance {share:g}: {len(losses)} lost: {told}")
            cases.append({"chance": share, "batches": batches})
        self._all_back()
        self._client.stop(self._run)
        for _ in self._records:
            pass
        found = {"undisturbed_seconds": calm, "cases": cases, "joined_again": self._again()}
        return found | {"predicted_seconds": predicted, "prediction_error": predicted / length - 1.0}

    def _again(self) -> int:
        """How often a worker joined anew so far."""
        return self._cluster.log("broker").count(" joined from ") - len(self._cluster.names)

    def _all_back(self) -> None:
        """Batches pass until all that were lost have joined again."""
        end = time.monotonic() + _BACK_SECONDS
        while self._again() < self._lost:
            next(self._records)
            _in_time(end)

    def _batch(self, way: str, losses: Mapping[str, float], calm: list[float]) -> float:
        """A batch with these losses, after one in which all were there."""
        self._all_back()
        calm.append(next(self._records).seconds)
        wasted, left = timelines(losses)[way]
        timers = [threading.Timer(at, self._lose, [name]) for name, at in left.items()]
        for timer in timers:
            timer.start()
        took = next(self._records).seconds
        for timer in timers:
            timer.cancel()
            timer.join()
        end, pause = time.monotonic() + _BACK_SECONDS, threading.Event()
        while cuts(self._cluster.folder) < self._lost:  # one that is lost at the very end, too
            _in_time(end)
            pause.wait(0.01)
        with self._lock:
            self._away.clear()
            send_away(self._cluster.folder, ())
        return wasted + took

    def _lose(self, name: str) -> None:
        with self._lock:
            self._away.add(name)
            self._lost += 1
            send_away(self._cluster.folder, self._away)

    def _follow(self) -> Iterator[StepRecord]:
        for message in self._client.watch(self._run):
            record = read_record(message.line) if isinstance(message, RecordLine) else None
            if isinstance(record, StepRecord):
                yield record
            if isinstance(message, Started) and message.attempt > 1:
                raise TrainingError("the run of the benchmark lost a reliable worker, so its times mean nothing; run it again")


def _in_time(end: float) -> None:
    if time.monotonic() > end:
        raise TrainingError(f"a helper was not gone or not back within {_BACK_SECONDS:g} s, so times mean nothing; run it again")


def _report(settings: HybridSettings, found: dict[str, Any]) -> Report:
    rows: list[tuple[object, ...]] = []
    checks = []
    for case in found["cases"]:
        means = {way: statistics.mean(batch["seconds"][way] for batch in case["batches"]) for way in WAYS}
        case["seconds_per_batch"] = means
        case["lost_per_batch"] = statistics.mean(len(batch["losses"]) for batch in case["batches"])
        case["speed_up"] = {way: means[way] / means["takes over"] for way in WAYS[1:]}
        rows += [(case["chance"], case["lost_per_batch"], way, means[way], means[way] / means["takes over"]) for way in WAYS]
        checks += [
            Check(
                name=f"chance {case['chance']:.0%}: throughput against batches where {way.split()[0]} loss restarts",
                target=f"{_TARGET:g} x",
                measured=f"{ratio:.2f} x",
                passed=None if settings.quick else ratio >= _TARGET,
            )
            for way, ratio in case["speed_up"].items()
        ]
    error = found["prediction_error"]
    checks.append(
        Check(
            name="predicted batch with helpers against the first undisturbed ones",
            target=f"{_ERROR:.0%}",
            measured=f"{error:+.1%}",
            passed=None if settings.quick else abs(error) <= _ERROR,
        )
    )
    return Report(figures=found, columns=("chance", "lost", "way", "s/batch", "x the product's"), rows=rows, checks=checks)
