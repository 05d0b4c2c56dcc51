"""Workers that go while the loss scale changes: the run continues with the scale, and its weights are those of a calm run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from farflung.job import JobSpec
from farflung.telemetry import RunFolder, StepRecord, injecting
from tests.support.runs.loopback import Finished, Loopback, same, text_folder, text_job
from tests.support.runs.worker_deaths import STEPS, CopiedStates, at, cut, recoveries_of, vanish, vanish_when_told


def job(**changes: object) -> JobSpec:
    """A first scale that overflows, and one that grows again after two steps: some steps are skipped all through the run.

    One replica: by the speeds that it measures, a planner may plan several, which have each other's states in memory.
    """
    scale, plan = {"initial": 2.0**24, "every": 2}, {"planner": "equal_compute", "replicas": 1}
    rest = {"steps": STEPS, "precision": "fp16", "loss_scale": scale, "plan": plan, "copies": 1, "copy_every": 1}
    return text_job(**rest | changes)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scale")
    text_folder(folder)
    return folder


@pytest.fixture(scope="module")
def truth(place: Path) -> Finished:
    with Loopback(place, 3, folder="undisturbed") as cluster:
        return cluster.run(job())


def test_some_steps_are_skipped(truth: Finished) -> None:
    skipped = [record.step for record in truth.steps if record.skipped]
    assert 0 < len(skipped) < STEPS


@pytest.mark.parametrize(
    ("point", "step", "act", "source"),
    [
        ("worker.before_update", 7, cut, "memory"),
        ("worker.after_update", 6, cut, "memory"),
        ("worker.after_update", 8, cut, "memory"),
        ("worker.before_update", 7, lambda cluster: vanish_when_told(cluster, "b", 7), "copies"),
    ],
    ids=["before-update", "after-update", "after-another-update", "copies"],
)
def test_a_run_goes_on_with_its_scale(
    place: Path,
    tmp_path: Path,
    truth: Finished,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    step: int,
    act: Callable[[Loopback], None],
    source: str,
) -> None:
    copies = CopiedStates(monkeypatch)

    def disturb(cluster: Loopback) -> None:
        copies.wait("b")
        act(cluster)

    with Loopback(place, 3, folder=str(tmp_path)) as cluster:
        with injecting(at(point, step, "b", lambda: disturb(cluster))):
            found = cluster.run(job(), anybody=True)
        assert found.result.status == "finished", found.result.cause
        steps = [record for record in RunFolder(found.folder).committed() if isinstance(record, StepRecord)]
        assert [record.loss for record in steps] == truth.losses  # steps that were made again count once
        assert [record.skipped for record in steps] == [record.skipped for record in truth.steps]
        assert same(truth.tensors(STEPS), found.tensors(STEPS)) == []
        assert found.reader().manifest.ledger == truth.reader().manifest.ledger
        assert [one.source for one in recoveries_of(found)] == [source]


def apart() -> JobSpec:
    """Replicas that train alone, each with a scale of its own."""
    sync = {"strategy": "local_sgd", "settings": {"sync_every": 3}}
    plan = {"planner": "equal_compute", "replicas": 2}
    return job(sync=sync, plan=plan, micro_batch_sizes=[2, 1, 1, 1], checkpoint={"every": 2}, copies=0)


def test_replicas_that_train_alone_go_on_with_their_scales(place: Path, tmp_path: Path) -> None:
    with Loopback(place, 3, folder=str(tmp_path / "undisturbed")) as cluster:
        truth = cluster.run(apart())
    with Loopback(place, 3, folder=str(tmp_path / "disturbed")) as cluster:
        victim = "b"
        with injecting(at("worker.before_update", 7, victim, lambda: vanish(cluster, victim))):
            found = cluster.run(apart(), anybody=True)
    assert found.result.status == "finished", found.result.cause
    assert [one.source for one in recoveries_of(found)] == ["checkpoint"]
    steps = [record for record in RunFolder(found.folder).committed() if isinstance(record, StepRecord)]
    skips = [(record.step, record.samples, record.skipped) for record in truth.steps]
    assert len({samples for _, samples, skipped in skips if not skipped}) > 1 or any(skipped for *_, skipped in skips)
    assert [(record.step, record.samples, record.skipped) for record in steps] == skips
    assert [record.loss for record in steps] == truth.losses
    assert same(truth.tensors(STEPS), found.tensors(STEPS)) == []
    counted = sum(record.samples for record in steps if not record.skipped)
    assert found.reader().manifest.ledger == truth.reader().manifest.ledger == {"steps": STEPS, "samples": counted}
