"""Deadlines in virtual time."""

from __future__ import annotations

from farflung.protocol.deadlines import Deadlines, Phase, origin


def phase(progress: int, run: str = "r") -> Phase:
    return Phase(run=run, progress=progress, seconds=10.0)


def test_a_phase_without_progress_expires_once_in_its_time() -> None:
    deadlines = Deadlines()
    assert [deadlines.expired([phase(1)], now) for now in (0.0, 10.0)] == [[], []]
    assert deadlines.expired([phase(1)], 10.5) == [phase(1)]
    assert deadlines.expired([phase(1)], 20.0) == []
    assert deadlines.expired([phase(1)], 21.0) == [phase(1)]


def test_progress_and_other_phases_begin_anew() -> None:
    deadlines = Deadlines()
    for now in range(100):
        assert deadlines.expired([phase(now // 9)], float(now)) == []
    assert deadlines.expired([], 200.0) == []
    assert deadlines.expired([phase(11)], 300.0) == [], "the run waited for nothing in between"
    assert deadlines.expired([phase(11), phase(0, "s")], 311.0) == [phase(11)]


def test_whoever_waits_for_nobody_holds_up_the_others() -> None:
    waits = {"a": {"b"}, "b": {"c", "d"}, "d": {"a"}}
    assert origin("a", waits) == ("c", frozenset())
    assert origin("c", waits) == ("c", frozenset())


def test_workers_that_wait_for_each_other_are_all_suspects() -> None:
    waits = {"a": {"b"}, "b": {"c"}, "c": {"b"}}
    assert origin("a", waits) == ("", frozenset("bc"))
