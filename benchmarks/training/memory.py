"""``memory``: does each worker stay within the figure that the plan promises, and is the promise not much too large?"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.clusters import ProbedCluster, bundle_of
from benchmarks.harness.text_model import gpt2_of, made_up_text
from farflung.chaos.local_cluster import Finished
from farflung.graph.ir import Graph
from farflung.job.spec import CheckpointSpec, JobSpec, OptimizerSpec, PlanSpec
from farflung.plan import Estimate, estimate
from farflung.telemetry import RunFolder

__all__ = ["Memory", "MemorySettings", "estimate_of", "figures"]

LOW, HIGH = 0.7, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings(Settings):
    """GPT-2 by ``layers`` and ``width`` on random text. ``checkpoint``: also write one at the end."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257
    sequence: int = 128
    rows: int = 4
    micro_batches: int = 2
    steps: int = 2
    workers: tuple[int, ...] = (2, 3)
    planner: str = "equal_compute"
    optimizer: str = "adamw"
    recompute: str = "auto"
    checkpoint: bool = False


class Memory:
    """(Peak resident memory - that after imports) / the plan's figure, for every worker."""

    name = "memory"
    summary = "peak resident memory of each worker against the plan's figure, GPT-2 124 M"

    def settings(self, quick: bool) -> MemorySettings:
        """Quick: a small model, two workers."""
        if quick:
            return MemorySettings(
                quick=True, layers=2, width=64, heads=2, vocabulary=512, sequence=32, rows=2, steps=1, workers=(2,)
            )
        return MemorySettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Start processes, train, and read what they took.

        Raises:
            FarflungError: a process ends early, or the system does not tell memory.
        """
        assert isinstance(settings, MemorySettings)
        found: list[dict[str, Any]] = []
        for workers in settings.workers:
            with tempfile.TemporaryDirectory(prefix="farflung-bench-") as folder:
                found += _measure(Path(folder), workers, settings, say)
        ratios = [item["ratio"] for item in found]
        inside = all(LOW <= ratio <= HIGH for ratio in ratios)
        check = Check(
            name="peak / plan",
            target=f"{LOW} to {HIGH} on each worker",
            measured=", ".join(f"{ratio:.2f}" for ratio in ratios),
            passed=None if settings.quick else inside,
            note="a small model drowns in what a process takes anyway" if settings.quick else "",
        )
        columns = ("workers", "worker", "after imports MB", "peak MB", "plan MB", "ratio")
        rows = [
            (f["workers"], f["worker"], f["after_imports"] / 1e6, f["peak"] / 1e6, f["plan"] / 1e6, f["ratio"]) for f in found
        ]
        return Report(figures={"workers": found}, columns=columns, rows=rows, checks=(check,))


def _measure(folder: Path, workers: int, settings: MemorySettings, say: Say) -> list[dict[str, Any]]:
    job = _job(folder, settings)
    say(f"capture for {workers} workers")
    bundle = bundle_of(job, base=folder)
    names = [f"worker-{i}" for i in range(workers)]
    cluster = ProbedCluster(folder / "cluster", names, data=folder)
    with cluster:
        say("training")
        finished = cluster.run(bundle)
    predicted = estimate_of(finished, job)
    return [figures(cluster.probe_file(device), predicted, device, workers) for device in finished.plan.devices]


def estimate_of(finished: Finished, job: JobSpec) -> Estimate:
    """What was foretold of a run that is over."""
    graph = Graph.from_json(RunFolder(finished.folder).graph.read_text(encoding="utf-8"))
    return estimate(graph, finished.plan, finished.topology, job)


def figures(file: Path, predicted: Estimate, device: str, workers: int) -> dict[str, Any]:
    """What the worker on ``device`` took, by its probe's ``file``, beside the plan's figure (bytes)."""
    probe: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    plan = next(item.memory_bytes for item in predicted.devices if item.device == device)
    stages = [stage for stage in predicted.stages if stage.device == device]
    return {
        "workers": workers,
        "worker": device,
        "after_imports": probe["after_imports"],
        "peak": probe["peak"],
        "plan": plan,
        "ratio": (probe["peak"] - probe["after_imports"]) / plan,
        "plan_parts": [dict(stage.memory) | {"stage": stage.index, "in_flight": stage.in_flight} for stage in stages],
        "curve": probe["curve"],
    }


def _job(folder: Path, settings: MemorySettings) -> JobSpec:
    return JobSpec(
        name="memory",
        seed=settings.seed,
        steps=settings.steps,
        micro_batch_sizes=(settings.rows,) * settings.micro_batches,
        threads=settings.threads,
        model=gpt2_of(settings),
        data=made_up_text(folder, settings.sequence),
        optimizer=OptimizerSpec.model_validate({"name": settings.optimizer, "lr": 1e-4}),
        plan=PlanSpec.model_validate({"planner": settings.planner, "recompute": settings.recompute}),
        checkpoint=CheckpointSpec(at_end=settings.checkpoint),
    )
