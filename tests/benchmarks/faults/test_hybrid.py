"""The benchmark of hybrid plans: draws, what its ways cost, how a process is cut off, a quick run."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.faults.hybrid import WAYS, HybridSettings, _report, draw_losses, timelines
from benchmarks.harness import outage
from benchmarks.harness.catalog import BENCHMARKS

NAMES = [f"h{index}" for index in range(5)]


@given(st.integers(0, 1000), st.floats(0.0, 1.0), st.floats(0.1, 100.0))
def test_each_is_lost_at_most_once_inside_of_a_batch(seed: int, share: float, length: float) -> None:
    losses = draw_losses(random.Random(seed), NAMES, share, length)
    assert set(losses) <= set(NAMES)
    assert all(0.0 <= at < length for at in losses.values())
    assert len(losses) == 5 or share < 1.0


def test_half_of_them_are_lost_with_a_chance_of_one_half() -> None:
    chance = random.Random(0)
    counts = [len(draw_losses(chance, NAMES, 0.5, 1.0)) for _ in range(1000)]
    assert 2.4 < sum(counts) / 1000 < 2.6


def test_what_a_restart_throws_away_is_the_time_of_the_loss() -> None:
    found = timelines({"a": 3.0, "b": 1.0})
    assert tuple(found) == WAYS
    assert found["takes over"] == (0.0, {"a": 3.0, "b": 1.0})
    assert found["first restarts"] == (1.0, {"a": 2.0, "b": 0.0})
    assert found["each restarts"] == (3.0, {"a": 0.0, "b": 0.0})
    assert timelines({}) == dict.fromkeys(WAYS, (0.0, {})), "without a loss they are alike"


def test_the_target_is_judged_for_each_way_and_chance() -> None:
    batches = [{"losses": {"a": 1.0}, "seconds": dict(zip(WAYS, (2.0, 2.5, 3.0), strict=True))}]
    found = {"cases": [{"chance": 0.9, "batches": batches}], "prediction_error": -0.06}
    report = _report(HybridSettings(chances=(0.9,)), found)
    checks = [(check.measured, check.passed) for check in report.checks]
    assert checks == [("1.25 x", False), ("1.50 x", True), ("-6.0%", False)]


def test_a_process_that_is_away_loses_its_connections_and_joins_when_it_is_back(tmp_path: Path, monkeypatch: Any) -> None:
    outage.send_away(tmp_path, ["other"])
    one = outage.Outage(tmp_path, "me")
    shut: list[int] = []
    monkeypatch.setattr(outage, "shut_connections", lambda: shut.append(1))
    one.look()
    one("worker.before_join", {})
    assert shut == []
    outage.send_away(tmp_path, ["me"])
    one.look()
    one.look()
    assert shut == [1], "they break once"
    assert outage.cuts(tmp_path) == 1
    joining = threading.Thread(target=one, args=("worker.before_join", {}))
    joining.start()
    one("worker.before_forward", {})
    assert joining.is_alive()
    outage.send_away(tmp_path, [])
    one.look()
    joining.join()


@pytest.mark.slow
def test_a_quick_run_has_every_part() -> None:
    chosen = BENCHMARKS.get("hybrid")
    report: Any = chosen.run(chosen.settings(quick=True), lambda text: None)
    (case,) = report.figures["cases"]
    assert set(case["batches"][0]["seconds"]) == set(WAYS)
    assert list(case["batches"][0]["losses"]) == ["helper-0"]
    assert report.figures["joined_again"] >= 1, "the helper was cut off and came back"
    assert [check.passed for check in report.checks] == [None, None, None]
