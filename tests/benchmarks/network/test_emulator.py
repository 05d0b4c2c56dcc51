"""The emulator's benchmark: what it needs, how it judges, and that it measures what was set."""

from __future__ import annotations

import os
from typing import Any

import pytest

from benchmarks.harness.base import override
from benchmarks.harness.catalog import BENCHMARKS
from benchmarks.network.emulator import EmulatorSettings, _checks
from farflung.errors import EmulationError


def silent(text: str) -> None:
    del text


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EmulationError, match="emulation needs root"):
        BENCHMARKS.get("emulator").run(EmulatorSettings(quick=True), silent)


@pytest.mark.parametrize(
    ("trip", "rate", "up", "verdict"),
    [
        (0.9, 0.04, 1.9, [True, True, True]),
        (-1.1, 0.04, 1.9, [False, True, True]),
        (0.9, -0.06, 1.9, [True, False, True]),
        (0.9, 0.04, 2.1, [True, True, False]),
    ],
)
def test_each_target_is_judged_by_its_worst(trip: float, rate: float, up: float, verdict: list[bool]) -> None:
    idle = [{"error_ms": 0.1}, {"error_ms": trip}]
    rates = [{"error": 0.01}, {"error": rate}]
    assert [check.passed for check in _checks(EmulatorSettings(), idle, rates, up)] == verdict
    assert [check.passed for check in _checks(EmulatorSettings(quick=True), idle, rates, up)] == [None] * 3


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_it_measures_what_was_set() -> None:
    chosen = BENCHMARKS.get("emulator")
    settings = override(chosen.settings(quick=True), ["rtts_ms=4,30", "rates=20/4,60/4", "probes=5"])
    report: Any = chosen.run(settings, silent)
    for key in ("idle", "loaded"):
        for item in report.figures[key]:
            assert item["set_ms"] <= item["min_ms"] <= item["median_ms"] <= item["max_ms"]
    assert [item["median_ms"] < 20 for item in report.figures["idle"]] == [True, False]
    for item in report.figures["rates"]:
        assert 0.5 * item["set_mbit"] < item["measured_mbit"] < 1.05 * item["set_mbit"]
    assert len(report.figures["up_seconds"]) == 1
    with pytest.raises(EmulationError, match="no TCP congestion control 'warp'; known are"):
        chosen.run(override(settings, ["congestion=warp"]), silent)
