"""Which faults are drawn, and how records are judged."""

from __future__ import annotations

import pytest

from farflung.chaos.faults import Fault, Recovery, draw_faults, judge
from farflung.telemetry import RecoveryRecord, StepRecord


def step(number: int) -> StepRecord:
    return StepRecord(step=number, loss=1.0, seconds=1.0, elapsed=1.0, samples=4)


def test_a_seed_gives_one_plan_of_faults() -> None:
    faults = draw_faults(7, 6, 100, ["a", "b", "broker"])
    assert faults == draw_faults(7, 6, 100, ["a", "b", "broker"]) != draw_faults(8, 6, 100, ["a", "b", "broker"])
    steps = [fault.after_step for fault in faults]
    assert steps == sorted(steps)
    assert steps[-1] < 99
    assert {fault.victim for fault in faults[:3]} == {"a", "b", "broker"}, "each once before any a second time"
    with pytest.raises(ValueError, match="60 faults need somebody to kill and at least 120 steps, got 1 and 100"):
        draw_faults(0, 60, 100, ["a"])


def test_samples_are_counted_once() -> None:
    recovery = RecoveryRecord(step=1, attempt=2, replayed=2, pause=0.5, elapsed=1.0)
    records = [step(0), step(1), step(2), recovery, step(1), step(2), step(3)]
    times = [Recovery(fault=Fault(after_step=2, victim=name), seconds=seconds) for name, seconds in (("a", 1.0), ("b", 3.0))]
    found = judge(records, times, steps=4, samples=4)
    assert (found.lost, found.repeated, found.replayed, found.pauses) == (0, 0, 2, (0.5,))
    assert found.percentile(0.5) == 2.0
    assert found.percentile(1.0, ["a"]) == 1.0
    assert found.percentile(0.5, ["c"]) is None
    assert judge([step(0), step(0), step(2)], (), steps=3, samples=4).lost == 4
    assert judge([step(0), step(0), step(1), step(2)], (), steps=3, samples=4).repeated == 4
