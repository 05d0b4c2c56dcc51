"""Sets that follow measured times: when they change, and that all members decide alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.sync import LayerInfo, World, get_strategy
from farflung.sync.strategies.partial_sync import PartialSync
from farflung.sync.timeline import period_seconds
from farflung.units import Bytes, Seconds


def world(bp: list[float], comm: list[float]) -> World:
    layers = (LayerInfo(nbytes=Bytes(8), bp_seconds=Seconds(b), comm_seconds=Seconds(c)) for b, c in zip(bp, comm, strict=True))
    return World(rank=0, members=2, layers=tuple(layers))


def strategy(**more: Any) -> PartialSync:
    found = get_strategy("free_sets", **{"sync_every": 2, "adapt": 0.05} | more)
    assert isinstance(found, PartialSync)
    return found


def vector(bp: list[float], comm: list[float]) -> Any:
    return np.array([*bp, *comm], np.float32)


EVEN = world([1.0] * 4, [1.0] * 4)


def test_times_that_ask_for_other_sets_are_followed() -> None:
    told = [vector([1.0] * 4, [0.1, 6.0, 0.1, 0.1]), vector([1.0] * 4, [0.1, 0.1, 0.1, 6.0])]
    found = strategy().follow(EVEN, told)
    assert found.times.tolist() == np.maximum(*told).tolist(), "the slowest member of each layer counts"
    assert {frozenset(strategy().layers_of(step, found)) for step in (0, 1)} != {
        frozenset(strategy().layers_of(step, EVEN)) for step in (0, 1)
    }


def test_what_changes_little_changes_nothing() -> None:
    slower = vector([2.0] * 4, [2.0] * 4)
    assert strategy().follow(EVEN, [slower]) is EVEN, "all twice as slow: the same sets"
    assert strategy(adapt=0.9).follow(EVEN, [vector([1.0] * 4, [0.1, 6.0, 0.1, 6.0])]) is EVEN


def test_who_saw_nothing_or_nonsense_does_not_count() -> None:
    nothing = [vector([0.0] * 4, [0.0] * 4), vector([1.0] * 4, [float("nan")] * 4), vector([1.0], [1.0])]
    assert strategy().follow(EVEN, nothing) is EVEN


seconds = st.lists(st.floats(0.015625, 8, width=16), min_size=5, max_size=5)


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=3), st.tuples(seconds, seconds), st.randoms())
@settings(deadline=None, max_examples=60)
def test_members_decide_alike_and_never_for_a_longer_period(told: list[Any], first: Any, random: Any) -> None:
    here, rows = world(*first), [vector(*row) for row in told]
    found = strategy().follow(here, rows)
    random.shuffle(rows)
    assert strategy().follow(here, rows) == found
    if found is not here:
        sets = tuple(strategy().layers_of(step, here) for step in (0, 1))
        before = period_seconds(strategy(adapt=0.0, sets=sets), found)
        assert period_seconds(strategy(), found) < before
        assert here.with_times(found.times) == found, "what a checkpoint keeps is what was decided"
