"""The benchmark of a lost leader: what it makes of what it saw, and one run of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.faults.takeover import Loss, Takeover, report_of

_GOOD = Loss(leads=6.0, trains=8.0, missing=0, differing=0)


def test_the_worst_loss_counts() -> None:
    report = report_of([_GOOD, replace(_GOOD, leads=14.9, trains=20.0), _GOOD])
    assert report.passed
    assert report.rows == [(3, 6.0, 14.9, 8.0, 20.0)]


@pytest.mark.parametrize("bad", [{"leads": 15.1}, {"missing": 1}, {"differing": 1}])
def test_each_target_can_be_missed(bad: dict[str, float]) -> None:
    report = report_of([_GOOD, replace(_GOOD, **bad)])
    assert [check.passed for check in report.checks].count(False) == 1


@pytest.mark.slow
def test_a_lost_leader_costs_no_step() -> None:
    pytest.importorskip("sqlalchemy", reason="no SQLAlchemy: pip install 'farflung[sql]'")
    bench = Takeover()
    report = bench.run(bench.settings(quick=True), lambda _: None)
    assert report.figures["missing_steps"] == report.figures["differing_tensors"] == 0
