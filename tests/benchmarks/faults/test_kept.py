"""The benchmark of what faults leave of the throughput: its arithmetic, and that a quick run has every part."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.faults.kept import KeptSettings, Seen, _report, kept_of
from benchmarks.harness.catalog import BENCHMARKS


def test_the_share_of_who_was_there_is_by_time() -> None:
    seen = Seen(begin=10.0, end=40.0, steps=45, devices=[(2.0, 8), (20.0, 7), (30.0, 6)])
    assert seen.share(8) == pytest.approx((8 + 7 + 6) / 3 / 8)
    kept, of_share = kept_of(seen, 2.0, 8)
    assert kept == pytest.approx(0.75)
    assert of_share == pytest.approx(0.75 * 24 / 21)


def test_each_spacing_has_its_own_target() -> None:
    cases = [
        {"spacing": spacing, "faults": 1, "kept": 0.8, "share": 0.9, "kept_of_share": 0.9, "steps": 3}
        for spacing in (30.0, 120.0)
    ]
    checks = _report(KeptSettings(), {"cases": cases}).checks
    assert [(check.target, check.passed) for check in checks] == [("85%", True), ("95%", False)]


@pytest.mark.slow
def test_a_quick_run_has_every_part() -> None:
    chosen = BENCHMARKS.get("kept")
    report: Any = chosen.run(chosen.settings(quick=True), lambda text: None)
    (case,) = report.figures["cases"]
    assert case["share"] <= 1.0
    assert case["seconds"] >= 8.0
    assert report.figures["steps_per_second"] > 0
