"""Slow devices and links are named by comparison with themselves; silence is told apart from slowness."""

from __future__ import annotations

import random
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.protocol.straggler_detector import StragglerDetector


def steps(rhythm: StragglerDetector, seconds: float, count: int, name: str = "b", seed: int = 0) -> list[str]:
    chance = random.Random(seed)
    said = [rhythm.step(name, seconds * chance.uniform(0.8, 1.25)) for _ in range(count)]
    return [text for text in said if text]


def test_a_device_that_becomes_slow_is_named_once_and_again_when_it_is_well() -> None:
    rhythm = StragglerDetector()
    assert steps(rhythm, 0.1, 40) == []
    (told,) = steps(rhythm, 0.4, 40)
    assert told.startswith("worker b is slow but alive: it computes for ")
    assert re.search(r" per step, [\d.]+ times its usual [\d.]+ m?s$", told)
    assert rhythm.slow == (("b",), ())
    (well,) = steps(rhythm, 0.1, 20)
    assert well.startswith("worker b is back at its usual speed")
    assert rhythm.slow == ((), ())


def test_who_plans_gets_what_is_told_as_numbers() -> None:
    rhythm = StragglerDetector()
    rounds = [(0.1, 30, ""), (0.4, 5, "is slow"), (1.6, 5, "is slow"), (0.4, 5, "is slow"), (0.1, 5, "usual speed")]
    for seconds, count, word in rounds:
        told = [text for text in (rhythm.step("b", seconds) for _ in range(count)) if text]
        drifts = rhythm.slowdowns()
        assert [drift.text for drift in drifts] == told
        assert len(told) == bool(word)
        assert all(word in text for text in told)
        if seconds > 0.1:
            (drift,) = drifts
            assert (drift.device, drift.link) == ("b", None)
            assert abs(drift.times - seconds / 0.1) < 1e-9
        rounds_before = {0.4: (1.0, 16.0), 1.6: (4.0,), 0.1: (4.0,)}[seconds]
        assert all(any(abs(drift.before - one) < 1e-9 for one in rounds_before) for drift in drifts)
    assert rhythm.slowdowns() == []


def test_a_device_that_was_slow_from_the_plans_begin_and_becomes_fast_is_told() -> None:
    rhythm = StragglerDetector()
    assert steps(rhythm, 0.4, 30) == []
    (told,) = steps(rhythm, 0.1, 30)
    assert told.startswith("worker b is faster than before: it computes for ")
    (drift,) = rhythm.slowdowns()
    assert 0.2 < drift.times < 0.32
    assert drift.before == 1.0
    assert rhythm.slow == ((), ())
    (slow,) = steps(rhythm, 0.4, 30)
    assert "is slow" in slow, "the new pace is what it is compared with"


def test_one_slow_step_and_uneven_shares_are_no_finding() -> None:
    rhythm = StragglerDetector()
    assert steps(rhythm, 0.1, 30, "a") == steps(rhythm, 0.9, 30, "b") == []
    assert rhythm.step("a", 5.0) == ""
    assert steps(rhythm, 0.1, 30, "a") == []


def test_a_new_plan_begins_afresh() -> None:
    rhythm = StragglerDetector()
    steps(rhythm, 0.1, 30)
    rhythm.begin()
    assert steps(rhythm, 0.5, 30) == [], "it has five times the work now"


def test_a_link_is_compared_by_frames_of_one_size() -> None:
    rhythm = StragglerDetector()
    said = [rhythm.sent("a", "b", 0.01 * size, 1000 * size) for _ in range(30) for size in (1, 100)]
    assert set(said) == {""}
    said = [rhythm.sent("a", "b", 0.05, 1000) for _ in range(8)]
    (told,) = [text for text in said if text]
    assert told == "the link from a to b is slow: a transfer takes 50 ms, 5.0 times its usual 10 ms"
    assert rhythm.slow == ((), (("a", "b"),))
    (drift,) = rhythm.slowdowns()
    assert (drift.link, drift.kind, drift.times, drift.text) == (("a", "b"), "", 5.0, told)
    said = [rhythm.sent("a", "b", 0.01, 1000) for _ in range(8)]
    assert [drift.times for drift in rhythm.slowdowns()] == [1.0]
    assert [text for text in said if text] == ["the link from a to b is back at its usual speed"]


WAY = (0.01, 6.25e6)  # 5 ms one way, 50 Mbit/s


@given(st.integers(0, 2**32), st.integers(1, 2_000_000), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_link_that_never_changes_is_not_slow_however_late_a_busy_machine_is(seed: int, size: int, counts: bool) -> None:
    """The word of arrival is read early or late: in no time at all, or seconds after it came. Where the system counts, it may be
    late always, else now and then."""
    rhythm, chance = StragglerDetector(), random.Random(seed)
    for number in range(300):
        late = chance.uniform(0.0, 3.0 if counts or number % 4 else 0.005)
        if counts:
            rhythm.counted("a", "b", WAY[1] * chance.uniform(0.9, 1.0), 0.0, WAY[0] / 2 * chance.uniform(1.0, 1.2))
            late = 0.0 if number < 100 else late
        seconds = WAY[0] + size / WAY[1] + late
        assert rhythm.sent("a", "b", chance.choice([seconds, seconds, 5e-5]) if number % 4 else seconds, size, WAY) == ""
    assert rhythm.slow == ((), ())


@given(st.integers(0, 2**32), st.lists(st.integers(200_000, 2_000_000), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_link_cut_to_a_quarter_is_named_soon_though_small_messages_take_as_long_as_before(seed: int, sizes: list[int]) -> None:
    rhythm, chance = StragglerDetector(), random.Random(seed)

    def rounds(count: int, rate: float) -> list[str]:
        way = (WAY[0], rate)  # what training says of the link is soon in the table
        sent = [nbytes for _ in range(count) for nbytes in (chance.choice(sizes), 100)]
        said = [rhythm.sent("a", "b", WAY[0] + size / rate + chance.uniform(0.0, 0.01), size, way) for size in sent]
        return [text for text in said if text]

    assert rounds(30, WAY[1]) == []
    (told,) = rounds(8, WAY[1] / 4)
    assert told.startswith("the link from a to b is slow: ")
    assert rhythm.slow == ((), (("a", "b"),))
    (well,) = rounds(8, WAY[1])
    assert well == "the link from a to b is back at its usual speed"


def test_counts_of_the_system_overrule_late_messages() -> None:
    rhythm = StragglerDetector()
    for seconds, alone, told in ((0.1, 6e6, 0), (0.5, 6e6, 0), (0.5, 1.5e6, 1)):
        said = []
        for _ in range(30 if seconds < 0.2 else 8):
            rhythm.counted("a", "b", alone, 0.0, 0.005)
            said.append(rhythm.sent("a", "b", seconds, 500_000, WAY))
        assert sum(bool(text) for text in said) == told, (seconds, alone)


def test_a_link_of_a_slow_device_is_not_blamed() -> None:
    rhythm = StragglerDetector()
    for _ in range(30):
        assert rhythm.sent("a", "b", 0.05, 1000) == rhythm.step("b", 0.1) == ""
    assert any(rhythm.step("b", 0.5) for _ in range(5))
    assert {rhythm.sent("a", "b", 0.5, 1000) for _ in range(20)} == {""}
    for link in (("a", "c"), ("c", "b")):
        assert {rhythm.sent(*link, 0.05, 1000) for _ in range(30)} == {""}
    assert any(rhythm.sent("a", "c", 0.5, 1000) for _ in range(8))
    assert rhythm.slow == (("b",), (("a", "c"),))
    assert any(rhythm.step("a", value) for value in (0.1,) * 30 + (0.5,) * 5)
    assert rhythm.slow == (("a", "b"), ()), "its end is slow, which may be why"


def test_what_nobody_would_want_to_hear_of() -> None:
    rhythm = StragglerDetector()
    assert steps(rhythm, 0.001, 30) == steps(rhythm, 0.01, 30) == []


@given(st.integers(0, 2**32), st.floats(0.05, 60.0), st.floats(3.0, 50.0), st.sampled_from(["a", "b", "c"]))
@settings(max_examples=60, deadline=None)
def test_exactly_the_slow_device_is_named_and_soon(seed: int, usual: float, factor: float, victim: str) -> None:
    rhythm, chance = StragglerDetector(), random.Random(seed)
    usuals = {name: usual * chance.uniform(1.0, 20.0) for name in "abc"}

    def rounds(count: int, slow: str = "") -> list[str]:
        times = {name: value * (factor if name == slow else 1.0) for name, value in usuals.items()}
        said = [rhythm.step(name, times[name] * chance.uniform(0.85, 1.15)) for _ in range(count) for name in "abc"]
        return [text for text in said if text]

    assert rounds(chance.randint(20, 100)) == []
    (told,) = rounds(5, victim)
    assert told.startswith(f"worker {victim} is slow but alive: ")
    assert rounds(chance.randint(0, 100), victim) == []
    assert rhythm.slow == ((victim,), ())
    (told,) = rounds(5)
    assert told.startswith(f"worker {victim} is back at its usual speed")
    assert rounds(20) == []


@given(st.lists(st.floats(0.0, 0.99), max_size=60))
@settings(max_examples=60, deadline=None)
def test_whoever_speaks_again_is_told_to_have_been_slow(silences: list[float]) -> None:
    rhythm, lease, silent = StragglerDetector(), 5.0, False
    for share in silences:
        told = rhythm.silence("b", share * lease, lease)
        if share > 0.5 and not silent:
            assert told.endswith("it is slow or dead; the broker removes it after 5.00 s of silence")
        elif share <= 0.5 and silent:
            assert told.endswith(" of silence")
        else:
            assert told == ""
        silent = share > 0.5


def test_silence_is_told_before_the_lease_runs_out_and_slow_is_not_dead() -> None:
    rhythm = StragglerDetector()
    assert rhythm.silence("b", 1.0, 5.0) == ""
    told = rhythm.silence("b", 2.75, 5.0)
    assert told == "worker b has been silent for 2.75 s, it is slow or dead; the broker removes it after 5.00 s of silence"
    assert rhythm.silence("b", 3.5, 5.0) == ""
    assert rhythm.silence("b", 0.1, 5.0) == "worker b responds again after at least 3.50 s of silence"
    rhythm.silence("b", 4.0, 5.0)
    rhythm.lost("b")
    assert rhythm.silence("b", 0.1, 5.0) == "", "who was dead is another one when it comes back"


def test_a_speed_that_alternates_is_reported_ever_more_rarely() -> None:
    """A busy machine: the device is slow for six steps, usual for twelve, and so on."""
    rhythm = StragglerDetector()
    assert steps(rhythm, 0.1, 40) == []
    said = [text for _ in range(20) for text in steps(rhythm, 0.4, 6) + steps(rhythm, 0.1, 12)]
    assert [("is slow" in text, "back" in text) for text in said] == [(True, False), (False, True)]
    (lasting,) = steps(rhythm, 0.4, 60)
    assert "is slow" in lasting, "a slowdown that lasts is reported all the same"
    steps(rhythm, 0.1, 1000)
    assert "is slow" in steps(rhythm, 0.4, 8)[0], "after a calm time it is soon reported again"
