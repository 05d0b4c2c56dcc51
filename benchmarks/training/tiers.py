"""``tiers``: a model of three times the memory of each of two workers trains with optimizer states on disks.

Real processes over TLS on this machine, on one disk. A plan for one device says how much memory the model takes, with all states
in memory. Each worker offers a third of it, and a disk. The step is compared with the time that the disk needs for the bytes of
an update, at the rate that a worker measured when it joined, and with the plan's prediction. Peaks are resident memory beyond
what imports take; the page cache is not part of them.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.clusters import ProbedCluster, bundle_of
from benchmarks.harness.text_model import made_up_text
from benchmarks.training.memory import estimate_of
from farflung.cluster import Topology
from farflung.errors import TrainingError
from farflung.graph.cut import cut
from farflung.job.spec import CheckpointSpec, JobSpec, ModelSpec, OptimizerSpec, PlanSpec
from farflung.messages.submission import Bundle
from farflung.optim import state_bytes
from farflung.plan import estimate
from farflung.planners import get_planner
from farflung.units import Bytes, BytesPerSecond, Seconds

__all__ = ["Tiers", "TiersSettings"]

#: Targets: step over the disk's bound, error of the prediction, and how many times a worker's memory the model takes.
_BOUND, _ERROR, _TIMES = 1.5, 0.07, 3.0
_RATE = re.compile(r"disk: .*, ([\d.]+ [kMGT]?B/s)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TiersSettings(Settings):
    """A GPT by ``layers`` and ``width`` on made-up text, AdamW. ``warm_up``: steps that do not count; the first only writes."""

    layers: int = 16
    width: int = 768
    heads: int = 12
    sequence: int = 16
    rows: int = 1
    micro_batches: int = 1
    steps: int = 12
    warm_up: int = 3
    disk: str = "6 GB"


class Tiers:
    """Step time over the bound of the disk, and over the prediction."""

    name = "tiers"
    summary = "a model of three times each worker's memory, with optimizer states on disks: step over the disk's bound"

    def settings(self, quick: bool) -> TiersSettings:
        """Quick: a small model and few steps."""
        if quick:
            return TiersSettings(quick=True, layers=12, width=128, heads=2, steps=3, warm_up=1, disk="100 MB")
        return TiersSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Plan, start processes, train, and read what they took.

        Raises:
            FarflungError: a process ends early, or the system does not tell memory.
            TrainingError: the plan has no states on disks, or a worker did not print its rate.
        """
        assert isinstance(settings, TiersSettings)
        with tempfile.TemporaryDirectory(prefix="farflung-bench-") as folder:
            figures = _measure(Path(folder), settings, say)
        factor, error = figures["step"] / figures["bound"], abs(figures["predicted"] / figures["step"] - 1.0)
        figures |= {"step_over_bound": factor, "prediction_error": error}
        quick = settings.quick
        inside = max(figures["peaks"]) <= figures["memory"]
        checks = (
            Check(
                name="step / disk bound",
                target=f"at most {_BOUND}",
                measured=f"{factor:.2f}",
                passed=None if quick else factor <= _BOUND,
            ),
            Check(
                name="error of the prediction",
                target=f"at most {_ERROR:.0%}",
                measured=f"{error:.1%}",
                passed=None if quick else error <= _ERROR,
            ),
            Check(
                name="peak of each worker",
                target=f"at most {Bytes(figures['memory'])}",
                measured=", ".join(str(Bytes(peak)) for peak in figures["peaks"]),
                passed=None if quick else inside,
                note="a small model drowns in what a process takes anyway" if quick else "",
            ),
        )
        rows = [
            ("memory of the model", str(Bytes(figures["model"]))),
            ("memory of each worker", str(Bytes(figures["memory"]))),
            ("disk", f"{Bytes(figures['rate'])}/s"),
            ("step", str(Seconds(figures["step"]))),
            ("predicted", str(Seconds(figures["predicted"]))),
            ("disk bound", str(Seconds(figures["bound"]))),
        ]
        return Report(figures=figures, columns=("figure", "value"), rows=rows, checks=checks)


class _WithDisk(ProbedCluster):
    """Its workers compute in their own processes, whose memory the probe reads, and offer ``memory`` bytes and ``disk``."""

    def __init__(self, folder: Path, names: Sequence[str], data: Path, memory: float, disk: str) -> None:
        super().__init__(folder, names, data=data)
        self._offer = ["--memory", f"{memory:.0f} B", "--disk", disk, "--disk-folder", str(folder / "disk"), "--isolation", "off"]

    def start_process(self, name: str, arguments: list[str]) -> None:
        """See ``ProbedCluster.start_process``."""
        joins = "join" in arguments and name not in self._commands
        super().start_process(name, [*arguments, *self._offer] if joins else arguments)


def _measure(folder: Path, settings: TiersSettings, say: Say) -> dict[str, Any]:
    job = _job(folder, settings)
    bundle = bundle_of(job, base=folder)
    model = _model_bytes(bundle)
    memory = model / _TIMES
    say(f"the model takes {Bytes(model)}; each worker offers {Bytes(memory)}")
    names = ["worker-0", "worker-1"]
    cluster = _WithDisk(folder / "cluster", names, folder, memory, settings.disk)
    with cluster:
        finished = cluster.run(bundle)
        rates = [BytesPerSecond.parse(_rate(cluster.log(name))) for name in names]
    plan, graph = finished.plan, bundle.graph
    pieces = [piece for piece, stage in zip(cut(graph, plan.bounds), plan.stages, strict=True) if stage.offload == "optimizer"]
    if not pieces:
        raise TrainingError("the plan has no optimizer states on disks: the model is too small for this benchmark")
    steps = [record for record in finished.steps if record.step >= settings.warm_up]
    states, rate = sum(state_bytes(job.optimizer, graph, piece.states) for piece in pieces), float(median(rates))
    probes = [json.loads(cluster.probe_file(name).read_text(encoding="utf-8")) for name in names]
    return {
        "model": model,
        "memory": memory,
        "rate": rate,
        "states": states,
        "bound": 2.0 * states / rate,
        "step": median(record.seconds for record in steps),
        "steps": [record.seconds for record in finished.steps],
        "predicted": median(record.predicted_seconds or 0.0 for record in steps),
        "peaks": [probe["peak"] - probe["after_imports"] for probe in probes],
        "plan": [device.memory_bytes for device in estimate_of(finished, job).devices],
    }


def _rate(log: str) -> str:
    found = _RATE.search(log)
    if found is None:
        raise TrainingError(f"a worker did not print the rate of its disk; it said: {log[-300:]!r}")
    return found[1]


def _model_bytes(bundle: Bundle) -> float:
    """Bytes of memory that one device with all states in memory needs."""
    alone = Topology.preset("homogeneous-1")
    plan = get_planner(bundle.job.plan.planner).plan(bundle.graph, alone, job=bundle.job)
    return estimate(bundle.graph, plan, alone, bundle.job).devices[0].memory_bytes


def _job(folder: Path, settings: TiersSettings) -> JobSpec:
    args: dict[str, Any] = {"vocab": 256, "sequence": settings.sequence, "layers": settings.layers}
    return JobSpec(
        name="tiers",
        seed=settings.seed,
        steps=settings.steps,
        micro_batch_sizes=(settings.rows,) * settings.micro_batches,
        threads=settings.threads,
        workers=2,
        model=ModelSpec(recipe="gpt", args={**args, "width": settings.width, "heads": settings.heads}),
        data=made_up_text(folder, settings.sequence),
        optimizer=OptimizerSpec(name="adamw", lr=1e-4),
        plan=PlanSpec(planner="op_fence"),
        checkpoint=CheckpointSpec(at_end=False),
    )
