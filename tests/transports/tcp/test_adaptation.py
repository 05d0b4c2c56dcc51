"""What a link learns from its traffic, in virtual time."""

from __future__ import annotations

import pytest

from farflung.transports.tcp.adaptation import Deadlines, Rate, StripeProbe


def _drive(rate: Rate, speed: float, seconds: float, start: float = 0.0, step: float = 0.01) -> float:
    now = start
    while now < start + seconds:
        now += step
        rate.confirmed(int(speed * step), now, busy=True)
    return now


def test_rate_counts_busy_time_only_and_follows_changes() -> None:
    rate = Rate()
    rate.started(0.0)
    now = _drive(rate, 1e6, 2.0)
    assert rate.bytes_per_second == pytest.approx(1e6, rel=0.02)
    rate.confirmed(10_000, now + 0.01, busy=False)
    rate.started(now + 100.0)  # idle for long
    now = _drive(rate, 1e6, 1.0, now + 100.0)
    assert rate.bytes_per_second == pytest.approx(1e6, rel=0.05)
    _drive(rate, 1e5, 3.0, now)
    assert rate.bytes_per_second == pytest.approx(1e5, rel=0.1)


def test_a_chunk_takes_about_50_ms() -> None:
    rate = Rate()
    assert rate.chunk_bytes(1 << 20) == 64 << 10
    for speed, expected in ((1e6, 50_000), (1e5, 16 << 10), (1e9, 1 << 20)):
        rate.bytes_per_second = speed
        assert rate.chunk_bytes(1 << 20) == expected
    assert rate.chunk_bytes(1000) == 1000


def test_chunks_follow_what_congestion_control_has_found_before_the_rate_does() -> None:
    rate = Rate()
    rate.bytes_per_second, rate.believed = 1e6, 8e6
    assert rate.feeding == 8e6
    assert rate.chunk_bytes(1 << 20) == 400_000
    rate.bytes_per_second = 10e6
    assert rate.chunk_bytes(1 << 20) == 500_000


def test_the_smallest_round_trip_counts_and_gives_way_slowly() -> None:
    rate = Rate()
    for seconds in (0.05, 0.2, 0.2):
        rate.echoed(seconds)
    assert 0.05 < rate.round_trip < 0.06
    rate.echoed(0.02)
    assert rate.round_trip == 0.02


def test_silence_is_death_after_two_seconds_or_three_chunks() -> None:
    fast, slow = Rate(), Rate()
    fast.bytes_per_second, fast.round_trip = 1e7, 0.05
    slow.bytes_per_second, slow.round_trip = 4_000.0, 0.1
    assert Deadlines.allowed(fast, 1, 0.5) == 2.0
    assert Deadlines.allowed(slow, 1, 0.5) == pytest.approx(3 * ((16 << 10) / 4_000 + 0.1))
    assert Deadlines.allowed(fast, 1, 5.0) == 15.0
    deadlines = Deadlines(10.0, 10.0)
    assert not deadlines.silent(12.0, 2.0)
    assert deadlines.silent(12.1, 2.0)
    deadlines.heard(12.1)
    assert not deadlines.silent(14.0, 2.0)


def test_small_messages_do_not_make_a_link_slow() -> None:
    """Verdicts of 100 bytes over a round trip of 300 ms are not a rate of 300 bytes per second."""
    rate, now = Rate(), 0.0
    for _ in range(100):
        rate.started(now)
        now += 0.3
        rate.confirmed(100, now, busy=False)
    assert rate.bytes_per_second == 0.0
    assert Deadlines.allowed(rate, 1, 0.5) == 2.0
    for _ in range(8):  # what is really slow is found to be so
        rate.started(now)
        now += 2.0
        rate.confirmed(8_000, now, busy=True)
    assert rate.bytes_per_second == pytest.approx(4_000)


def test_own_sleep_excuses_the_peer() -> None:
    deadlines = Deadlines(0.0, 0.0)
    deadlines.excuse(60.0)  # the laptop was closed for a minute
    assert not deadlines.silent(61.0, 2.0)
    assert not deadlines.stuck(61.0, 2.0)
    assert deadlines.silent(62.5, 2.0)


def test_no_progress_is_noticed_with_growing_patience() -> None:
    deadlines = Deadlines(0.0, 0.0)
    assert deadlines.stuck(2.1, 2.0)
    assert not deadlines.stuck(4.2, 2.0)
    assert deadlines.stuck(6.2, 2.0)
    assert deadlines.broke() == 8.0
    deadlines.moved(7.0)
    assert not deadlines.stuck(14.9, 2.0)
    deadlines.patience = 1.0
    assert deadlines.stuck(14.9, 2.0)


def _probe(goodput: dict[int, float], first: int = 1, most: int = 16) -> StripeProbe:
    """Run a probe on a link whose goodput depends on the number of connections."""
    probe = StripeProbe(first, most)
    now = 0.0
    for _ in range(3000):
        now += 0.01
        speed = goodput[max(count for count in goodput if count <= probe.wanted)]
        probe.confirmed(int(speed * 0.01), now, Rate(), full=True)
        if probe.settled:
            break
    return probe


def test_connections_are_added_while_goodput_grows() -> None:
    assert _probe({1: 10e6, 2: 20e6, 4: 40e6, 8: 41e6}).wanted == 4
    assert _probe({1: 10e6, 2: 10.2e6}).wanted == 1
    assert _probe({1: 1e6, 2: 2e6, 4: 4e6, 8: 8e6, 16: 16e6}).wanted == 16
    assert _probe({4: 1e6, 8: 1e6}, first=4).wanted == 4
    assert StripeProbe(1, 1).settled


def test_a_settled_number_is_tried_again_later() -> None:
    probe = _probe({1: 10e6, 2: 10e6})
    assert (probe.settled, probe.wanted) == (True, 1)
    now, changed = 1000.0, False
    for _ in range(7000):
        now += 0.01
        changed |= probe.confirmed(1000, now, Rate(), full=True)
    assert changed


def test_frames_now_and_then_add_no_connection() -> None:
    """A frame of three chunks, confirmed a round trip after it set out, then nothing for a second: no two are alike."""
    rate, probe = Rate(), StripeProbe(1, 16)
    for number in range(400):
        size, now = 10_000 * (1 + number % 7), float(number)
        for chunk in range(3):
            probe.confirmed(size, now + 0.05 + 0.01 * chunk, rate, full=False)
    assert (probe.wanted, probe.settled) == (1, False)


def test_chunks_that_are_confirmed_one_at_a_time_are_many_before_they_say_anything() -> None:
    """At 50 ms each, eight chunks are seven or nine, as it happens; that is no growth."""
    rate, probe = Rate(), StripeProbe(1, 16)
    now = _drive(rate, 1e6, 2.0)
    assert rate.chunk_seconds == pytest.approx(0.05, rel=0.05)
    since, first = now, now
    while not probe.settled and now < first + 20:
        now += 0.05
        if probe.confirmed(50_000, now, rate, full=True):
            assert now - since > 3.1
            since = now
    assert probe.settled
    assert probe.wanted == 1
