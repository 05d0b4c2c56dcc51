"""SIGKILL of a worker's process whose links remember samples: what comes out is what the documentation says of that memory.

A run that goes on from a checkpoint has it again, so nothing differs from a calm run; one that goes on from copies begins with
empty tables at both ends, as a run does that is resumed from the same states with nothing remembered.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loopback import Finished, Loopback, captured
from test_killed_processes import Patient
from test_remembered_runs import home as home  # noqa: PLC0414 - a fixture
from test_remembered_runs import job

from farflung.chaos.faults import Fault
from farflung.chaos.kills import differing_tensors, play
from farflung.job import JobSpec
from farflung.step.sample_cache import SampleMemory
from farflung.telemetry import RecoveryRecord, RunFolder

LONG = 1_000_000


def calm(home: Path, spec: JobSpec, folder: str) -> Finished:
    with Loopback(home, 2, folder=folder) as cluster:
        finished = cluster.run(spec)
    assert finished.result.status == "finished", finished.result.cause
    return finished


def cut(root: Path) -> list[tuple[int, int]]:
    stages = json.loads(RunFolder(root).plan.read_text(encoding="utf-8"))["stages"]
    return [(stage["start"], stage["stop"]) for stage in stages]


def killed(home: Path, tmp_path: Path, spec: JobSpec) -> tuple[Path, int, RecoveryRecord]:
    """A run whose worker b is killed, and started again: its folder, its steps, and the record of the recovery."""
    told: list[str] = []
    with Patient(tmp_path / "wild", ["a", "b"], data=home) as wild:
        root, _, recoveries = play(wild, captured(spec, home), (Fault(after_step=12, victim="b"),), told.append, stop=True)
    assert len(recoveries) == 1, told
    result = RunFolder(root).read_result()
    assert result is not None
    [record] = [record for record in RunFolder(root).records() if isinstance(record, RecoveryRecord)]
    assert 0 < record.step < result.steps
    return root, result.steps, record


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_that_goes_on_from_a_checkpoint_has_what_was_remembered(home: Path, tmp_path: Path) -> None:
    spec = job(steps=LONG, checkpoint={"every": 5}, copies=0)
    root, steps, record = killed(home, tmp_path, spec)
    assert record.source == "checkpoint"
    truth = calm(home, spec.model_copy(update={"steps": steps}), str(tmp_path / "calm"))
    assert cut(truth.folder) == cut(root)
    assert differing_tensors(truth.folder, root) == []


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_that_goes_on_from_copies_begins_with_nothing_remembered(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = job(steps=LONG, checkpoint={"every": LONG}, copies=1, copy_every=4)
    root, steps, record = killed(home, tmp_path, spec)
    assert record.source == "copies"
    longer = job(steps=record.step + 4, checkpoint={"every": record.step, "keep": 9}, copies=0)  # samples must come again
    before = calm(home, longer, str(tmp_path / "calm"))
    resume = f"{before.folder}/checkpoints/step-{record.step:010d}"
    after = job(steps=steps, checkpoint={"every": LONG, "resume": resume}, copies=0)
    remembering = calm(home, after, str(tmp_path / "calm"))
    monkeypatch.setattr(SampleMemory, "load", lambda self, slots: None)
    forgetful = calm(home, after, str(tmp_path / "calm"))
    assert cut(forgetful.folder) == cut(root)
    assert differing_tensors(forgetful.folder, root) == []
    assert differing_tensors(remembering.folder, root) != []
