"""Job files whose links remember samples, by a broker and workers over real connections."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farflung.chaos.faults import Fault
from farflung.chaos.kills import differing_tensors, play
from farflung.job import JobSpec
from farflung.step.transfer.sample_cache import SampleCache
from farflung.telemetry import RecoveryRecord, RunFolder, injecting
from tests.support.commands.patient_cluster import Patient
from tests.support.runs.loopback import Finished, Loopback, captured, same, text_job
from tests.support.runs.worker_deaths import at, cut

STEPS = 10


def job(**changes: object) -> JobSpec:
    """19 samples, the twentieth is for evaluation: each comes at least twice."""
    codec = {"name": "int4", "memory": "both"}
    return text_job(**{"steps": STEPS, "checkpoint": {"every": 6}, "codec": codec, "copies": 0, "workers": 2, **changes})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remembered")
    (folder / "corpus").mkdir()
    (folder / "corpus" / "text.txt").write_text("".join(chr(97 + i * i % 23) for i in range(16 * 20 + 1)))
    return folder


@pytest.fixture(scope="module")
def whole(home: Path) -> Finished:
    with Loopback(home, 2, folder="broker") as cluster:
        finished = cluster.run(job())
    assert finished.result.status == "finished", finished.result.cause
    return finished


def resumed(home: Path, whole: Finished) -> Finished:
    changed = job(checkpoint={"every": 6, "resume": f"{whole.folder}/checkpoints/step-0000000006"})
    with Loopback(home, 2, folder="broker") as cluster:
        return cluster.run(changed)


def test_a_resumed_job_has_what_was_remembered(home: Path, whole: Finished) -> None:
    assert any(name.startswith("samples.") for name in whole.reader().manifest.optimizer)
    assert same(whole.tensors(STEPS), resumed(home, whole).tensors(STEPS)) == []


def test_after_a_loss_both_ends_begin_anew(home: Path, whole: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes out is what comes out of the same states with nothing remembered."""
    with Loopback(home, 2, folder="broker") as cluster, injecting(at("worker.before_backward", 6, "b", lambda: cut(cluster))):
        broken = cluster.run(job())
    assert broken.result.status == "finished", broken.result.cause
    monkeypatch.setattr(SampleCache, "load", lambda self, slots: None)
    forgetful = resumed(home, whole)
    assert same(forgetful.tensors(STEPS), broken.tensors(STEPS)) == []
    assert same(whole.tensors(STEPS), broken.tensors(STEPS)) != []


def test_samples_that_do_not_come_again_are_refused(home: Path) -> None:
    with Loopback(home, 2, folder="broker") as cluster:
        once = cluster.run(job(steps=3))
        assert once.result.status == "failed"
        assert "3 steps of 5 samples take 15, and the data have 19; set it to 'none', or train longer" in str(once.result.cause)
        tight = cluster.run(job(codec={"name": "int4", "memory": "both", "memory_bytes": 2000.0}))
        assert tight.result.status == "failed"
        assert "codec.memory_bytes = 2000 leaves" in str(tight.result.cause)


LONG = 1_000_000


def calm(home: Path, spec: JobSpec, folder: str) -> Finished:
    with Loopback(home, 2, folder=folder) as cluster:
        finished = cluster.run(spec)
    assert finished.result.status == "finished", finished.result.cause
    return finished


def cuts_of(root: Path) -> list[tuple[int, int]]:
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
    assert cuts_of(truth.folder) == cuts_of(root)
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
    monkeypatch.setattr(SampleCache, "load", lambda self, slots: None)
    forgetful = calm(home, after, str(tmp_path / "calm"))
    assert cuts_of(forgetful.folder) == cuts_of(root)
    assert differing_tensors(forgetful.folder, root) == []
    assert differing_tensors(remembering.folder, root) != []
