"""The ledger of a real run in which a worker dies: every sample counts once, and the dead worker keeps its share."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.ledger import ledger_of
from farflung.telemetry import RunFolder, StepRecord, injecting
from tests.support.runs.loopback import Loopback, text_folder, text_job
from tests.support.runs.worker_deaths import STEPS, at, vanish


@pytest.mark.parametrize("replicas", [1, 2])
def test_contributions_survive_a_death(tmp_path: Path, replicas: int) -> None:
    text_folder(tmp_path)
    job = text_job(steps=STEPS, copies=0, checkpoint={"every": 3}, plan={"planner": "equal_compute", "replicas": replicas})
    with (
        Loopback(tmp_path, 2 + replicas) as cluster,
        injecting(at("worker.before_backward", 7, "b", lambda: vanish(cluster, "b"))),
    ):
        found = cluster.run(job, anybody=True)
    folder = RunFolder(found.folder)
    assert len(folder.read_attempts()) == 2
    ledger = ledger_of(folder)
    assert (ledger.steps, ledger.samples) == (STEPS, found.reader().manifest.ledger["samples"])
    entries = {entry.machine: entry for entry in ledger.entries}
    assert (entries["b"].losses, entries["a"].losses) == (1, 0)
    assert 0 < entries["b"].samples < ledger.samples
    steps = [record for record in folder.records() if isinstance(record, StepRecord)]
    assert sum(entry.sent for entry in ledger.entries) == pytest.approx(sum(record.total_bytes for record in steps))
    assert ledger.wasted == sum(record.samples for record in steps) - ledger.samples
    for attempt in {share.attempt for share in ledger.stages}:
        samples = [share for share in ledger.stages if share.attempt == attempt]
        stages = {share.stage: 0.0 for share in samples}
        for share in samples:
            stages[share.stage] += share.samples
        assert len({round(value, 6) for value in stages.values()}) == 1
