"""Workers with PyTorch and with JAX train one model together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.engines import get_engine
from tests.support.commands.command_processes import Program
from tests.support.engines.engine_closeness import worst_difference
from tests.support.runs.helped_runs import JOB as HELPED
from tests.support.runs.helped_runs import Scene
from tests.support.runs.loopback import Finished, Loopback, plainly, states_of, text_folder, text_job

pytest.importorskip("jax")

DROPOUT = {"recipe": "gpt", "args": {"vocab": 256, "sequence": 16, "layers": 2, "width": 16, "heads": 2, "dropout": 0.1}}
#: Weights after a few steps of AdamW, which divides by the size of each gradient, rounding included.
CLOSE = 2e-3


def engines(home: Path, names: Mapping[str, str]) -> Loopback:
    """A broker with a worker for each name, and the engine of each."""
    text_folder(home)
    cluster = Loopback(home, 0)
    for name, engine in names.items():
        cluster.add(name, engine=engine)
    return cluster


def check(found: Finished, losses: list[float], weights: Mapping[str, Any]) -> None:
    assert found.result.status == "finished", found.result.cause
    assert found.losses == pytest.approx(losses, rel=2e-4)
    held = states_of(found)
    assert worst_difference(held, {name: weights[name] for name in held}) < CLOSE


def test_a_pipeline_writes_the_checkpoint_of_one_engine_and_is_resumed_by_it(tmp_path: Path) -> None:
    settings = {"checkpoint": {"every": 2}, "evaluate": {"every": 2, "batches": 1}}
    job = text_job(steps=4, micro_batch_sizes=[2, 2], model=DROPOUT, **settings)
    with engines(tmp_path, {"a": "torch", "b": "jax"}) as cluster:
        mixed = cluster.run(job)
        assert set(mixed.devices) == {"a", "b"}
        kinds = [member["capability"]["engine"] for member in cluster.client.status()["members"] if "capability" in member]
        assert not kinds or {kind.split()[0] for kind in kinds} == {"torch", "jax"}
    module, plain = plainly(job, tmp_path)
    check(mixed, list(plain.losses), {name: tensor.numpy() for name, tensor in module.state_dict().items()})
    assert len(mixed.evaluations) == 2
    (tmp_path / "alone").mkdir()
    with engines(tmp_path / "alone", {"a": "torch"}) as cluster:
        alone = cluster.run(job)
    theirs, ours = alone.tensors(), mixed.tensors()
    assert {name: (array.dtype, array.shape) for name, array in ours.items()} == {
        name: (array.dtype, array.shape) for name, array in theirs.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_replicas_of_one_stage(tmp_path: Path, engine: str) -> None:
    job = text_job(steps=3, micro_batch_sizes=[2, 2, 2, 2], model=DROPOUT, plan={"replicas": 2})
    with engines(tmp_path, {"a": "jax", "b": engine}) as cluster:
        found = cluster.run(job)
    module, plain = plainly(job, tmp_path)
    check(found, list(plain.losses), {name: tensor.numpy() for name, tensor in module.state_dict().items()})


@pytest.mark.slow
@pytest.mark.parametrize("servers", ["torch", "jax"])
def test_a_helper_with_another_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: str) -> None:
    """Equal speeds, so that each server gets one of the helpers."""
    from farflung.engines.jax.engine import JaxEngine

    monkeypatch.setattr(JaxEngine, "measure", lambda self, device, peak=None: get_engine("torch").measure(device, peak))
    text_folder(tmp_path)
    scene = Scene(monkeypatch)
    helper = "jax" if servers == "torch" else "torch"
    with Loopback(tmp_path, 0) as cluster:
        for name in "ab":
            cluster.add(name, engine=servers)
        for name in "uv":
            cluster.add(name, engine=helper, reliable=False)
        from farflung.telemetry import injecting

        with injecting(scene):
            found = cluster.run(HELPED.model_copy(update={"workers": 2}))
    module, plain = plainly(HELPED, tmp_path)
    check(found, list(plain.losses), {name: tensor.numpy() for name, tensor in module.state_dict().items()})
    assert any(name == "helper.computed" or name.startswith("helper.") for name, _ in scene.seen)


def test_a_worker_without_pytorch_joins_by_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job computes in a process of its own, as every worker's does."""
    text_folder(tmp_path)
    (tmp_path / "job.toml").write_text(JOB_FILE)
    broker = Program(tmp_path, "broker", "broker", "--no-web", "--listen", "127.0.0.1:0", "--home", str(tmp_path / "home"))
    programs = [broker]
    try:
        ticket = broker.until(r"farflung join (\S+)")[1]
        where = ("join", ticket, "--listen", "127.0.0.1:0")
        programs.append(Program(tmp_path, "first", *where, "--name", "first", "--engine", "torch"))
        missing = tmp_path / "without" / "torch"
        missing.mkdir(parents=True)
        (missing / "__init__.py").write_text("raise ImportError('PyTorch is not installed here')")
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join([str(missing.parent), *filter(None, [os.environ.get("PYTHONPATH")])]))
            programs.append(Program(tmp_path, "second", *where, "--name", "second", "--engine", "jax"))
        for worker in programs[1:]:
            worker.until("joined the broker at")
        assert "engine: jax" in programs[2].text
        submit = Program(tmp_path, "submit", "submit", "job.toml", "--home", str(tmp_path / "home"))
        programs.append(submit)
        said = submit.ends_cleanly(0)
        assert "finished after 3 steps" in said
        assert "on first, second" in said or "on second, first" in said
    finally:
        for program in reversed(programs):
            program.process.terminate()
            program.ends()


JOB_FILE = """
name = "mixed"
seed = 3
steps = 3
micro_batch_sizes = [2, 2]
workers = 2
model = { recipe = "gpt", args = { vocab = 256, sequence = 16, layers = 2, width = 16, heads = 2, dropout = 0.1 } }
data = { kind = "text", path = "corpus", tokenizer = "bytes", sequence = 16 }
optimizer = { name = "adamw", lr = 1e-2, clip_norm = 1.0 }
plan = { planner = "equal_compute" }
"""


def test_weights_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    """A worker with JAX alone: no PyTorch worker evens anything out."""
    job = text_job(steps=3, micro_batch_sizes=[2, 2], model=DROPOUT, optimizer={"name": "adamw", "lr": 1e-3})
    with engines(tmp_path, {"a": "jax"}) as cluster:
        found = cluster.run(job)
    module, plain = plainly(job, tmp_path)
    check(found, list(plain.losses), {name: tensor.numpy() for name, tensor in module.state_dict().items()})
    assert all(np.isfinite(array).all() for array in states_of(found).values())
