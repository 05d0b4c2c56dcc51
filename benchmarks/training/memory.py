"""``memory``: does each worker stay within the figure that the plan promises, and is the promise not much too large?

With ``adapters``, the job is that of a fine-tuning: chats, LoRA on a frozen base in 4 bits, a folder with weights that the
submitter sends. ``--set adapters=true --set workers=3 --set layers=22 --set width=2048 --set heads=32 --set vocabulary=32000``
is a model of 1.1 B parameters.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.clusters import ProbedCluster, bundle_of
from benchmarks.harness.text_model import gpt2_of, made_up_chats, made_up_text, save_llama
from farflung.api.submission import send_weights
from farflung.chaos.local_cluster import Finished
from farflung.graph.ir import Graph
from farflung.job.spec import CheckpointSpec, JobSpec, ModelSpec, OptimizerSpec, PlanSpec
from farflung.plan import Estimate, estimate
from farflung.telemetry import RunFolder

__all__ = ["Memory", "MemorySettings", "estimate_of", "figures"]

LOW, HIGH = 0.7, 1.0
#: Of a fine-tuning with adapters, at most.
ADAPTED = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings(Settings):
    """GPT-2 by ``layers`` and ``width`` on random text. ``checkpoint``: also write one at the end.

    ``adapters``: instead of GPT-2, a Llama of these sizes with LoRA on a frozen base in 4 bits, on chats.
    """

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
    adapters: bool = False


class Memory:
    """(Peak memory - that after imports) / the plan's figure, for every worker with the process that computes for it."""

    name = "memory"
    summary = "peak memory of each worker against the plan's figure, GPT-2 124 M"

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
        low, high = (0.0, ADAPTED) if settings.adapters else (LOW, HIGH)
        inside = all(low <= ratio <= high for ratio in ratios)
        check = Check(
            name="peak / plan",
            target=f"at most {high} on each worker" if settings.adapters else f"{low} to {high} on each worker",
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
        if settings.adapters:
            say("sending the weights")
            with closing(cluster.client()) as client:
                send_weights(client, bundle)
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
    if settings.adapters:
        save_llama(folder / "model", settings, settings.seed)
        model = ModelSpec(
            recipe="hf",
            args={
                "folder": str(folder / "model"),
                "sequence": settings.sequence,
                "inputs": "input_ids, position_ids",
                "lora_rank": 16,
                "quantize": "nf4",
            },
        )
        data = made_up_chats(folder, folder / "model", settings.sequence)
    else:
        model, data = gpt2_of(settings), made_up_text(folder, settings.sequence)
    return JobSpec(
        name="memory",
        seed=settings.seed,
        steps=settings.steps,
        micro_batch_sizes=(settings.rows,) * settings.micro_batches,
        threads=settings.threads,
        model=model,
        data=data,
        optimizer=OptimizerSpec.model_validate({"name": settings.optimizer, "lr": 1e-4}),
        plan=PlanSpec.model_validate({"planner": settings.planner, "recompute": settings.recompute}),
        checkpoint=CheckpointSpec(at_end=settings.checkpoint),
    )
