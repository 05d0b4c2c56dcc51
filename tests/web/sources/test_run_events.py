"""The events in a log, without its lines about single steps."""

from __future__ import annotations

from farflung.web.sources.run_events import RunEvent, run_events

DAY = "2026-11-23 04:47"


def test_events_are_the_newest_first_with_a_tone() -> None:
    lines = [
        f"{DAY}:01 training begins",
        f"{DAY}:02 step 1: loss 5.3589, 138 ms",
        f"{DAY}:03 worker ada is lost: connection reset",
        f"{DAY}:04 worker bob is slow but alive",
        f"{DAY}:05 plan 2: predicted step 18.8 ms",
        f"{DAY}:06 evaluation after step 20: loss 4.1",
    ]
    assert run_events(lines) == [
        RunEvent(f"{DAY}:05", "plan 2: predicted step 18.8 ms"),
        RunEvent(f"{DAY}:04", "worker bob is slow but alive", "warn"),
        RunEvent(f"{DAY}:03", "worker ada is lost: connection reset", "bad"),
        RunEvent(f"{DAY}:01", "training begins", "good"),
    ]


def test_lines_that_continue_belong_to_the_event_before() -> None:
    lines = ["cut off", f"{DAY}:01 the run failed:", "  out of memory", f"{DAY}:02 generated:", "  some text"]
    assert run_events(lines) == [RunEvent(f"{DAY}:01", "the run failed: out of memory", "bad")]


def test_checkpoints_in_a_row_do_not_hide_other_events() -> None:
    lines = [f"{DAY}:{10 + i} checkpoint after step {20 * i}" for i in range(40)]
    lines.insert(30, f"{DAY}:39 lost: worker eve is gone")
    assert [event.text for event in run_events(lines)] == [
        "checkpoint after step 780, the newest of 10",
        "lost: worker eve is gone",
        "checkpoint after step 580, the newest of 30",
    ]
