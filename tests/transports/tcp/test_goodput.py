"""What a link's own traffic says of it: points, stretches, windows, on links made of packets in virtual time."""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.transports.tcp.goodput import Curve, Goodput, Look, Point, Segment, Stretches, Trips

_PACKET, _STATE = 1448, 0.03


Later = list[tuple[float, Callable[[], None]]]


class Course:
    """When each packet of ``frames`` was given to the sender's system, sent by it, and there."""

    def __init__(self, link: Link, frames: list[tuple[float, int]]) -> None:
        self.begins = [begin for begin, _ in frames]
        self._lines, self._sent, self.there, self._alpha = [0], [], [], link.alpha
        sent = passed = 0.0
        for begin, size in frames:
            for _ in range(max(size // _PACKET, 1)):
                sent = max(sent, begin) + _PACKET / link.pace
                passed = max(passed, sent) + _PACKET / link.rate(sent)
                self._sent.append(sent)
                self.there.append(passed + link.alpha)
            self._lines.append(len(self._sent))

    def given(self, now: float) -> int:
        return _PACKET * self._lines[bisect.bisect_left(self.begins, now)]

    def arrived(self, now: float) -> int:
        return _PACKET * bisect.bisect_right(self.there, now)

    def look(self, now: float, *, company: bool) -> Look:
        sent = _PACKET * bisect.bisect_right(self._sent, now)
        unsent = self.given(now) - sent
        return Look(now, sent, self.arrived(now - self._alpha), unsent, unsent == 0, company)


@dataclass
class Link:
    """A way of ``rate`` bytes per second and ``alpha`` seconds, of which ``clock`` seconds lie between the two ends' clocks.

    ``pace``: what the sender's system lets out per second. ``late``: how much too late a program wakes, drawn each time.
    """

    rate: Callable[[float], float]
    alpha: float = 0.02
    pace: float = 1e9
    clock: float = 1000.0
    late: Callable[[], float] = lambda: 0.0
    company: Callable[[float], bool] = lambda now: False
    stretches: Stretches = field(default_factory=Stretches)
    goodput: Goodput = field(default_factory=Goodput)
    curve: Curve = field(default_factory=Curve)
    #: States under way to the sender.
    states: Later = field(default_factory=list)

    def carry(self, frames: list[tuple[float, int]]) -> Goodput:
        """Give the system frames at times (seconds, bytes), and learn."""
        course = Course(self, frames)
        end = course.there[-1] + 1.0
        events: Later = [(begin, lambda now=begin: self._gives(course, now)) for begin in course.begins]
        looks = (index * 4e-3 + self.late() for index in range(int(end / 4e-3)))
        events += [(now, lambda now=now: self._looks(course, now)) for now in looks]
        wakes = (arrival + self.late() for arrival in course.there)
        events += [(now, lambda now=now: self._comes(course, now)) for now in wakes]
        events += [(now * _STATE, lambda now=now * _STATE: self._tells(course, now)) for now in range(int(end / _STATE))]
        for now, act in sorted(events, key=lambda event: event[0]):
            while self.states and self.states[0][0] <= now:
                self.states.pop(0)[1]()
            act()
        return self.goodput

    def _gives(self, course: Course, now: float) -> None:
        self.stretches.gives(course.look(now, company=self.company(now)))

    def _looks(self, course: Course, now: float) -> None:
        self.stretches.look(course.look(now, company=self.company(now)))

    def _comes(self, course: Course, now: float) -> None:
        if self.curve.due(now + self.clock):
            self.curve.add(now + self.clock, course.arrived(now), 0)

    def _tells(self, course: Course, now: float) -> None:
        points, received, then = self.curve.take(), course.arrived(now), now + self.alpha

        def told() -> None:
            if course.given(then) == received:
                self.stretches.align(course.given(then), received)
            for segment in self.stretches.told(points, course.given(then), 2 * self.alpha):
                self.goodput.add(segment)

        self.states.append((then, told))


def _steps(count: int, size: int = 131_000, apart: float = 0.25, begin: float = 1.0) -> list[tuple[float, int]]:
    return [(begin + index * apart, size) for index in range(count)]


@pytest.mark.parametrize("rate", [0.8e6, 2e6, 5e6])
def test_frames_of_one_size_tell_the_rate(rate: float) -> None:
    assert Link(lambda now: rate).carry(_steps(60)).alone == pytest.approx(rate, rel=0.02)


def test_few_samples_say_nothing() -> None:
    assert Link(lambda now: 2e6).carry(_steps(4)).alone == 0.0


def test_a_busy_processor_does_not_change_the_rate() -> None:
    """Programs wake up to 60 ms too late, as often as not."""
    draw = random.Random(7)
    late = Link(lambda now: 1e6, late=lambda: draw.choice([0.0, 0.0, draw.uniform(0.0, 0.06)]))
    assert late.carry(_steps(30, 262_000, 0.4)).alone == pytest.approx(1e6, rel=0.03)


def test_what_the_sender_paces_is_a_lower_bound_only() -> None:
    found = Link(lambda now: 6e6, alpha=0.045, pace=3e6).carry(_steps(80))
    assert found.alone == 0.0
    assert found.least == pytest.approx(3e6, rel=0.05)


@pytest.mark.parametrize(("before", "after"), [(2e6, 0.5e6), (1e6, 4e6)])
def test_a_change_of_the_rate_shows_within_some_tens_of_frames(before: float, after: float) -> None:
    link = Link(lambda now: before if now < 8 else after)
    assert link.carry(_steps(28)).alone == pytest.approx(before, rel=0.02)
    link = Link(lambda now: before if now < 8 else after)
    assert link.carry(_steps(28 + 40)).alone == pytest.approx(after, rel=0.02)


def test_frames_that_went_in_company_say_only_what_is_carried_at_least() -> None:
    shared = Link(lambda now: 1e6, company=lambda now: True)
    found = shared.carry(_steps(60))
    assert found.alone == 0.0
    assert found.least == pytest.approx(1e6, rel=0.02)


def test_company_at_times_does_not_lower_the_rate() -> None:
    """Every second half second, another stream takes three quarters of the line."""
    busy = Link(lambda now: 0.5e6 if now % 1 < 0.5 else 2e6, company=lambda now: now % 1 < 0.5)
    assert busy.carry(_steps(120, 60_000)).alone == pytest.approx(2e6, rel=0.03)


@settings(deadline=None, max_examples=12)
@given(
    rate=st.floats(3e5, 2e7),
    alpha=st.floats(1e-3, 0.05),
    clock=st.floats(-1e5, 1e5),
    seed=st.integers(0, 1000),
)
def test_no_rate_is_told_that_the_link_does_not_have(rate: float, alpha: float, clock: float, seed: int) -> None:
    draw = random.Random(seed)
    late = draw.choice([0.0, 0.003, 0.03])
    link = Link(lambda now: rate, alpha, clock=clock, late=lambda: draw.uniform(0.0, late))
    frames, now = [], 1.0
    for _ in range(20):
        frames.append((now, draw.randint(2_000, 400_000)))
        now += draw.uniform(0.0, 0.6)
    found = link.carry(frames)
    assert found.alone == 0.0 or found.alone == pytest.approx(rate, rel=0.05)
    assert found.least <= 1.05 * rate


def test_points_are_thinned_and_keep_what_happened() -> None:
    curve = Curve()
    for index in range(1, 31):
        curve.add(index / 100, index * 1000, 5000 if index >= 10 else 0, early=1 if index >= 20 else 0)
    points = curve.take()
    assert 6 <= len(points) <= Curve.MOST
    assert points[-1].nbytes == 30_000
    assert sum(point.company for point in points) == 1
    assert sum(point.gap for point in points) == 1
    assert curve.take() == []


def test_after_a_gap_counts_jump_and_are_left_out() -> None:
    stretches = Stretches()
    stretches.align(0, 0)
    stretches.gives(Look(0.0, 0, 0, 0, dry=True))
    stretches.look(Look(0.1, 900_000, 0, 100_000))
    points = [Point(index / 10, index * 10_000, gap=index == 5) for index in range(1, 20)]
    found = stretches.told(points, 1_000_000, 0.1)
    assert len(found) == 4 + 12 - 1  # up to the gap, and from two round trips after it on


def test_windows_put_short_segments_together() -> None:
    goodput = Goodput()
    for _ in range(100):
        goodput.add(Segment(0.004, 4_000, company=False))
    assert goodput.alone == 0.0  # four windows
    for _ in range(25):
        goodput.add(Segment(0.004, 4_000, company=False))
    assert goodput.alone == pytest.approx(1e6)


def test_the_smallest_round_trip_is_forgotten_in_time() -> None:
    trips = Trips()
    trips.add(0.02, 0.0)
    for second in range(1, 40):
        trips.add(0.05, float(second))
        assert trips.least == pytest.approx(0.02 if second <= 21 else 0.05)
