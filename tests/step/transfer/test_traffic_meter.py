"""What each step sends is added up, reported once, and forgotten."""

from __future__ import annotations

from farflung.step.transfer.traffic_meter import LinkUse, TrafficMeter

PAIR = (0, 1)


def test_a_step_is_reported_when_its_last_frame_is_encoded() -> None:
    meter, found = TrafficMeter(), list[LinkUse]()
    for _ in range(2):
        assert meter.posted(0) == 0
    meter.encoded(0, PAIR, (10, 40), 0.5)
    meter.when_done(0, found.append)
    assert found == []
    meter.encoded(0, PAIR, (20, 40), 0.25)
    assert found == [LinkUse(sent={PAIR: 30}, dense={PAIR: 80}, encode_seconds=0.75)]


def test_a_step_without_frames_is_reported_at_once() -> None:
    meter, found = TrafficMeter(), list[LinkUse]()
    meter.when_done(3, found.append)
    assert found == [LinkUse()]


def test_a_frame_that_comes_after_the_end_of_its_step_counts_for_the_next_one() -> None:
    """Transport threads send pieces of means at any time."""
    meter, found = TrafficMeter(), list[LinkUse]()
    meter.when_done(0, found.append)
    counts = meter.posted(0)
    assert counts == 1
    meter.encoded(counts, PAIR, (10, 40), 0.0)
    meter.when_done(1, found.append)
    assert found == [LinkUse(), LinkUse(sent={PAIR: 10}, dense={PAIR: 40})]
