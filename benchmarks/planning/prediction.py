"""``prediction``: predicted against measured step times, random topologies and splits.

Each trial draws devices, their speeds, latency and rate of each directed link, cuts at any allowed positions, micro-batches, a
schedule, a codec, and whether stages have replicas (pipelines, and grids of data parallel x pipeline), all from the seed. Plan
and predicted step come from a real broker (the simulator judges there); the step is measured on real workers over TLS in the
nodes of an emulated network. Computing is held for the modelled time (``paced``), because processes that share two
processors have no speed of their own: what is put to the test is the model
of pipeline, links, codecs and the end of a step, not that of a device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from benchmarks.harness.emulated import EmulatedCluster
from benchmarks.harness.gpt_stages import GptSize, small_gpt, variant
from benchmarks.harness.priority import favoured
from benchmarks.network.overlap import GOODPUT
from benchmarks.network.pipeline import network
from farflung.cluster import Topology
from farflung.cost import op_costs
from farflung.emulation.kernel import require_root
from farflung.errors import InputError
from farflung.job.spec import CodecSpec
from farflung.messages.submission import Bundle
from farflung.units import FlopsPerSecond, Seconds

__all__ = ["Prediction", "PredictionSettings", "Trial", "draw"]

_MEDIAN, _NINETIETH = 0.05, 0.15
_ENOUGH = 30
_SCHEDULES = ("1f1b", "gpipe", "eager-2", "auto")
_CODECS = (CodecSpec(), CodecSpec(), CodecSpec(name="fp16"), CodecSpec(name="adatopk", ratio=10.0))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """``topology``: links as planners are told them. ``workers``: how many of its devices get a stage. ``replicas`` of each."""

    topology: Topology
    workers: int
    micro_batches: int
    schedule: str
    codec: CodecSpec
    seed: int
    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionSettings(Settings):
    """``trials`` on up to ``devices`` devices, from number ``first`` on; ``compute``: seconds of a whole micro-batch on a
    typical device; ``transfer``: seconds of a block's value on a typical link. ``grids``: the part of the trials whose stages
    have two replicas. ``joined``: reports of other trials (JSON files), which count, too; targets are judged from 30 trials on.
    """

    trials: int = bounded(30)
    first: int = bounded(0)
    joined: tuple[str, ...] = ()
    grids: float = bounded(0.4, most=1.0)
    devices: int = 5
    blocks: int = 4
    width: int = 32
    sequence: int = 64
    rows: int = 16
    compute: float = 0.2
    transfer: float = 0.04
    steps: int = 4
    warm_up: int = bounded(1)


class Prediction:
    """Errors of predicted step times."""

    name = "prediction"
    summary = "predicted against measured step times, random topologies and splits, emulated links (root)"

    def settings(self, quick: bool) -> PredictionSettings:
        """Quick: two trials with two devices."""
        return PredictionSettings(quick=True, trials=2, devices=2, blocks=2, steps=3) if quick else PredictionSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure.

        Raises:
            EmulationError: this user may not make network namespaces.
            FarflungError: a process ends early, or a run fails.
        """
        assert isinstance(settings, PredictionSettings)
        found = joined(settings)
        if not settings.trials:
            return _report(settings, found)
        require_root()
        blank = network(settings.devices, "100:2")
        size = GptSize(blocks=settings.blocks, width=settings.width, sequence=settings.sequence, rows=settings.rows)
        base = small_gpt(size, blank, threads=settings.threads)
        cost = op_costs(base.graph, "cpu")
        flops = float(cost.forward_sum[-1] + cost.backward_sum[-1])
        with favoured(), EmulatedCluster(blank, speeds=dict.fromkeys(blank.names, 1e9)) as cluster:
            for number in range(settings.first, settings.first + settings.trials):
                trial = draw(settings, blank, flops, size.value_bytes, number)
                measured = _measure(settings, cluster, variant_of(base, trial, settings.steps), trial)
                found.append({"number": number, **measured})
                say(
                    f"trial {number}: predicted {found[-1]['predicted']:.3f} s, measured {found[-1]['measured']:.3f} s, "
                    f"error {found[-1]['error']:+.1%}"
                )
        return _report(settings, sorted(found, key=lambda item: int(item["number"])))


#: What decides which trial a number stands for, and how it is measured.
_SAME = ("seed", "grids", "devices", "blocks", "width", "sequence", "rows", "compute", "transfer", "steps", "warm_up")


def joined(settings: PredictionSettings) -> list[dict[str, Any]]:
    """The trials of the reports that are joined.

    Raises:
        InputError: a file is no report of this benchmark, has other settings, or has a trial that is there already.
    """
    found: dict[int, dict[str, Any]] = {}
    own = range(settings.first, settings.first + settings.trials)
    for name in settings.joined:
        try:
            report = json.loads(Path(name).read_text(encoding="utf-8"))
            told, trials = report["settings"], report["figures"]["trials"]
            numbers = [int(trial["number"]) for trial in trials]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{name} can't be joined: it is no report of the benchmark prediction ({error!r})") from None
        other = [key for key in _SAME if told.get(key) != getattr(settings, key)]
        if other:
            raise InputError(
                f"{name} can't be joined: its {other[0]} is {told.get(other[0])}, here {getattr(settings, other[0])}"
            )
        twice = [number for number in numbers if number in found or number in own]
        if twice:
            raise InputError(f"{name} can't be joined: trial {twice[0]} is there already; leave it out, or set first and trials")
        found |= dict(zip(numbers, trials, strict=True))
    return [found[number] for number in sorted(found)]


def draw(settings: PredictionSettings, blank: Topology, flops: float, value_bytes: float, number: int) -> Trial:
    """Trial ``number``: everything from the seed."""
    random = np.random.default_rng((settings.seed, number))
    count = len(blank)
    speed = flops / settings.compute * np.exp(random.normal(0.0, 0.5, count))
    rate = value_bytes / settings.transfer * np.exp(random.normal(0.0, 0.8, (count, count)))
    alpha = random.uniform(0.001, 0.04, (count, count))
    np.fill_diagonal(rate, np.inf)
    np.fill_diagonal(alpha, 0.0)
    devices = [
        replace(device, speed=FlopsPerSecond(fast), speed_factor=1.0, overhead=Seconds(0.0))
        for device, fast in zip(blank.devices, speed.tolist(), strict=True)
    ]
    trial = Trial(
        topology=replace(blank.with_devices(devices), alpha=alpha, beta=rate),
        workers=int(random.integers(2, count + 1)),
        micro_batches=int(random.integers(3, 9)),
        schedule=str(random.choice(_SCHEDULES)),
        codec=_CODECS[int(random.integers(len(_CODECS)))],
        seed=int(random.integers(1 << 31)),
    )
    if random.random() >= settings.grids:
        return trial
    stages = int(random.integers(1, max(2, count // 2 + 1)))
    return replace(trial, replicas=2, workers=2 * stages)


def variant_of(base: Bundle, trial: Trial, steps: int) -> Bundle:
    """The trial's run: the planner ``random`` takes its cuts and the order of devices from the job's seed."""
    more = {"schedule": trial.schedule, "codec": trial.codec}
    bundle = variant(base, trial.topology, trial.micro_batches, steps, more)
    plan = bundle.job.plan.model_copy(update={"planner": "random", "replicas": trial.replicas})
    return replace(bundle, job=bundle.job.model_copy(update={"plan": plan, "workers": trial.workers, "seed": trial.seed}))


def _measure(settings: PredictionSettings, cluster: EmulatedCluster, bundle: Bundle, trial: Trial) -> dict[str, Any]:
    topology = trial.topology
    cluster.set_speeds({device.name: float(device.speed) for device in topology.devices})
    cluster.renew_links(replace(topology, beta=topology.beta / GOODPUT))
    run = cluster.run(bundle, ())
    times = [step.seconds for step in run.steps[settings.warm_up :]]
    predicted, measured = float(run.steps[-1].predicted_seconds or 0.0), median(times)
    return {
        "predicted": predicted,
        "measured": measured,
        "error": predicted / measured - 1.0,
        "seconds": times,
        "devices": [list(stage.devices) for stage in run.plan.stages],
        "stages": len(run.plan.stages),
        "replicas": trial.replicas,
        "micro_batches": trial.micro_batches,
        "schedule": run.plan.schedule,
        "codec": trial.codec.name,
        "bounds": [list(bound) for bound in run.plan.bounds],
        "busy_seconds": dict(run.steps[-1].busy_seconds),
        "bytes_per_step": run.steps[-1].total_bytes,
    }


def _report(settings: PredictionSettings, found: Sequence[Mapping[str, Any]]) -> Report:
    if not found:
        raise InputError("there are no trials: set trials or joined")
    judged = not settings.quick and len(found) >= _ENOUGH
    errors = sorted(abs(item["error"]) for item in found)
    middle, high = median(errors), float(np.quantile(errors, 0.9))
    keys = ("number", "stages", "replicas", "micro_batches", "schedule", "codec", "predicted", "measured", "error")
    checks = (
        Check(
            name="median error",
            target=f"{_MEDIAN:.0%}",
            measured=f"{middle:.1%}",
            passed=middle <= _MEDIAN if judged else None,
        ),
        Check(
            name="90th percentile of the error",
            target=f"{_NINETIETH:.0%}",
            measured=f"{high:.1%}",
            passed=high <= _NINETIETH if judged else None,
        ),
    )
    figures = {"trials": list(found), "median_error": middle, "error_90": high}
    return Report(figures=figures, columns=keys, rows=[tuple(item[key] for key in keys) for item in found], checks=checks)
