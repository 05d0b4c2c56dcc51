"""One run on workers with two releases of PyTorch and with JAX, each in an environment of its own (``make check-engines``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness.models import Family, family
from benchmarks.training.environments import workers_of
from farflung import train
from farflung.engines.base import Array
from farflung.job.spec import OptimizerSpec
from farflung.testing.reference import PlainResult, PlainSettings, plain_loop
from tests.support.commands.command_processes import Program
from tests.support.engines.engine_closeness import worst_difference

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

ADAMW = OptimizerSpec(name="adamw", lr=1e-3)
#: Moves weights by so much that they are gradients, and what they were is rounding.
RATE = 2.0**20
#: Two releases of PyTorch, one element of a gradient against the largest; and PyTorch and JAX.
RELEASES, MIXED = 2e-6, 2e-5

#: A library whose result is wrong in the third digit.
DEFECT = """
import torch

def gelu(x, approximate="none"):
    return 1.002 * torch.special.ndtr(x) * x

LIBRARY = torch.library.Library("aten", "IMPL")
LIBRARY.impl("gelu", gelu, "CPU")
"""


@pytest.fixture(scope="module")
def workers() -> Mapping[str, tuple[str, str]]:
    """Engine and interpreter by name."""
    found = workers_of(os.environ.get("FARFLUNG_ENVIRONMENTS", "torch,jax").split(","))
    assert len(found) >= 3, "FARFLUNG_ENVIRONMENTS names the interpreters: make check-engines sets it"
    return found


@contextmanager
def cluster(place: Path, workers: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, dict[str, Program]]]:
    """A broker and workers as processes: the ticket to submit, and the programs."""
    with ExitStack() as undo:
        programs: dict[str, Program] = {}

        def start(name: str, *words: str, python: str) -> Program:
            programs[name] = Program(place, name, *words, python=python)
            undo.callback(lambda: (programs[name].process.terminate(), programs[name].ends()))
            return programs[name]

        broker = start("broker", "broker", "--listen", "127.0.0.1:0", "--home", str(place / "home"), python=sys.executable)
        ticket, submit = broker.until(r"farflung join (\S+)")[1], broker.until(r"--ticket (\S+)")[1]
        for name, (engine, python) in workers.items():
            start(name, "join", ticket, "--listen", "127.0.0.1:0", "--name", name, "--engine", engine, python=python)
        yield submit, programs


def plainly(model: Family, optimizer: OptimizerSpec, steps: int) -> PlainResult:
    return plain_loop(model.make(), model.batch, steps=steps, micro_batches=2, settings=PlainSettings(optimizer=optimizer))


def gradients(model: Family, ticket: str, devices: set[str]) -> dict[str, Array]:
    """What one step of SGD moves, over its rate."""
    before = {name: parameter.detach().numpy().copy() for name, parameter in model.make().named_parameters()}
    found = train(model.make(), model.batch, steps=1, accumulate=2, optimizer="sgd", lr=RATE, ticket=ticket)
    assert set(found.plan.devices) == devices
    after = found.state_dict()
    return {name: (array.astype(np.float64) - after[name]) / RATE for name, array in before.items()}


def test_releases_of_pytorch_compute_the_same_gradients(tmp_path: Path, workers: Mapping[str, tuple[str, str]]) -> None:
    releases = {name: place for name, place in workers.items() if place[0] == "torch"}
    model = family("gpt2", quick=True)
    with cluster(tmp_path, releases) as (ticket, programs):
        for name in releases:
            programs[name].until("joined the broker at")
        versions = {programs[name].until(r"engine: (torch \S+)")[1] for name in releases}
        found = gradients(model, ticket, set(releases))
    assert len(versions) == len(releases)
    assert worst_difference(found, plainly(model, OptimizerSpec(), 1).gradients) < RELEASES


def test_releases_of_pytorch_and_jax_train_one_model(tmp_path: Path, workers: Mapping[str, tuple[str, str]]) -> None:
    model = family("llama", quick=True)
    with cluster(tmp_path, workers) as (ticket, programs):
        for name in workers:
            programs[name].until("joined the broker at")
        found = gradients(model, ticket, set(workers))
        trained = train(model.make(), model.batch, steps=5, accumulate=2, optimizer=ADAMW, ticket=ticket)
    assert worst_difference(found, plainly(model, OptimizerSpec(), 1).gradients) < MIXED
    assert trained.losses == pytest.approx(plainly(model, ADAMW, 5).losses, rel=2e-4)


def test_a_worker_with_a_defective_library_is_refused_by_name(
    tmp_path: Path, workers: Mapping[str, tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(DEFECT)
    name, place = next((name, place) for name, place in workers.items() if place[0] == "torch" and name != "torch-0")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with monkeypatch.context() as patch, cluster(tmp_path, {}) as (_, programs):
        ticket = programs["broker"].until(r"farflung join (\S+)")[1]
        patch.setenv("PYTHONPATH", path)
        where = ("--listen", "127.0.0.1:0", "--name", name)
        odd = Program(tmp_path, name, "join", ticket, *where, python=place[1])
        said = odd.ends_cleanly(2)
    assert f"worker '{name}' is refused: the gradients that its engine (torch " in said
    assert "install the engine again, or use another --engine or --device" in said
