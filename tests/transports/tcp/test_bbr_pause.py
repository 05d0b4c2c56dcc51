"""Pausing before BBR does, in virtual time."""

from __future__ import annotations

from farflung.transports.tcp.bbr_pause import BbrView, Breather

RATE = 1_000_000


def view(microseconds: int, *, probing: bool = False) -> BbrView:
    return BbrView(rate=RATE, round_trip=microseconds, probing=probing)


def watch(breather: Breather, seen: BbrView, begin: float, end: float, queued: int = 50_000) -> list[float]:
    """When it holds, asked each millisecond."""
    held = []
    for tick in range(int(begin * 1000), int(end * 1000)):
        breather.saw(seen, tick / 1000)
        if breather.near(tick / 1000) and breather.holds(tick / 1000, queued, seen):
            held.append(tick / 1000)
    return held


def test_it_pauses_so_that_all_is_confirmed_when_ten_seconds_are_over() -> None:
    breather = Breather()
    assert watch(breather, view(20_500), 0.0, 1.0) == []
    assert watch(breather, view(20_000), 1.0, 10.9) == []  # a new smallest round trip at 1 s
    held = watch(breather, view(20_000), 10.9, 11.0)
    assert 10.90 < held[0] < 10.92  # 50 kB take 50 to 65 ms, and a round trip is 20 ms
    assert not breather.expired(11.0)
    assert breather.holds(11.001, 50_000, view(20_000))
    assert breather.holds(11.005, 0, view(20_000))  # confirmed, but the kernel's clock may be behind
    assert not breather.holds(11.014, 0, view(20_000))
    assert breather.expired(11.014)


def test_a_new_connection_has_just_been_greeted() -> None:
    held = watch(Breather(), view(20_000), 5.0, 15.0)
    assert 14.8 < held[0] < 14.9


def test_the_queue_of_a_new_connection_is_drained_in_time() -> None:
    """100 kB at 0.8 of the rate that BBR reports take 125 ms: the pause began early enough."""
    breather = Breather()
    held = watch(breather, view(20_000), 5.0, 15.0, queued=100_000)
    assert held
    assert held[0] + 0.125 + 0.02 < 15.0 - Breather.UNSURE + 0.01


def test_what_comes_next_begins_the_ten_seconds_anew() -> None:
    breather = Breather()
    watch(breather, view(20_500), 0.0, 1.0)
    watch(breather, view(20_000), 1.0, 11.0)
    assert watch(breather, view(21_000), 11.03, 20.9) == []
    assert watch(breather, view(21_000), 20.9, 21.0) != []


def test_ten_seconds_begin_when_a_probe_has_ended() -> None:
    breather = Breather()
    watch(breather, view(20_500), 0.0, 1.0)
    assert watch(breather, view(20_000, probing=True), 1.0, 1.2) == []
    assert watch(breather, view(20_000), 1.2, 11.08) == []
    assert watch(breather, view(20_000), 11.08, 11.2) != []


def test_without_knowing_when_or_with_a_long_queue_there_is_no_pause() -> None:
    breather = Breather()
    breather.saw(view(20_500), 0.0)
    breather.saw(view(20_000), 0.1)  # some time within 0.1 s
    assert watch(breather, view(20_000), 0.1, 11.0) == []
    long = Breather()
    watch(long, view(20_500), 0.0, 1.0)
    assert watch(long, view(20_000), 1.0, 11.5, queued=500_000) == []


def test_an_idle_connection_stays_idle_for_that_moment() -> None:
    breather = Breather()
    watch(breather, view(20_500), 0.0, 1.0)
    held = watch(breather, view(20_000), 1.0, 11.5, queued=0)
    assert held[-1] - held[0] < 0.1
    assert held[0] < 11.0 < held[-1]


def test_a_pause_ends_when_nothing_is_confirmed() -> None:
    breather = Breather()
    watch(breather, view(20_500), 0.0, 1.0)
    held = watch(breather, view(20_000), 1.0, 15.0)
    assert held[-1] - held[0] < 2 * Breather.MOST + 0.1
