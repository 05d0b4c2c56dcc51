"""The benchmark of many members: what it makes of what it saw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.commands.members import Members, MembersSettings, _report

GOOD: dict[str, Any] = {
    "cpu": 0.2,
    "memory": 5e8,
    "threads": 20,
    "descriptors": 3000,
    "status_seconds": [0.2, 0.3],
    "join_seconds": [0.4, 0.5],
    "death_seconds": {"frozen": [5.2, 5.9], "killed": [0.1]},
    "planning": [{"seconds": 1.0, "status_seconds": 0.5, "devices": 16}],
    "lost": {},
}
SOAK = {"growth": {"memory": 1.01, "threads": 1.0, "descriptors": 1.0}, "missing": []}


@pytest.mark.parametrize(
    ("figures", "missed"),
    [
        ({}, []),
        ({"cpu": 0.31}, ["CPU"]),
        ({"memory": 1.6e9}, ["memory"]),
        ({"status_seconds": [0.1, 1.1]}, ["status"]),
        ({"join_seconds": [0.1, 1.1]}, ["join"]),
        ({"death_seconds": {"frozen": [5.0, 6.1], "killed": [0.1]}}, ["detecting a frozen member"]),
        ({"lost": {"machine-01": "it was fenced"}}, ["live members lost"]),
        ({"soak": SOAK | {"growth": {"memory": 1.06}}}, ["soak: memory, end over beginning"]),
        ({"soak": SOAK | {"missing": ["machine-01"]}}, ["soak: live members that the broker lacks"]),
    ],
)
def test_each_target_can_be_missed(figures: dict[str, Any], missed: list[str]) -> None:
    report = _report(GOOD | {"soak": SOAK} | figures, MembersSettings(minutes=30.0))
    assert [check.name for check in report.checks if not check.passed] == missed


def test_a_quick_run_is_not_judged() -> None:
    report = _report(GOOD, MembersSettings(quick=True))
    assert report.passed is None


@pytest.mark.slow
def test_a_small_cluster_is_measured() -> None:
    bench = Members()
    report = bench.run(replace(bench.settings(quick=True), members=8, minutes=0.05, times=1), lambda line: None)
    assert report.figures["lost"] == {}
    assert report.figures["soak"]["missing"] == []
    assert [one["devices"] for one in report.figures["planning"]] == [3]
