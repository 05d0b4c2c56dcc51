"""Delayed updates: bit for bit the loop that applies gradients one step late, whoever helps or dies; also after a resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farflung.errors import CheckpointError, ConnectionLost
from farflung.job import JobSpec
from farflung.protocol.pool.task_pool import Patience
from farflung.step.hybrid import stage_server
from farflung.step.hybrid.slices import AHEAD, HELD, NOW, StageSlices
from farflung.telemetry import RunFolder, StepRecord, injecting
from tests.support.runs.helped_runs import CLIPPED, Scene, check, helped
from tests.support.runs.loopback import Loopback, plainly, same, states_of, text_folder, text_job
from tests.support.runs.resumed_runs import continues, rest
from tests.support.runs.worker_deaths import CopiedStates, at, recoveries_of, vanish


def delayed(**changes: object) -> JobSpec:
    given = {"steps": 6, "micro_batch_sizes": [2, 1, 2, 1], "optimizer": {"delayed": True}, "plan": {"helpers": True}}
    return text_job(**{**given, **changes})


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    real = stage_server.TaskPool
    patience = Patience(least=1e6, first=1e6)
    monkeypatch.setattr(stage_server, "TaskPool", lambda *args, **kinds: real(*args, **{**kinds, "patience": patience}))
    made = Scene(monkeypatch)
    with injecting(made):
        yield made


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str, int]]:
    """Step, when, and number of states of each message of states."""
    told: list[tuple[int, str, int]] = []
    real = StageSlices.states_message

    def noted(self: StageSlices, step: int, names: tuple[str, ...], states: dict[str, object], when: str = NOW) -> object:
        told.append((step, when, len(names)))
        return real(self, step, names, states, when)  # type: ignore[arg-type]

    monkeypatch.setattr(StageSlices, "states_message", noted)
    return told


@pytest.mark.parametrize("optimizer", [{"delayed": True}, CLIPPED], ids=["plain", "clipped"])
def test_gradients_are_applied_one_step_late(
    home: Path, scene: Scene, sent: list[tuple[int, str, int]], optimizer: dict[str, object]
) -> None:
    job = delayed(optimizer=optimizer)
    found, _ = helped(home, job)
    check(home, found, job)
    assert {device for _, device in scene.seen} == {"u", "v"}, "both have helped"
    ahead = {step for step, when, _ in sent if when == AHEAD}
    held = [(step, count) for step, when, count in sent if when == HELD]
    assert {3, 4, 5} <= ahead, "parameters go to helpers while the step before is computed"
    assert {step for step, _ in held} >= {3, 4, 5}, "and are not sent again when it begins"
    assert all(count == 0 for _, count in held)
    exact = job.model_copy(update={"optimizer": job.optimizer.model_copy(update={"delayed": False})})
    module, plain = plainly(exact, home)
    assert found.losses[:2] == list(plain.losses[:1]) + found.losses[1:2], "the first step knows no other parameters"
    assert found.losses[2:] != list(plain.losses[2:])
    assert same(states_of(found), {n: t.detach().numpy() for n, t in module.state_dict().items()})


def test_a_helper_that_fails_costs_its_slices_only(home: Path, scene: Scene) -> None:
    failed: list[str] = []

    def act(name: str, device: str) -> None:
        if name == "helper.before_backward" and len(failed) < 2:
            failed.append(device)
            raise ConnectionLost("its machine is gone")

    scene.act = act  # type: ignore[method-assign]
    job = delayed()
    found, _ = helped(home, job)
    check(home, found, job)
    assert failed, "a helper came so far"


@pytest.mark.parametrize("planner", ["equal_number", "equal_compute"])
def test_goes_on_from_a_checkpoint(home: Path, planner: str) -> None:
    job = delayed(checkpoint={"every": 3, "keep": 5})
    with Loopback(home, 2) as cluster:
        first = cluster.run(job)
        second = cluster.run(rest(job, str(first.folder / "checkpoints" / "step-0000000003"), planner))
    assert any(name.startswith("optimizer/stale/") for name in first.tensors(3))
    module, plain = plainly(job, home)
    assert first.losses == pytest.approx(plain.losses, rel=1e-12), "means of the same losses"
    continues(first, second)
    assert (
        same(states_of(second), {n: t.detach().numpy() for n, t in module.state_dict().items() if n in states_of(second)}) == []
    )


def test_an_exact_run_does_not_go_on_from_a_delayed_one(home: Path) -> None:
    job = delayed(checkpoint={"every": 3, "keep": 5})
    with Loopback(home, 2) as cluster:
        first = cluster.run(job)
        exact = job.model_copy(update={"optimizer": job.optimizer.model_copy(update={"delayed": False})})
        with pytest.raises(CheckpointError, match=r"written by a job with .*optimizer"):
            cluster.run(rest(exact, str(first.folder / "checkpoints" / "step-0000000003")))


@pytest.mark.parametrize(
    ("point", "changes", "source"),
    [
        ("worker.before_backward", {"plan": {"helpers": True, "planner": "equal_compute", "replicas": 2}}, "memory"),
        ("worker.prepared", {"plan": {"helpers": True, "planner": "equal_compute", "replicas": 2}}, "memory"),
        ("worker.before_update", {"copy_every": 2}, "copies"),
    ],
)
def test_a_server_that_dies_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, changes: dict[str, object], source: str
) -> None:
    text_folder(tmp_path)
    copies = CopiedStates(monkeypatch)

    def die() -> None:
        if source == "copies":
            copies.wait("b")
        vanish(cluster, "b")

    job = delayed(steps=10, checkpoint={"every": 0}, **changes)
    workers = 4 if source == "memory" else 3
    with Loopback(tmp_path, workers) as cluster, injecting(at(point, 7, "b", die)):
        found = cluster.run(job, anybody=True)
    assert found.result.status == "finished", found.result.cause
    assert [one.source for one in recoveries_of(found)] == [source]
    module, plain = plainly(job, tmp_path)
    counted = [record for record in RunFolder(found.folder).committed() if isinstance(record, StepRecord)]
    assert [record.loss for record in counted] == pytest.approx(plain.losses, rel=1e-12)
    held = states_of(found)
    assert same(held, {name: tensor.detach().numpy() for name, tensor in module.state_dict().items() if name in held}) == []
