"""Job files whose links remember samples, by a broker and workers over real connections."""

from __future__ import annotations

from pathlib import Path

import pytest
from loopback import Finished, Loopback, same, text_job
from test_recovery import at, cut

from farflung.job import JobSpec
from farflung.step.sample_cache import SampleMemory
from farflung.telemetry import injecting

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
    monkeypatch.setattr(SampleMemory, "load", lambda self, slots: None)
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
