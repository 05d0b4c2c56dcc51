"""Where a run begins: initializers, a file at the submitter, a file on every worker; strict or not; frozen groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from farflung.checkpoint import export_file
from farflung.errors import CheckpointError
from tests.support.runs.loopback import Loopback, plainly, same, states_of, text_job


def weights_file(home: Path, *, without: str = "") -> Path:
    """Weights for the tiny GPT under the names of another program."""
    random = np.random.default_rng(0)
    module, _ = plainly(text_job(steps=1), home)
    found = {
        f"net.{name}": random.normal(scale=0.05, size=value.shape).astype(np.float32) for name, value in module.named_parameters()
    }
    path = home / "weights.safetensors"
    safetensors.numpy.save_file({name: value for name, value in found.items() if not without or without not in name}, path)
    return path


def given(path: Path) -> dict[str, np.ndarray]:
    return {name.removeprefix("net."): value for name, value in safetensors.numpy.load_file(path).items()}


def test_initializers_equal_a_plain_loop(three: Loopback) -> None:
    job = text_job(steps=2)
    finished = three.run(job)
    _, truth = plainly(job, three.home)
    assert finished.losses == [pytest.approx(loss, rel=1e-12) for loss in truth.losses]
    assert same(truth.states, states_of(finished)) == []


@pytest.mark.parametrize("where", ["submitter", "workers"])
def test_a_file_is_where_training_begins(three: Loopback, where: str) -> None:
    path = weights_file(three.home)
    source = {"source": "file", "path": str(path) if where == "submitter" else path.name, "home": where}
    job = text_job(steps=2, weights=source, checkpoint={"every": 1})
    finished = three.run(job)
    assert finished.result.status == "finished", finished.result.cause
    _, truth = plainly(job, three.home, given(path))
    assert same(truth.states, states_of(finished)) == []


def test_what_a_file_lacks(three: Loopback) -> None:
    path = weights_file(three.home, without="norm.bias")
    strict = text_job(steps=2, weights={"source": "file", "path": str(path)})
    with pytest.raises(CheckpointError, match=r"lack 1 of \d+ states, e\.g\. 'norm.bias'.*weights.strict = false"):
        three.run(strict)
    at_workers = text_job(steps=2, weights={"source": "file", "path": path.name, "home": "workers"})
    result = three.run(at_workers).result
    assert result.status == "failed"
    assert "lack 1 of" in result.cause
    for where in ("submitter", "workers"):
        loose = text_job(steps=2, weights={"source": "file", "path": str(path), "home": where, "strict": False})
        finished = three.run(loose)
        assert finished.result.status == "finished", finished.result.cause
        _, truth = plainly(loose, three.home, given(path))  # what is missing there is initialized
        assert same(truth.states, states_of(finished)) == []


def test_another_models_file_is_refused_even_if_not_strict(two: Loopback) -> None:
    path = two.home / "other.safetensors"
    safetensors.numpy.save_file({"conv.weight": np.ones((2, 2), np.float32)}, path)
    job = text_job(weights={"source": "file", "path": str(path), "strict": False})
    with pytest.raises(CheckpointError, match=r"no tensor of the weight files fits any of the model's .* 'conv.weight'"):
        two.run(job)


def test_missing_at_one_worker(two: Loopback) -> None:
    result = two.run(text_job(weights={"source": "file", "path": "nowhere.safetensors", "home": "workers"})).result
    assert result.status == "failed"
    assert "nowhere.safetensors can't be read" in result.cause


def test_a_runs_export_is_where_another_begins(two: Loopback) -> None:
    first = two.run(text_job(steps=1))
    export_file(first.reader(), two.home / "one.safetensors")
    job = text_job(steps=1, seed=9, weights={"source": "file", "path": str(two.home / "one.safetensors")})
    second = two.run(job)
    _, truth = plainly(job, two.home, states_of(first))
    assert same(truth.states, states_of(second)) == []


def test_frozen_groups_stay_and_send_nothing_back(three: Loopback) -> None:
    frozen = {"name": "adamw", "lr": 1e-2, "groups": [{"match": r"^token|^place|^blocks\.", "frozen": True}]}
    model = {"recipe": "gpt", "args": {"sequence": 16, "layers": 3, "width": 16, "heads": 2, "tied": False}}
    finished = three.run(text_job(steps=2, model=model, optimizer=frozen, plan={"planner": "equal_number"}))
    _, truth = plainly(text_job(steps=2, model=model, optimizer=frozen), three.home)
    assert same(truth.states, states_of(finished)) == []
    trained = {name.partition("/")[2] for name in finished.reader().manifest.optimizer}
    assert trained == {"norm.weight", "norm.bias", "head.weight"}
    last = finished.reader().manifest.shards[-1]
    assert "norm.weight" in {tensor.name for tensor in last.tensors}
    sent = {pair for record in finished.steps for pair, count in record.link_bytes.items() if count}
    assert sent == {(0, 1), (1, 2)}
