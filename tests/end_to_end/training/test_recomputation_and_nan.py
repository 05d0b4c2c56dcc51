"""Over a broker: recomputation where memory is short, and losses that are not numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.job import JobSpec
from farflung.plan.model import Plan
from tests.support.runs.loopback import Finished, Loopback, plainly, same, states_of, text_folder, text_job

NET = """
import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.mix, self.head = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, inputs, labels):
        x = self.norm(self.up(inputs)).tanh()
        return functional.cross_entropy(self.head(x + self.mix(x).tanh()), labels)


def make():
    return Net()


def example_inputs(batch):
    return torch.zeros(batch, 4), torch.zeros(batch, dtype=torch.int64)
"""


def plan_of(finished: Finished) -> Plan:
    return Plan.from_json((finished.folder / "plan.json").read_text())


def test_recomputation_where_memory_is_short(tmp_path: Path) -> None:
    """By the plan's figures 1.4 MB suffice for a stage that recomputes, and not for one that keeps its activations."""
    text_folder(tmp_path)
    model = {"recipe": "gpt", "args": {"sequence": 16, "layers": 4, "width": 16, "heads": 2, "dropout": 0.1}}

    def job(wish: str) -> JobSpec:
        plan = {"planner": "equal_compute", "recompute": wish}
        return text_job(steps=2, micro_batch_sizes=[8, 8, 8, 8], model=model, plan=plan)

    with Loopback(tmp_path, 2, memory={"a": 1.4e6, "b": 1.4e6}) as cluster:
        refused = cluster.run(job("never"))
        assert refused.result.status == "failed"
        assert "lacks" in refused.result.cause
        finished = cluster.run(job("auto"))
        assert finished.result.status == "finished", finished.result.cause
        assert any(stage.recompute for stage in plan_of(finished).stages)
        always = cluster.run(job("always"))
        assert all(stage.recompute for stage in plan_of(always).stages)
    _, truth = plainly(job("auto"), tmp_path)
    assert same(truth.states, states_of(finished)) == []
    assert same(truth.states, states_of(always)) == []


def poisoned(home: Path, policy: str, **changes: Any) -> JobSpec:
    """Ten steps of three samples each over thirty samples, one of which is infinite."""
    (home / "net.py").write_text(NET)
    random = np.random.default_rng(0)
    folder = home / "points"
    folder.mkdir(exist_ok=True)
    inputs = random.normal(size=(30, 4)).astype(np.float32)
    inputs[17] = np.inf
    np.save(folder / "inputs.npy", inputs)
    np.save(folder / "labels.npy", random.integers(0, 3, 30))
    job = text_job(
        steps=10,
        micro_batch_sizes=[3],
        on_nan=policy,
        model={"recipe": "net.py:make"},
        optimizer={"name": "adamw", "lr": 1e-2},
        checkpoint={"every": 2},
        **changes,
    )
    data = text_job(data={"kind": "array", "path": "points", "eval_fraction": 0.0}).data
    return job.model_copy(update={"data": data, "model": job.model.model_copy(update={"args": {}})})  # type: ignore[union-attr]


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_one_bad_sample_costs_one_step(two: Loopback, policy: str) -> None:
    finished = two.run(poisoned(two.home, policy))
    assert finished.result.status == "finished", finished.result.cause
    bad = [record.step for record in finished.steps if record.skipped]
    assert len(bad) == 1
    assert [record.step for record in finished.steps if not np.isfinite(record.loss)] == bad
    states = states_of(finished)
    assert all(np.isfinite(value).all() for value in states.values())
    counts = {name: int(value) for name, value in states.items() if name.endswith("num_batches_tracked")}
    lost = 1 if policy == "skip" else 1 + bad[0] % 2
    assert counts == {"norm.num_batches_tracked": 10 - lost}
    alone = two.run(poisoned(two.home, policy, workers=1, plan={"planner": "equal_number"}))
    assert same(finished.tensors(), alone.tensors()) == []


def test_stop_leaves_the_last_checkpoint_whole(two: Loopback) -> None:
    finished = two.run(poisoned(two.home, "stop"))
    assert finished.result.status == "failed"
    assert "is not a finite number; lower the learning rate" in finished.result.cause
    step = len(finished.steps)
    assert finished.reader().manifest.step == step - step % 2
