"""A parameter without a gradient on workers with sockets: helpers, deaths, copies, a resume and exports keep its bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from farflung.checkpoint import export_file
from farflung.job import JobSpec
from farflung.protocol.pool.task_pool import Patience
from farflung.step.hybrid import stage_server
from farflung.telemetry import injecting
from tests.support.runs.helped_runs import CLIPPED, Scene, check, helped
from tests.support.runs.loopback import Finished, Loopback, plainly, same, states_of, text_job
from tests.support.runs.resumed_runs import continues, rest
from tests.support.runs.worker_deaths import at, vanish

MODEL = """
import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.pooler = nn.Embedding(256, 8), nn.Linear(8, 8)
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 256)
        self.watched, self.judge = nn.Linear(8, 8), nn.Parameter(torch.full((256,), 2.0))
        self.register_buffer("spare", torch.ones(3))

    def forward(self, tokens, labels):
        x = self.embed(tokens)
        x = x + self.first(x).tanh() + self.watched(x).detach()
        logits = self.head(x + self.second(x).tanh())
        logits = logits if self.training else logits * self.judge
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def make():
    return Model()


def example_inputs(batch):
    return torch.zeros(batch, 16, dtype=torch.int64), torch.zeros(batch, 16, dtype=torch.int64)
"""
STILL = ("pooler", "watched", "judge", "spare")


def idle_job(**changes: object) -> JobSpec:
    model = {"recipe": "idle.py:make", "args": {}}
    optimizer = {"name": "adamw", "lr": 1e-2, "weight_decay": 0.5}
    return text_job(**{"model": model, "steps": 6, "micro_batch_sizes": [2, 1, 2, 1], "optimizer": optimizer, **changes})


@pytest.fixture
def place(home: Path) -> Path:
    (home / "idle.py").write_text(MODEL)
    return home


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    real, patience = stage_server.TaskPool, Patience(least=1e6, first=1e6)
    monkeypatch.setattr(stage_server, "TaskPool", lambda *args, **kinds: real(*args, **{**kinds, "patience": patience}))
    made = Scene(monkeypatch)
    made.here["b"].set()  # both helpers may go to the first stage
    return made


def equals_plain(home: Path, found: Finished, job: JobSpec) -> None:
    assert found.result.status == "finished", found.result.cause
    module, _ = plainly(job, home)
    held, tensors = states_of(found), {name: value.detach().numpy() for name, value in module.state_dict().items()}
    assert same(held, tensors) == []
    begin, _ = plainly(job.model_copy(update={"steps": 1}), home)
    still = [name for name in held if name.startswith(STILL)]
    assert len(still) == 6
    assert same({n: held[n] for n in still}, {n: v.numpy() for n, v in begin.state_dict().items() if n in still}) == []


OPTIMIZERS = {"plain": {"name": "adamw", "lr": 1e-2}, "delayed": CLIPPED}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_helpers(place: Path, scene: Scene, optimizer: dict[str, object]) -> None:
    job = idle_job(plan={"helpers": True}, optimizer=optimizer)
    with injecting(scene):
        found, _ = helped(place, job)
    check(place, found, job)
    equals_plain(place, found, job)
    assert scene.seen, "somebody has helped"


@pytest.mark.parametrize("copies", [0, 1], ids=["checkpoint", "copies"])
@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_death(place: Path, victim: str, copies: int) -> None:
    job = idle_job(steps=8, checkpoint={"every": 3, "keep": 9}, copies=copies, evaluate={"every": 4, "batches": 2})
    with Loopback(place, 3, folder="whole") as cluster:
        whole = cluster.run(job)
    with Loopback(place, 3) as cluster, injecting(at("worker.before_backward", 5, victim, lambda: vanish(cluster, victim))):
        found = cluster.run(job, anybody=True)
    assert found.result.status == "finished", found.result.cause
    assert same(whole.tensors(8), found.tensors(8)) == []
    assert {record.step: record.loss for record in found.evaluations} == {r.step: r.loss for r in whole.evaluations}
    equals_plain(place, whole, job)


def test_a_resume_under_another_partition(place: Path) -> None:
    job = idle_job(checkpoint={"every": 3, "keep": 5})
    with Loopback(place, 3) as cluster:
        first = cluster.run(job)
    with Loopback(place, 2) as cluster:
        second = cluster.run(rest(job, f"{first.folder}/checkpoints/step-0000000003"))
        continues(first, second)
    equals_plain(place, first, job)


def test_an_export_has_every_name(place: Path) -> None:
    job = idle_job(steps=2)
    with Loopback(place, 2) as cluster:
        found = cluster.run(job)
    export_file(found.reader(), place / "out.safetensors")
    module, _ = plainly(job, place)
    arrays = safetensors.numpy.load_file(place / "out.safetensors")
    assert set(arrays) == set(module.state_dict())
    assert np.array_equal(arrays["pooler.weight"], module.state_dict()["pooler.weight"].numpy())
