"""Resuming: bit for bit as if the run had never ended, under another partition and by other workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.broker.records.run_store import RunStore
from farflung.errors import CheckpointError, InputError
from farflung.job import JobSpec
from farflung.telemetry.records import StepRecord
from tests.support.runs.loopback import Loopback, captured, same, text_job
from tests.support.runs.resumed_runs import continues, rest
from tests.support.runs.watched_runs import watched

SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "clip_norm": 0.5}
ADAMW = {"name": "adamw", "lr": 1e-2, "weight_decay": 0.1, "groups": [{"match": "bias|norm", "weight_decay": 0.0, "lr": 3e-3}]}
COSINE = {"name": "cosine", "warmup": 2, "final": 0.1}
PICTURES = {
    "model": {"recipe": "net.py:make", "args": {}},
    "data": {"kind": "array", "path": "pictures"},
    "micro_batch_sizes": [3, 2],
}
NET = """
import torch
from torch import nn
from tests.support.runs.watched_runs import watched
from tests.support.runs.watched_runs import watched
from torch.nn import functional


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm_1, self.norm_2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, images, labels):
        x = self.norm_1(self.first(images)).relu()
        x = x + self.norm_2(self.second(x)).relu()
        return functional.cross_entropy(self.head(x.mean((2, 3))), labels)


def make():
    return Net()


def example_inputs(batch):
    return torch.zeros(batch, 3, 8, 8), torch.zeros(batch, dtype=torch.int64)
"""


def whole(**changes: object) -> JobSpec:
    """Six steps with a checkpoint in the middle."""
    return text_job(**{"steps": 6, "checkpoint": {"every": 3, "keep": 5}, **changes})


@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_another_partition_and_fewer_workers(home: Path, optimizer: dict[str, object]) -> None:
    job = whole(optimizer=optimizer, schedule=COSINE)
    with Loopback(home, 3) as cluster:
        first = cluster.run(job)
    assert sorted(first.devices) == ["a", "b", "c"]
    assert first.reader().manifest.optimizer
    with Loopback(home, 2) as cluster:  # another broker process would find the same folder
        second = cluster.run(rest(job, f"{first.folder}/checkpoints/step-0000000003"))
        assert sorted(second.devices) == ["a", "b"]
        continues(first, second)
        assert second.reader(3).manifest == first.reader(3).manifest
        ledger = second.reader(6).manifest.ledger
        assert ledger == first.reader(6).manifest.ledger == {"steps": 6, "samples": 30}


def test_batch_norm_statistics_and_one_worker(home: Path) -> None:
    import numpy as np

    (home / "net.py").write_text(NET)
    random = np.random.default_rng(0)
    folder = home / "pictures"
    folder.mkdir()
    np.save(folder / "inputs.npy", random.normal(size=(40, 3, 8, 8)).astype(np.float32))
    np.save(folder / "labels.npy", random.integers(0, 3, 40))
    job = whole(optimizer={**SGD, "nesterov": True}, **PICTURES)
    with Loopback(home, 3) as cluster:
        first = cluster.run(job)
    assert first.result.status == "finished", first.result.cause
    with Loopback(home, 1) as cluster:
        second = cluster.run(rest(job, f"{first.folder}/checkpoints/step-0000000003"))
        continues(first, second)
    assert any("running_mean" in name for name in first.tensors(6))


def test_by_name_after_a_stop(three: Loopback) -> None:
    job = whole(checkpoint={"every": 0})
    truth = three.run(job)

    def stop(run: str, record: StepRecord) -> None:
        if record.step == 1:
            three.client.stop(run)

    first = three.run(job.model_copy(update={"steps": 9}), on_record=stop)
    assert first.result.status == "stopped"
    stopped = first.result.steps
    assert 2 <= stopped <= 5
    assert first.reader().manifest.step == stopped
    assert first.losses[:6] == truth.losses[: len(first.losses)]
    second = three.run(rest(job, first.run, steps=stopped + 2, workers=2))
    assert second.result.status == "finished", second.result.cause
    assert [record.step for record in second.steps] == [stopped, stopped + 1]
    longer = three.run(job.model_copy(update={"steps": stopped + 2}))
    assert longer.losses == [*first.losses, *second.losses]
    assert same(longer.tensors(), second.tensors()) == []


@pytest.mark.parametrize(("replicas", "told"), [(2, True), (3, False)])
def test_who_resumes_with_another_number_of_pipelines_is_told_that_the_strategy_begins_anew(
    replicas: int, told: bool, three: Loopback
) -> None:
    sync = {"strategy": "diloco", "settings": {"sync_every": 2}}
    job = whole(micro_batch_sizes=[2, 2, 1], workers=3, plan={"replicas": 3}, sync=sync, steps=3)
    first = three.run(job)
    assert first.result.status == "finished", first.result.cause
    fewer = job.model_copy(update={"plan": job.plan.model_copy(update={"replicas": replicas})})
    second = three.run(rest(fewer, first.run, planner="equal_compute", workers=replicas, steps=4))
    assert second.result.status == "finished", second.result.cause
    notes = [str(frame.header["text"]) for frame in second.frames if frame.kind == "note"]
    anew = [note for note in notes if "diloco begins anew" in note]
    words = (
        "step 3: diloco begins anew from the first one's states: what replicas hold of their own, and registers, were not kept"
    )
    assert [note.split(" by as many")[0] for note in anew] == ([words] if told else [])


def test_who_resumes_is_told_that_the_checkpoint_is_checked(three: Loopback) -> None:
    first = three.run(text_job(steps=1))
    bundle = captured(rest(text_job(steps=2), first.run, steps=2), three.home)
    said: list[str] = []
    three.client.submit(bundle, said.append)
    assert said == [f"the broker verifies the checkpoint to resume from ({first.run})"]
    assert [frame.kind for frame in watched(three.client, bundle.run)][-1] == "result"
    bundle = captured(rest(text_job(steps=2), "run-nowhere", steps=2), three.home)
    with pytest.raises(CheckpointError, match=r"checkpoint.resume = 'run-nowhere': there is no run of this name at the broker"):
        three.client.submit(bundle, said.append)
    assert len(said) == 1, "there is nothing to check"


def test_what_can_not_be_resumed(three: Loopback) -> None:
    job = whole(steps=2, checkpoint={"every": 0})
    first = three.run(job)
    with pytest.raises(InputError, match=rf"checkpoint.resume = '{first.run}': the checkpoint at .* stands at step 2, and steps"):
        three.run(rest(job, first.run, steps=2))
    other = job.model_copy(update={"seed": 4, "optimizer": job.optimizer.model_copy(update={"lr": 0.5})})
    with pytest.raises(
        CheckpointError, match=r"written by a job with other settings .seed: 3 -> 4, optimizer.lr: 0.01 -> 0.5.: set them back"
    ):
        three.run(rest(other, first.run))
    with pytest.raises(CheckpointError, match=r"belongs to another model"):
        three.run(rest(text_job(model={"recipe": "moe", "args": {"sequence": 16}}), first.run))
    with pytest.raises(CheckpointError, match=r"checkpoint.resume = 'run-nowhere': there is no run of this name at the broker"):
        three.run(rest(job, "run-nowhere"))
    assert three.run(rest(job, first.run, steps=3)).result.status == "finished"


def test_a_folder_on_another_file_system_is_copied(three: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from farflung.broker.records import run_store

    def refuse(*paths: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    job = whole(steps=2, checkpoint={"every": 0})
    first = three.run(job)
    monkeypatch.setattr(run_store.os, "link", refuse)
    second = RunStore(tmp_path / "second")
    bundle, _ = three.submit(job)
    assert second.adopt(first.folder, bundle_of(bundle, 5)).step == 2
    assert second.checkpoints.verify(2) == first.reader().manifest


def bundle_of(bundle: object, steps: int) -> object:
    from dataclasses import replace

    from farflung.messages.submission import Bundle

    assert isinstance(bundle, Bundle)
    return replace(bundle, job=bundle.job.model_copy(update={"steps": steps}))
