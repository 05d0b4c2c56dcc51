"""A drift is looked at once, and however a run's machines come and go in speed, its plan changes seldom."""

from __future__ import annotations

import math
import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.clock import VirtualClock
from farflung.protocol.replan_timer import HOUR, REST, SEARCH, ReplanTimer


def test_a_drift_is_due_at_once_and_only_once() -> None:
    timer, clock = ReplanTimer(), VirtualClock(1000.0)
    assert timer.due(clock.now()) == {}
    assert timer.wait(clock.now()) == math.inf
    timer.request("r", "worker b is slow")
    timer.request("r", "worker c is slow")
    assert timer.wait(clock.now()) == 0.0
    assert timer.due(clock.now()) == {"r": "worker c is slow"}
    assert timer.due(clock.now()) == {}


def test_what_is_wanted_soon_after_a_look_or_a_change_waits() -> None:
    timer, clock = ReplanTimer(), VirtualClock()
    timer.request("r", "one")
    assert timer.due(clock.now())
    timer.request("r", "two")
    timer.request("s", "another run's")
    assert timer.due(clock.now()) == {"s": "another run's"}
    assert timer.wait(clock.now()) == SEARCH
    clock.advance(SEARCH)
    assert timer.due(clock.now()) == {"r": "two"}
    timer.changed("r", clock.now())
    assert timer.rests("r", clock.now())
    assert not timer.rests("s", clock.now())
    assert not timer.rests("t", clock.now())
    timer.request("r", "three")
    assert timer.wait(clock.now()) == REST
    clock.advance(REST)
    assert not timer.rests("r", clock.now())
    assert timer.due(clock.now()) == {"r": "three"}
    timer.changed("r", clock.now())
    timer.request("r", "four")
    assert timer.wait(clock.now()) == 2 * REST, "the second in an hour"
    timer.forget("r")
    assert timer.wait(clock.now()) == math.inf


@given(st.integers(0, 2**32), st.floats(0.1, 600.0))
@settings(max_examples=60, deadline=None)
def test_a_plan_never_flaps(seed: int, often: float) -> None:
    """Something drifts all the time, and each look finds a better plan."""
    timer, clock, chance = ReplanTimer(), VirtualClock(), random.Random(seed)
    changes: list[float] = []
    for _ in range(400):
        clock.advance(chance.uniform(0.0, 2 * often))
        timer.request("r", "a drift")
        if timer.due(clock.now()):
            changes.append(clock.now())
            timer.changed("r", clock.now())
    assert changes, "it is looked at all"
    assert changes[0] <= 2 * often
    for index, begin in enumerate(changes):
        assert sum(begin <= at < begin + HOUR for at in changes[index:]) <= 7
    assert all(after - before >= REST for before, after in pairwise(changes))


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_what_is_wanted_is_always_looked_at_in_the_end(seed: int) -> None:
    timer, clock, chance = ReplanTimer(), VirtualClock(), random.Random(seed)
    for _ in range(60):
        timer.request("r", "a drift")
        clock.advance(timer.wait(clock.now()))
        assert timer.due(clock.now()) == {"r": "a drift"}
        if chance.random() < 0.5:
            timer.changed("r", clock.now())


def test_who_has_looked_already_takes_the_reason() -> None:
    timer = ReplanTimer()
    assert timer.take("r") == ""
    timer.request("r", "worker b is slow")
    assert (timer.take("r"), timer.take("r")) == ("worker b is slow", "")
    assert timer.due(0.0) == {}
