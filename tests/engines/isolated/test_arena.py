"""Arrays keep their bits and strides in the shared memory, and a slot that lies elsewhere is refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from farflung.engines.isolated import arena
from farflung.engines.isolated.arena import Slot
from farflung.errors import GraphError, MemoryExceeded, WireError
from farflung.memory_budget import MemoryBudget
from tests.support.engines.arena_ends import ArenaEnds

GRID = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize(
    "array",
    [
        GRID,
        GRID.T,
        GRID[:, 1:3],
        np.broadcast_to(GRID[:1], (5, 6)),
        GRID[::-1],
        np.float32(3.5).reshape(()),
        np.zeros((3, 0, 2), np.int64),
        GRID.astype(ml_dtypes.bfloat16),
        GRID.astype(np.complex64),
        GRID.astype(">f4"),
    ],
    ids=["whole", "transposed", "gaps", "broadcast", "reversed", "scalar", "empty", "bfloat16", "complex", "big-endian"],
)
def test_arrays_keep_values_and_layout(array: np.ndarray, ends: ArenaEnds) -> None:
    slot = ends.worker.write(array)
    for found in (ends.other.view(slot), ends.other.copy(slot, MemoryBudget())):
        assert found.dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, array)
        if array.size and min(array.strides, default=0) >= 0:
            assert found.strides == array.strides


def test_a_copy_does_not_change_with_the_memory(ends: ArenaEnds) -> None:
    slot = ends.other.write(GRID)
    copy = ends.worker.copy(slot, MemoryBudget())
    ends.other.begin()
    ends.other.write(GRID + 1)
    np.testing.assert_array_equal(copy, GRID)


@pytest.mark.parametrize(
    "slot",
    [
        Slot("float32", (4,), (1,), 0),
        Slot("float32", (1 << 30,), (1,), 1 << 19),
        Slot("float32", (4,), (1,), (1 << 20) - 8),
        Slot("float32", (4,), (-1,), (1 << 19) + 64),
        Slot("float32", (4, 4), (1,), 1 << 19),
        Slot("float32", (-4,), (1,), 1 << 19),
        Slot("object", (4,), (1,), 1 << 19),
        Slot("float32", (2, 2), (1 << 62, 1 << 62), 1 << 19),
        Slot("float32", (1 << 62, 1 << 62), (0, 0), 1 << 19),
        Slot("float32", (1 << 63,), (0,), 1 << 19),
    ],
)
def test_slots_outside_of_the_other_half_are_refused(slot: Slot, ends: ArenaEnds) -> None:
    with pytest.raises(WireError, match="the process that computes answered with an array"):
        ends.worker.copy(slot, MemoryBudget())


def test_the_copies_of_a_message_take_no_more_than_the_half(ends: ArenaEnds) -> None:
    """A thousand names for one place would cost the worker a thousand times the memory that it shares."""
    slot = ends.other.write(np.ones(100_000, np.uint8))
    for _ in range(2):
        ends.worker.begin()
        for _ in range(5):
            ends.worker.copy(slot, MemoryBudget())
    with pytest.raises(WireError, match="the process that computes answered with arrays that lie in each other"):
        ends.worker.copy(slot, MemoryBudget())


@pytest.mark.parametrize("slot", [Slot("uint8", (1 << 40,), (0,), 1 << 19), Slot("float32", (4,), (1,), 1 << 19)])
def test_a_message_is_bytes_of_the_half(slot: Slot, ends: ArenaEnds) -> None:
    """A terabyte of one byte over and over lies in one byte."""
    with pytest.raises(WireError, match="the process that computes answered with a message that is none"):
        ends.worker.read_bytes(slot)


def test_a_half_that_is_full_and_types_that_are_not_known(ends: ArenaEnds) -> None:
    with pytest.raises(GraphError, match=r"a message of .* exceeds the shared memory of"):
        ends.worker.write(np.zeros(1 << 20, np.uint8))
    with pytest.raises(GraphError, match=r"element type 'str\d+' is not known; known are float64"):
        ends.worker.write(np.array(["text"]))


def test_pages_that_no_message_needs_go_back(ends: ArenaEnds) -> None:
    ends.worker.write(np.ones(400_000, np.uint8))
    before = ends.worker.resident
    for _ in range(128):
        ends.worker.begin()
        ends.worker.write(GRID)
        ends.worker.trim()
    assert ends.worker.resident < before / 4


def test_what_is_copied_out_counts_in_the_budget_while_it_lives(ends: ArenaEnds) -> None:
    budget = MemoryBudget(3 * GRID.nbytes)
    slot = ends.other.write(GRID)
    copies = [ends.worker.copy(slot, budget) for _ in range(2)]
    assert budget.used == 2 * GRID.nbytes
    part = copies.pop()[1:]
    assert budget.used == 2 * GRID.nbytes, "a view keeps the memory"
    del part
    assert budget.used == GRID.nbytes


def test_a_full_budget_names_the_remedy(ends: ArenaEnds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "_WAIT", 0.0)
    with pytest.raises(
        MemoryExceeded, match=r"^what the process that computes gives needs 96 B, .*offer more memory \(--memory\)$"
    ):
        ends.worker.copy(ends.other.write(GRID), MemoryBudget(90))


def test_all_pages_go_back_after_large_messages(ends: ArenaEnds) -> None:
    ends.worker.write(np.ones(400_000, np.uint8))
    assert ends.worker.resident >= 400_000
    ends.worker.release()
    assert ends.worker.resident < 50_000
    assert ends.worker.view(ends.other.write(GRID)).tolist() == GRID.tolist(), "the memory serves the next message"
