"""A drift is looked at once, and however a run's machines come and go in speed, its plan changes seldom."""

from __future__ import annotations

import math
import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.clock import VirtualClock
from farflung.protocol.looks import HOUR, LOOK, REST, Looks


def test_a_drift_is_due_at_once_and_only_once() -> None:
    looks, clock = Looks(), VirtualClock(1000.0)
    assert looks.due(clock.now()) == {}
    assert looks.wait(clock.now()) == math.inf
    looks.want("r", "worker b is slow")
    looks.want("r", "worker c is slow")
    assert looks.wait(clock.now()) == 0.0
    assert looks.due(clock.now()) == {"r": "worker c is slow"}
    assert looks.due(clock.now()) == {}


def test_what_is_wanted_soon_after_a_look_or_a_change_waits() -> None:
    looks, clock = Looks(), VirtualClock()
    looks.want("r", "one")
    assert looks.due(clock.now())
    looks.want("r", "two")
    looks.want("s", "another run's")
    assert looks.due(clock.now()) == {"s": "another run's"}
    assert looks.wait(clock.now()) == LOOK
    clock.advance(LOOK)
    assert looks.due(clock.now()) == {"r": "two"}
    looks.changed("r", clock.now())
    assert looks.rests("r", clock.now())
    assert not looks.rests("s", clock.now())
    assert not looks.rests("t", clock.now())
    looks.want("r", "three")
    assert looks.wait(clock.now()) == REST
    clock.advance(REST)
    assert not looks.rests("r", clock.now())
    assert looks.due(clock.now()) == {"r": "three"}
    looks.changed("r", clock.now())
    looks.want("r", "four")
    assert looks.wait(clock.now()) == 2 * REST, "the second in an hour"
    looks.forget("r")
    assert looks.wait(clock.now()) == math.inf


@given(st.integers(0, 2**32), st.floats(0.1, 600.0))
@settings(max_examples=60, deadline=None)
def test_a_plan_never_flaps(seed: int, often: float) -> None:
    """Something drifts all the time, and each look finds a better plan."""
    looks, clock, chance = Looks(), VirtualClock(), random.Random(seed)
    changes: list[float] = []
    for _ in range(400):
        clock.advance(chance.uniform(0.0, 2 * often))
        looks.want("r", "a drift")
        if looks.due(clock.now()):
            changes.append(clock.now())
            looks.changed("r", clock.now())
    assert changes, "it is looked at all"
    assert changes[0] <= 2 * often
    for index, begin in enumerate(changes):
        assert sum(begin <= at < begin + HOUR for at in changes[index:]) <= 7
    assert all(after - before >= REST for before, after in pairwise(changes))


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_what_is_wanted_is_always_looked_at_in_the_end(seed: int) -> None:
    looks, clock, chance = Looks(), VirtualClock(), random.Random(seed)
    for _ in range(60):
        looks.want("r", "a drift")
        clock.advance(looks.wait(clock.now()))
        assert looks.due(clock.now()) == {"r": "a drift"}
        if chance.random() < 0.5:
            looks.changed("r", clock.now())


def test_who_has_looked_already_takes_the_reason() -> None:
    looks = Looks()
    assert looks.taken("r") == ""
    looks.want("r", "worker b is slow")
    assert (looks.taken("r"), looks.taken("r")) == ("worker b is slow", "")
    assert looks.due(0.0) == {}
