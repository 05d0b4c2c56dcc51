"""``sync-memory``: what partial synchronization takes of a worker's memory beyond training alone, in percent of the parameters.

Real processes over TLS on this machine. One worker trains alone; then two replicas train the same model on as many samples each
and average some layers in each step. The difference of their peaks of resident memory is what synchronization takes: windows of
bytes under way, frames, what TLS and threads to the other replica hold.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.clusters import ProbedCluster, bundle_of
from benchmarks.harness.text_model import gpt2_of, made_up_text
from farflung.job.spec import CheckpointSpec, JobSpec, OptimizerSpec, PlanSpec, SyncSpec
from farflung.units import counted

__all__ = ["SyncMemory", "SyncMemorySettings"]

MOST = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncMemorySettings(Settings):
    """GPT-2 by ``layers`` and ``width`` on made-up text, SGD. ``repeats``: of each case, in turns; medians count.

    ``steps``: a whole period, in which every layer is averaged once, and the first step of the next.
    """

    strategy: str = "free_sets"
    sync_every: int = 3
    steps: int = 4
    repeats: int = 3
    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257
    sequence: int = 64
    rows: int = 2


class SyncMemory:
    """Peak of two replicas over the peak of one worker alone."""

    name = "sync-memory"
    summary = "extra memory of partial synchronization on a worker, in percent of the parameters (GPT-2 124 M)"

    def settings(self, quick: bool) -> SyncMemorySettings:
        """Quick: a model of 17 million parameters, once."""
        if quick:
            one = SyncMemorySettings(quick=True, repeats=1, rows=1, sequence=32)
            return replace(one, layers=4, width=512, heads=8, vocabulary=8192)
        return SyncMemorySettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Start processes, train, and read what they took.

        Raises:
            FarflungError: a process ends early, or the system does not tell memory.
        """
        assert isinstance(settings, SyncMemorySettings)
        peaks: dict[int, list[int]] = {1: [], 2: []}
        nbytes = 0
        for number in range(settings.repeats):
            for members in peaks:
                say(f"run {number + 1} with {counted(members, 'worker')}")
                with tempfile.TemporaryDirectory(prefix="farflung-bench-") as folder:
                    found, nbytes = _peaks(Path(folder), _job(Path(folder), settings, members), members)
                peaks[members] += found
        alone, together = peaks[1], peaks[2]
        extra = 100.0 * (median(together) - median(alone)) / nbytes
        figures: dict[str, Any] = {"parameters": nbytes, "alone": alone, "together": together, "extra_percent": extra}
        check = Check(
            name="extra memory of partial synchronization",
            target=f"under {MOST:g} % of the parameters",
            measured=f"{extra:.2f} %",
            passed=None if settings.quick else extra < MOST,
            note="what a connection takes anyway is much of a small model" if settings.quick else "",
        )
        rows = [
            ("alone", median(alone) / 1e6, nbytes / 1e6, 0.0),
            (settings.strategy, median(together) / 1e6, nbytes / 1e6, extra),
        ]
        return Report(figures=figures, columns=("case", "peak MB", "parameters MB", "extra %"), rows=rows, checks=(check,))


def _peaks(folder: Path, job: JobSpec, members: int) -> tuple[Sequence[int], int]:
    """Peak minus what imports take, of each worker, and the bytes of the parameters."""
    bundle = bundle_of(job, base=folder)
    names = [f"worker-{index}" for index in range(members)]
    cluster = ProbedCluster(folder / "cluster", names, data=folder)
    with cluster:
        cluster.run(bundle)
    found = [json.loads(cluster.probe_file(name).read_text(encoding="utf-8")) for name in names]
    return [probe["peak"] - probe["after_imports"] for probe in found], sum(s.spec.nbytes for s in bundle.graph.parameters)


def _job(folder: Path, settings: SyncMemorySettings, members: int) -> JobSpec:
    sync = SyncSpec(strategy=settings.strategy, settings={"sync_every": settings.sync_every}) if members > 1 else SyncSpec()
    return JobSpec(
        name="sync-memory",
        seed=settings.seed,
        steps=settings.steps,
        micro_batch_sizes=(settings.rows,) * members,
        threads=settings.threads,
        model=gpt2_of(settings),
        data=made_up_text(folder, settings.sequence),
        optimizer=OptimizerSpec(name="sgd", lr=1e-3),
        plan=PlanSpec(planner="equal_compute", recompute="never", replicas=members),
        sync=sync,
        checkpoint=CheckpointSpec(at_end=False),
    )
