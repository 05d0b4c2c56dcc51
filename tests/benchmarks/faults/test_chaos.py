"""What the chaos benchmark makes of recoveries, and of what workers say that they sent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.faults.chaos import Chaos, ChaosSettings, _as, _bytes, _job, _Outcome, _report, coded_copies
from benchmarks.harness.base import override
from farflung.chaos.faults import ChaosReport, Fault, Recovery
from farflung.chaos.kills import BROKER
from farflung.checkpoint import CheckpointStore, Manifest, pack
from farflung.errors import InputError
from farflung.job import to_json
from farflung.messages.submission import Bundle

SETTINGS = ChaosSettings(kills=4, cases=("replicas", "copies"))


def outcome(case: str, *recoveries: tuple[str, str, float], lost: int = 0) -> _Outcome:
    made = tuple(
        Recovery(fault=Fault(after_step=i, victim=who), seconds=seconds, source=source)
        for i, (who, source, seconds) in enumerate(recoveries)
    )
    found = ChaosReport(recoveries=made, lost=lost, repeated=0, replayed=3, pauses=(0.5,))
    return _Outcome(case=case, found=found, differing=[], seconds=9.0)


def test_recoveries_are_told_by_what_the_run_went_on_from() -> None:
    calm = {
        "step_seconds": {"protected": 0.1, "bare": 0.1},
        "step_ratio": 1.02,
        "step_interval": (-0.01, 0.04),
        "bytes_ratio": 1.2,
    }
    first = outcome("replicas", ("worker-0", "memory", 1.0), ("worker-1", "memory", 2.0))
    second = outcome("copies", ("worker-2", "copies", 3.0), (BROKER, "checkpoint", 7.0))
    report = _report(SETTINGS, [first, second], 5.0, calm)
    assert [(row[0], row[1]) for row in report.rows] == [("worker, from memory", 2), ("worker, from copies", 1), ("broker", 1)]
    assert report.figures["recovery_seconds"]["worker, from memory"]["p50"] == 1.5
    assert report.figures["steps_replayed"] == {"replicas": 3, "copies": 3}
    judged = {check.name: check.passed for check in report.checks}
    assert judged["kills survived"] is True
    assert judged["cost of the protection: step time"] is True
    assert "+2.0% (-1.0% to +4.0%)" in [check.measured for check in report.checks]
    assert judged["cost of the protection: bytes on links"] is False
    assert report.passed is False


def test_a_lost_sample_or_a_slow_recovery_is_a_miss() -> None:
    found = outcome("replicas", ("worker-0", "memory", 2.5), lost=4)
    judged = {check.name: check.passed for check in _report(SETTINGS, [found], 5.0, {}).checks}
    assert judged["samples lost or counted twice"] is False
    assert judged["kills survived"] is False
    assert judged["SIGKILL to the next step, a live replica has the stage: median"] is False


def test_bytes_are_read_from_what_workers_say() -> None:
    log = "a\nlink to worker-1: 1.5 MB sent in 2 s, 3 kB received, 1 MB/s while busy\nrun x: link to b: 20 kB sent in 1 s\n"
    assert _bytes(log) == 1_520_000


def test_what_coding_leaves_is_told_from_the_last_two_checkpoints(tmp_path: Path) -> None:
    random, store = np.random.default_rng(0), CheckpointStore(tmp_path / "checkpoints")
    weight = random.normal(size=4096).astype(np.float32)
    for step in (5, 10):
        weight = (weight * np.float32(1.0 + 1e-6)).astype(np.float32)
        tensors = pack({"weight": weight}, {"exp_avg/weight": random.normal(size=4096).astype(np.float32)})
        shard = store.write_shard(step, "a", tensors)
        store.write_manifest(Manifest(step=step, job=to_json(_job(SETTINGS, 20)), graph_hash="ab" * 32, shards=(shard,)))
    found = coded_copies(tmp_path)
    assert (found["steps_between"], found["bytes"]) == (5, 2 * 4 * 4096)
    assert found["ratio_by_kind"]["parameters"] < 0.5 < found["ratio_by_kind"]["exp_avg"] < 1.0
    assert found["ratio"] < found["ratio_alone"] < 1.0


def test_cases_are_the_same_job_under_other_settings() -> None:
    job = _job(SETTINGS, 20)
    bundle = Bundle(run="r", job=job, graphs={})
    other = _as(bundle, plan={"planner": "equal_compute", "replicas": 2}, copies=0, copy_every=None)
    assert (other.job.plan.replicas, other.job.copies, other.job.copy_every) == (2, 0, None)
    assert (other.job.seed, other.job.steps, other.job.optimizer) == (job.seed, 20, job.optimizer)
    assert other.run != bundle.run


def test_unknown_cases_are_named_before_anything_starts() -> None:
    settings = override(SETTINGS, ["cases=copies,prayer"])
    with pytest.raises(InputError, match="unknown case 'prayer': known are replicas, copies, checkpoint"):
        Chaos().run(settings, print)
