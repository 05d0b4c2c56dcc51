"""The budget of memory of a process."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from farflung.errors import MemoryExceeded
from farflung.memory_budget import MemoryBudget

FULL = (
    r"^a frame needs 60 B, and 50 B of the 100 B that this process may use are in use: "
    r"offer more memory \(--memory\)$"
)


def test_what_does_not_fit_is_refused_with_the_figures() -> None:
    budget = MemoryBudget(100)
    budget.reserve(50, "x")
    with pytest.raises(MemoryExceeded, match=FULL):
        budget.reserve(60, "a frame")
    budget.release(50)
    with budget.reserved(60, "a frame"):
        assert (budget.used, budget.peak) == (60, 60)
    assert (budget.used, budget.peak) == (0, 60)


def test_without_a_total_everything_fits_and_is_counted() -> None:
    budget = MemoryBudget()
    budget.reserve(1 << 60, "x")
    assert budget.used == 1 << 60


def test_memory_of_an_array_counts_until_nobody_has_it() -> None:
    budget = MemoryBudget(100)
    budget.reserve(80, "x")
    array = np.empty(80, np.uint8)
    budget.release_with(array, 80)
    view = np.frombuffer(memoryview(array.data)[8:], np.float64)
    del array
    assert budget.used == 80, "a view has it"
    del view
    assert budget.used == 0


def test_who_may_be_held_back_waits_for_room() -> None:
    budget = MemoryBudget(100)
    budget.reserve(80, "x")
    waiting = threading.Thread(target=budget.reserve, args=(60, "y"), kwargs={"wait": 60.0})
    waiting.start()
    budget.release(80)
    waiting.join()
    assert budget.used == 60


def test_nobody_waits_for_what_never_fits() -> None:
    with pytest.raises(MemoryExceeded, match=r"^y needs 200 B, and 0 B of the 100 B"):
        MemoryBudget(100).reserve(200, "y", wait=1e6)


def test_another_total_wakes_who_waits_for_room() -> None:
    budget = MemoryBudget(100)
    budget.reserve(80, "x")
    waiting = threading.Thread(target=budget.reserve, args=(60, "y"), kwargs={"wait": 1000.0})
    waiting.start()
    budget.resize(200)
    waiting.join()
    assert budget.used == 140
    budget.resize(100)
    with pytest.raises(MemoryExceeded, match=r"^z needs 1 B, and 140 B of the 100 B"):
        budget.reserve(1, "z")
