"""States on a disk: the bits of states in memory, at most three parameters' states in memory, and errors of the disk."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from farflung.engines import offloaded_states
from farflung.engines.base import Array
from farflung.engines.host.optimizer import NamedOptimizer, OffloadedOptimizer
from farflung.engines.offloaded_states import OffloadedStates
from farflung.engines.state_file import StateFile
from farflung.errors import CheckpointError, TrainingError
from farflung.job.spec import OptimizerSpec

SPEC = OptimizerSpec(name="adamw", lr=1e-2)
SHAPES = {"wide": (40, 30), "norm": (3,), "tall": (70, 20)}
RATES = (1e-2,)


@pytest.fixture(autouse=True)
def _small_arrays_go_to_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloaded_states, "_LEAST", 100)


def parameters() -> dict[str, Array]:
    rng = np.random.default_rng(1)
    found: dict[str, Array] = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    found["tall"] = np.asfortranarray(found["tall"])
    return found


def gradients(step: int) -> dict[str, Array]:
    rng = np.random.default_rng(100 + step)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def offloaded(folder: Path, values: dict[str, Array]) -> OffloadedOptimizer:
    return OffloadedOptimizer(StateFile.create(folder, 1 << 20), SPEC, values)


def equal(left: Mapping[str, Array], right: Mapping[str, Array]) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[key], right[key]) for key in left)


def test_the_bits_are_those_of_states_in_memory(tmp_path: Path) -> None:
    here, there = parameters(), parameters()
    memory, disk = NamedOptimizer(SPEC, here), offloaded(tmp_path, there)
    for step in range(4):
        names = ["wide", "norm", "tall"] if step != 2 else ["tall"]  # a part of the parameters, too
        given = {name: gradients(step)[name] for name in names}
        memory.step(given, RATES)
        disk.step(given, RATES)
    assert equal(here, there)
    assert equal(memory.export(), disk.export())
    assert disk.export({"norm"}).keys() == {"step/norm", "exp_avg/norm", "exp_avg_sq/norm"}


def test_states_are_loaded_as_a_whole_or_in_parts(tmp_path: Path) -> None:
    first = offloaded(tmp_path, parameters())
    first.step(gradients(0), RATES)
    states, values = first.export(), parameters()
    whole, parts = offloaded(tmp_path, values), offloaded(tmp_path, values)
    whole.load(states)
    for number, name in enumerate(SHAPES):
        parts.load({key: array for key, array in states.items() if key.endswith(f"/{name}")}, more=number > 0)
    assert equal(whole.export(), states)
    assert equal(parts.export(), states)
    whole.load({})
    assert whole.export() == {}


@pytest.mark.parametrize("more", [False, True])
def test_space_in_the_file_is_used_again(tmp_path: Path, *, more: bool) -> None:
    """Also after the states are gone, as a run goes back to its begin, or to a checkpoint in several messages."""
    values, pages = parameters(), 2 * (2 + 2)  # of 4096 bytes; those of the norm are in memory
    optimizer = OffloadedOptimizer(StateFile.create(tmp_path, pages * 4096), SPEC, values)
    for step in range(3):
        optimizer.step(gradients(step), RATES)
        states = optimizer.export()
        optimizer.load({})
        assert optimizer.export() == {}
        if more:
            for name in SHAPES:
                optimizer.load({key: array for key, array in states.items() if key.endswith(name)}, more=name != "wide")
            assert equal(optimizer.export(), states)


def test_states_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    optimizer = offloaded(tmp_path, parameters())
    with pytest.raises(CheckpointError, match="'exp_avg/other' belongs to no trained parameter"):
        optimizer.load({"exp_avg/other": np.zeros(3)})
    with pytest.raises(CheckpointError, match=r"'exp_avg/norm' has shape \(4,\), its parameter \(3,\)"):
        optimizer.load({"exp_avg/norm": np.zeros(4)})


class Counted:
    """An optimizer whose state is one array; it counts those that are in memory."""

    def __init__(self, alive: list[int]) -> None:
        self._alive, self._states = alive, dict[str, Array]()

    def load(self, states: Mapping[str, Array]) -> None:
        self._states = {key: self._counted(array.copy()) for key, array in states.items()}

    def step(self, name: str) -> None:
        self._states.setdefault(f"m/{name}", self._counted(np.zeros(1000)))
        assert self._alive[0] <= 2, "the state that is updated, and the one that is written"

    def export(self, *, copy: bool = True) -> dict[str, Array]:
        return dict(self._states)

    def _counted(self, array: Array) -> Array:
        self._alive[0] += 1
        weakref.finalize(array, self._gone)
        return array

    def _gone(self) -> None:
        self._alive[0] -= 1


def test_few_states_are_in_memory_at_once(tmp_path: Path) -> None:
    alive, names = [0], [f"p{index}" for index in range(8)]
    optimizers = {name: Counted(alive) for name in names}
    states = OffloadedStates(StateFile.create(tmp_path, 1 << 20), optimizers)
    for _ in range(2):
        states.update(names, lambda name: optimizers[name].step(name))
        assert alive == [0], "none between updates"


@pytest.mark.parametrize("call", ["write", "read"])
def test_an_error_of_the_disk_ends_the_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    optimizer = offloaded(tmp_path, parameters())
    optimizer.step(gradients(0), RATES)

    def fail(*_: object) -> None:
        raise TrainingError("no disk")

    monkeypatch.setattr(StateFile, call, fail)
    with pytest.raises(TrainingError, match="no disk"):
        optimizer.step(gradients(1), RATES)
