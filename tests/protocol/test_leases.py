"""Leases by the receiver's clock: who is silent for too long is given up, who comes back too late is not heard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.protocol.leases import Leases
from farflung.units import Seconds

SECOND = Seconds(1.0)


def looks(leases: Leases, begin: float, end: float) -> list[tuple[str, int]]:
    """``expired`` every half second; what it said last."""
    found: list[tuple[str, int]] = []
    for half in range(int(begin * 2), int(end * 2) + 1):
        found = leases.expired(half / 2)
    return found


def test_whoever_says_nothing_is_given_up_and_any_word_renews() -> None:
    leases = Leases(Seconds(4.0))
    leases.grant("a", 1, 0.0)
    leases.grant("b", 7, 0.0)
    assert looks(leases, 0.0, 4.0) == []
    assert leases.renew("b", 7, 4.0)
    assert looks(leases, 4.5, 6.0) == [("a", 1)]
    assert leases.silence("b", 6.0) == 2.0
    assert leases.end("a", 1)
    assert not leases.end("a", 1), "it is over once"
    assert looks(leases, 6.5, 8.0) == []


def test_an_older_generation_is_not_heard() -> None:
    leases = Leases()
    leases.grant("a", 1, 0.0)
    leases.grant("a", 2, 1.0)
    assert not leases.renew("a", 1, 2.0)
    assert not leases.end("a", 1), "its end takes nothing from the one that came after it"
    assert leases.generation("a") == 2
    assert leases.renew("a", 2, 2.0)
    assert not leases.renew("nobody", 0, 0.0)
    assert leases.generation("nobody") == 0


def test_a_receiver_that_was_stopped_itself_gives_nobody_up() -> None:
    leases = Leases(Seconds(4.0))
    leases.grant("a", 1, 0.0)
    assert looks(leases, 0.0, 1.0) == []
    assert leases.expired(100.0) == [], "99 seconds were missed here, not there"
    assert looks(leases, 100.5, 102.5) == []
    assert looks(leases, 103.0, 104.5) == [("a", 1)]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.booleans()), max_size=60))
def test_only_the_newest_session_is_ever_heard(events: list[tuple[str, int, bool]]) -> None:
    leases = Leases()
    newest = {"a": 0, "b": 0}
    for place, (name, back, opens) in enumerate(events):
        if opens:
            newest[name] += 1
            leases.grant(name, newest[name], float(place))
        else:
            generation = newest[name] - back
            assert leases.renew(name, generation, float(place)) == (back == 0 and newest[name] > 0)


@pytest.mark.parametrize("late", [0.25, 0.6])
def test_a_look_that_is_a_little_late_changes_nothing(late: float) -> None:
    leases = Leases(SECOND)
    leases.grant("a", 1, 0.0)
    leases.expired(0.5)
    leases.expired(1.0 + late * 0.5)
    assert leases.expired(1.75) == [("a", 1)]
