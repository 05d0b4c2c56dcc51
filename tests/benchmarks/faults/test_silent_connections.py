"""The benchmark of silent connections: its checks, and that a quick run has every part."""

from __future__ import annotations

import pytest

from benchmarks.faults.silent_connections import SilentConnections, _median, _report
from farflung.telemetry import StepRecord


def test_the_checks_compare_with_the_targets() -> None:
    good, slow, shut = (
        _report(*figures, opened=7).checks for figures in ((1.0, 1.0, 3.0), (0.9, 1.0, 3.0), (1.0, 1.0, float("inf")))
    )
    assert [[check.passed for check in checks] for checks in (good, slow, shut)] == [[True, True], [False, True], [True, False]]


def test_steps_from_before_the_flood_that_are_read_during_it_do_not_count() -> None:
    records = (
        StepRecord(step=number, loss=1.0, seconds=1.0 if number < 50 else 3.0, elapsed=0.0, samples=1, learning_rate=0.1)
        for number in range(100)
    )
    assert _median(records, 5, first=10) == 1.0
    assert _median(records, 5, first=50) == 3.0
    assert next(records).step == 55


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_has_every_part() -> None:
    bench = SilentConnections()
    report = bench.run(bench.settings(quick=True), lambda line: None)
    assert set(report.figures) == {"before_seconds", "during_seconds", "speed_ratio", "joined_seconds", "opened"}
    assert report.checks[1].passed
