"""Workers with optimizer states on a disk: the weights of a run in memory, also after a resume, a loss and a kill."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from farflung.chaos.faults import Fault, judge
from farflung.chaos.kills import differing_tensors, play
from farflung.engines.base import Array
from farflung.engines.state_file import StateFile
from farflung.errors import TrainingError
from farflung.plan import Plan
from farflung.telemetry import RunFolder
from tests.support.commands.patient_cluster import Patient
from tests.support.runs.loopback import Finished, Loopback, captured, same, text_folder, text_job
from tests.support.runs.resumed_runs import continues, rest

STEPS = 6
DISK = 50e6
#: Embeddings and most weights have states of more than 64 kB, which go to the disk; norms and biases stay in memory.
CHANGES: dict[str, Any] = {
    "steps": STEPS,
    "model": {"args": {"vocab": 256, "sequence": 16, "layers": 2, "width": 64, "heads": 2}},
    "optimizer": {"name": "adamw", "lr": 1e-2, "clip_norm": 0.5},
}
ON_DISK: dict[str, Any] = {**CHANGES, "plan": {"offload": "optimizer"}}


def in_memory(home: Path, **changes: Any) -> Finished:
    """What one worker makes of the job with all states in memory."""
    with Loopback(home, 1, folder="memory") as cluster:
        return cluster.run(text_job(**CHANGES | changes), anybody=True)


def offering(home: Path, names: str, isolation: str = "off") -> Loopback:
    text_folder(home)
    cluster = Loopback(home, 0)
    for name in names:
        cluster.add(name, disk=DISK, isolation=isolation)
    return cluster


def offloads(found: Finished) -> set[str]:
    return {stage.offload for stage in Plan.from_json(RunFolder(found.folder).plan.read_text()).stages}


@pytest.mark.parametrize(
    "changes",
    [{}, pytest.param({"plan": {"offload": "optimizer", "replicas": 2}}, id="replicas", marks=pytest.mark.slow)],
)
def test_the_weights_are_those_of_states_in_memory(tmp_path: Path, changes: dict[str, Any]) -> None:
    with offering(tmp_path, "ab") as cluster:
        found = cluster.run(text_job(**ON_DISK | changes))
        assert list((tmp_path / "disk").iterdir()) == []
    truth = in_memory(tmp_path)
    assert found.result.status == "finished", found.result.cause
    assert offloads(found) == {"optimizer"}
    assert found.losses == truth.losses
    assert same(truth.tensors(STEPS), found.tensors(STEPS)) == [], "weights and optimizer states"


def test_a_worker_that_leaves_hands_over_what_is_on_its_disk(tmp_path: Path) -> None:
    with offering(tmp_path, "abc") as cluster:

        def leave(run: str, record: Any) -> None:
            if record.step == 2:
                cluster.workers["a"].announce({"parting": "leave"})

        found = cluster.run(text_job(**ON_DISK | {"workers": 2}), on_record=leave)
    truth = in_memory(tmp_path)
    assert found.result.status == "finished", found.result.cause
    assert same(truth.tensors(STEPS), found.tensors(STEPS)) == []


def test_a_step_that_is_skipped_leaves_the_states(tmp_path: Path) -> None:
    """The loss scale of the first steps overflows: these steps are prepared, and not applied."""
    changes = {"precision": "fp16", "loss_scale": {"initial": 2.0**24, "backoff": 2.0**-8}}
    with offering(tmp_path, "ab") as cluster:
        found = cluster.run(text_job(**ON_DISK | changes))
    truth = in_memory(tmp_path, **changes)
    assert any(step.skipped for step in found.steps)
    assert not all(step.skipped for step in found.steps)
    assert same(truth.tensors(STEPS), found.tensors(STEPS)) == []


@pytest.mark.parametrize("begins", [pytest.param("none", marks=pytest.mark.slow), "optimizer"])
def test_a_checkpoint_resumes_with_states_elsewhere(tmp_path: Path, begins: str) -> None:
    """States that were in memory go on on a disk, and the other way round; workers compute in processes of their own."""
    places = {"none": {"offload": "none"}, "optimizer": {"offload": "optimizer"}}
    ends = "none" if begins == "optimizer" else "optimizer"
    with offering(tmp_path, "ab", isolation="auto") as cluster:
        first = cluster.run(text_job(**CHANGES | {"plan": places[begins], "checkpoint": {"every": 3}}))
        job = text_job(**CHANGES | {"plan": places[ends], "checkpoint": {"every": 3}})
        second = cluster.run(rest(job, f"{first.folder}/checkpoints/step-0000000003"))
        assert list((tmp_path / "disk").iterdir()) == []
    assert (offloads(first), offloads(second)) == ({begins}, {ends})
    continues(first, second)
    truth = in_memory(tmp_path, checkpoint={"every": 3})
    assert first.losses == truth.losses
    assert same(truth.tensors(STEPS), first.tensors(STEPS)) == [], "weights and optimizer states"


def test_a_disk_that_fails_in_an_update_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = StateFile.write, list[int]()

    def write(self: StateFile, offset: int, array: Array) -> None:
        calls.append(offset)
        if len(calls) == 40:
            raise TrainingError("optimizer states can't be written to the disk: Input/output error")
        real(self, offset, array)

    monkeypatch.setattr(StateFile, "write", write)
    with offering(tmp_path, "abc") as cluster:
        found = cluster.run(text_job(**ON_DISK | {"workers": 2}))
    truth = in_memory(tmp_path)
    assert found.result.status == "finished", found.result.cause
    assert len(calls) > 40
    assert same(truth.tensors(STEPS), found.tensors(STEPS)) == []


def test_a_full_disk_ends_the_run_with_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with offering(tmp_path, "a") as cluster:

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("os.posix_fallocate", full)
        found = cluster.run(text_job(**ON_DISK))
    assert found.result.status == "failed"
    assert "the disk has not so much free space; free some, or offer less with --disk" in found.result.cause


class WithDisk(Patient):
    """Whose workers offer disk space."""

    def start_process(self, name: str, arguments: list[str]) -> None:
        offered = ["--disk", "50 MB", "--disk-folder", str(self.folder / "disk")]
        super().start_process(name, [*arguments, *offered] if "join" in arguments and "--disk" not in arguments else arguments)


@pytest.mark.timeout(300)
def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    text_folder(tmp_path)
    job = text_job(**ON_DISK | {"steps": 60, "checkpoint": {"every": 5}})
    faults, told = (Fault(after_step=20, victim="b"),), list[str]()
    with WithDisk(tmp_path / "wild", ["a", "b"], data=tmp_path) as wild:
        root, _, recoveries = play(wild, captured(job, tmp_path), faults, told.append)
        assert list((tmp_path / "wild/disk").iterdir()) == [], "a killed worker leaves no file"
    truth = in_memory(tmp_path, steps=60, checkpoint={"every": 5})
    assert [recovery.fault for recovery in recoveries] == list(faults), told
    found = judge(list(RunFolder(root).records()), recoveries, steps=60, samples=5)
    assert (found.lost, found.repeated) == (0, 0)
    assert differing_tensors(truth.folder, root) == []
