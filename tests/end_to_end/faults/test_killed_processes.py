"""SIGKILL of a worker's process and of the broker's, in one run: it goes on by itself, to the weights of a calm run."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from farflung.chaos.faults import Fault, judge
from farflung.chaos.kills import BROKER, differing_tensors, play
from farflung.integrations.trackers.csv_file import CsvTracker
from farflung.telemetry import RecoveryRecord, RunFolder
from farflung.tracking import RunFollower
from tests.support.commands.patient_cluster import Patient
from tests.support.runs.loopback import Loopback, captured, text_folder, text_job


@pytest.mark.timeout(300)
def test_nothing_is_lost(tmp_path: Path) -> None:
    """The run is as long as it takes to come through both; then a calm one makes as many steps."""
    text_folder(tmp_path)
    job = text_job(steps=1_000_000, checkpoint={"every": 5}, report={"to": ["csv"]})
    faults = (Fault(after_step=20, victim="b"), Fault(after_step=80, victim=BROKER))
    told: list[str] = []
    with Patient(tmp_path / "wild", ["a", "b"], data=tmp_path) as wild:
        root, _, recoveries = play(wild, captured(job, tmp_path), faults, told.append, stop=True)
        log = wild.log("broker")
    result = RunFolder(root).read_result()
    assert result is not None
    steps = result.steps
    assert steps > 80
    with Loopback(tmp_path, 1, folder="calm") as calm:
        truth = calm.run(job.model_copy(update={"steps": steps}), anybody=True)
    assert [recovery.fault for recovery in recoveries] == list(faults), told
    found = judge(list(RunFolder(root).records()), recoveries, steps=steps, samples=5)
    assert (found.lost, found.repeated) == (0, 0)
    assert differing_tensors(truth.folder, root) == []
    away = [r for r in RunFolder(root).records() if isinstance(r, RecoveryRecord) and "the broker was killed" in r.cause]
    assert [(r.replayed, r.source) for r in away] == [(0, "memory")], "no committed step is made again"
    assert "worker b is gone" in log
    RunFollower(root, "csv", CsvTracker).follow(lambda seconds: True)  # what the end of the broker cut short
    with (root / "trackers/csv/metrics.csv").open(newline="") as file:
        reported = [int(row["step"]) for row in csv.DictReader(file) if row["train/loss"]]
    assert reported == list(range(1, steps + 1)), "each step once, by two processes of two brokers"
    assert re.search(r"the broker was killed and was started again; waiting for \d workers? to resume\n", log)
    assert re.search(r"resumed after .* from the state in memory; no step repeated", log)
