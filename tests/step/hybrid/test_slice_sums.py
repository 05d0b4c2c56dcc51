"""Gradients of slices are added in the job's order, whoever computed them and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from farflung.engines.base import Array
from farflung.graph.ir import Use
from farflung.step.hybrid.slice_sums import SliceSums
from farflung.step.run_setup import RunSetup

USE, OTHER = Use(state="w", op="op"), Use(state="b", op="op")
#: Sums of these depend on the order in every bit that the last one has.
NUMBERS = [np.float32(value) for value in (1e8, 1.0, -1e8, 0.3)]


class Scene:
    """One worker of one stage: ``given``: (slice, gradients) whenever a part of the sum ends."""

    def __init__(self, slices: Sequence[int], virtual_ends: Sequence[int], *, first: bool = True) -> None:
        self.given: list[tuple[int, Mapping[Use, Array]]] = []
        put: list[Mapping[Use, Array]] = []
        runner: Any = SimpleNamespace(put_gradients=put.append)
        sums: Any = SimpleNamespace(after_backward=lambda step, stage, index, _: self.given.append((index, put.pop())))
        setup = SimpleNamespace(
            device="a",
            job=SimpleNamespace(virtual_ends=tuple(virtual_ends)),
            plan=SimpleNamespace(replicas_of=lambda stage: [SimpleNamespace(device="a" if first else "b")]),
        )
        self.sums = SliceSums(cast(RunSetup, setup), (3, 0), tuple(slices), runner, sums)

    def put(self, *order: int) -> None:
        for index in order:
            self.sums.put(index, {USE: np.array([NUMBERS[index % 4]])})


def plain(*indices: int) -> float:
    total = np.float32(0.0)
    for place, index in enumerate(indices):
        total = NUMBERS[index] if place == 0 else np.float32(total + NUMBERS[index])
    return float(total)


@pytest.mark.parametrize("order", permutations(range(4)))
def test_the_sum_is_that_of_ascending_slices(order: tuple[int, ...]) -> None:
    scene = Scene(range(4), [1, 2, 3, 4])
    scene.put(*order)
    ((index, total),) = scene.given
    assert (index, float(total[USE][0])) == (3, plain(0, 1, 2, 3))
    assert plain(0, 1, 2, 3) != plain(3, 2, 1, 0), "the order shows"


def test_virtual_replicas_are_added_inside_first() -> None:
    scene = Scene(range(4), [2, 4])
    scene.put(3, 2, 1, 0)
    ((_, total),) = scene.given
    assert float(total[USE][0]) == float(np.float32(plain(0, 1) + np.float32(plain(2, 3))))


def test_a_later_replica_gives_each_virtual_replica_by_itself() -> None:
    """The servers of the exchange add these in the job's order."""
    scene = Scene([2, 3], [1, 2, 3, 4], first=False)
    scene.put(3)
    assert scene.given == [], "slice 2 comes first"
    scene.put(2)
    assert [(index, float(total[USE][0])) for index, total in scene.given] == [(2, NUMBERS[2]), (3, float(NUMBERS[3]))]


def test_a_use_that_only_some_slices_have_is_kept() -> None:
    scene = Scene(range(2), [1, 2])
    scene.sums.put(1, {OTHER: np.array([2.0])})
    scene.sums.put(0, {USE: np.array([1.0])})
    ((_, total),) = scene.given
    assert {use.state: float(array[0]) for use, array in total.items()} == {"w": 1.0, "b": 2.0}


def test_a_slice_counts_once() -> None:
    scene = Scene(range(2), [1, 2])
    scene.put(0)
    with pytest.raises(AssertionError, match="slice 0 counts once"):
        scene.put(0)
