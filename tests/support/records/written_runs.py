"""Run folders written by hand: attempts, steps, recoveries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from farflung.cluster import Topology
from farflung.job import JobSpec
from farflung.job import to_json as job_to_json
from farflung.plan import Plan
from farflung.telemetry import AttemptRecord, RecoveryRecord, RunFolder, RunResult, StepRecord
from tests.support.steps.small_runs import small_graph


@dataclass(frozen=True, kw_only=True)
class WrittenAttempt:
    """An attempt from ``first`` on with so many ``steps``, each of one second. ``skipped``: those of them without effect."""

    plan: Plan
    topology: Topology
    first: int
    steps: int
    pause: float = 0.0
    skipped: frozenset[int] = frozenset()
    helped: Mapping[tuple[int, str], tuple[int, float]] = field(default_factory=dict)


def write_run(place: Path, job: JobSpec, attempts: Sequence[WrittenAttempt], *, told: bool = True) -> RunFolder:
    """Write a run. ``told``: with ``attempts.jsonl``. Each step sends 100 bytes per pair of stages."""
    folder = RunFolder(place)
    place.mkdir(parents=True)
    folder.job.write_text(job_to_json(job))
    folder.graph.write_text(small_graph().to_json())
    folder.plan.write_text(attempts[-1].plan.to_json())
    folder.topology.write_text(attempts[-1].topology.to_json())
    folder.metrics.touch()
    elapsed = 0.0
    for number, attempt in enumerate(attempts, start=1):
        elapsed += attempt.pause
        if told:
            folder.append(
                AttemptRecord(
                    number=number,
                    step=attempt.first,
                    elapsed=elapsed,
                    plan=json.loads(attempt.plan.to_json()),
                    topology=json.loads(attempt.topology.to_json()),
                )
            )
        if number > 1:
            folder.append(
                RecoveryRecord(
                    step=attempt.first, attempt=number, replayed=0, pause=attempt.pause, elapsed=elapsed, cause=f"loss {number}"
                )
            )
        for step in range(attempt.first, attempt.first + attempt.steps):
            elapsed += 1.0
            stages = range(len(attempt.plan.stages))
            folder.append(
                StepRecord(
                    step=step,
                    loss=1.0,
                    seconds=1.0,
                    elapsed=elapsed,
                    samples=sum(attempt.plan.micro_batch_sizes),
                    link_bytes={(a, b): 100 for a in stages for b in stages if abs(a - b) == 1},
                    busy_seconds=dict.fromkeys(stages, 0.5),
                    skipped=step in attempt.skipped,
                    helped=attempt.helped,
                )
            )
    folder.result.write_text(RunResult(status="finished", steps=1, seconds=elapsed).to_json())
    return folder
