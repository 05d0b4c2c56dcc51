"""Figures of a run from its newest steps."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from farflung.cluster import Device, Topology
from farflung.plan import Plan
from farflung.plan.model import CodecChoice
from farflung.telemetry import RunFolder, RunResult, StepRecord
from farflung.telemetry.records import CodecUse
from farflung.units import Bytes, FlopsPerSecond
from farflung.web.pages.run_tables import headline
from farflung.web.reports.run import load_run
from farflung.web.reports.tables import headline as report_headline
from farflung.web.sources.live_run import LiveRun
from farflung.web.sources.run_figures import device_use, link_uses, pace, smoothed, traffic
from tests.support.steps.small_runs import small_job, small_plan


def run_in(folder: Path, steps: int = 3, plan: Plan | None = None) -> LiveRun:
    """A run of two devices whose steps take half a second."""
    files = RunFolder(folder)
    files.job.write_text(small_job(steps=10).model_dump_json())
    files.plan.write_text((plan or small_plan(codec=CodecChoice(name="int8"))).to_json())
    devices = tuple(Device(name=name, memory=Bytes(1e9), speed=FlopsPerSecond(1e9)) for name in ("a", "b"))
    topology = Topology.from_matrices([[0, 0.01], [0.01, 0]], [[1, 1e6], [1e6, 1]])
    topology = topology.with_devices(devices) if set(topology.names) != {"a", "b"} else topology
    files.topology.write_text(topology.to_json())
    for number in range(steps):
        files.append(
            StepRecord(
                step=number,
                loss=4.0 - number,
                seconds=0.5,
                elapsed=0.5 * (number + 1),
                samples=8,
                tokens=80,
                predicted_seconds=0.4,
                link_bytes={(0, 1): 100_000, (1, 0): 50_000},
                dense_bytes={(0, 1): 400_000, (1, 0): 200_000},
                busy_seconds={0: 0.1, 1: 0.25},
                codecs={(0, 1): CodecUse(error=0.02)},
            )
        )
    run = LiveRun(folder)
    run.refresh()
    return run


def test_pace_and_remaining_time(tmp_path: Path) -> None:
    found = pace(run_in(tmp_path))
    assert found is not None
    assert (found.covers, found.step_seconds, found.ratio, found.remaining) == ("newest 3 steps", 0.5, 1.25, 3.5)
    assert (found.samples_per_second, found.tokens_per_second) == (16.0, 160.0)


def test_nothing_is_known_before_the_first_step(tmp_path: Path) -> None:
    run = run_in(tmp_path, steps=0)
    assert (pace(run), device_use(run), link_uses(run), traffic(run)) == (None, {}, [], {})


def test_devices_compute_a_share_of_the_step(tmp_path: Path) -> None:
    assert device_use(run_in(tmp_path)) == pytest.approx({"a": 0.2, "b": 0.5})


def test_links_have_traffic_a_share_of_their_bandwidth_and_an_error(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    forward, backward = link_uses(run)
    assert (forward.source, forward.target, forward.nbytes, forward.dense, forward.codec) == ("a", "b", 1e5, 4e5, "int8")
    assert forward.share == pytest.approx(0.2)
    assert (forward.error, backward.error) == (pytest.approx(0.02), None)
    assert traffic(run) == {("a", "b"): pytest.approx(2e5), ("b", "a"): pytest.approx(1e5)}


def test_a_run_that_is_over_has_no_traffic_and_no_remaining_time(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    run.folder.result.write_text(RunResult(status="finished", steps=3, seconds=2.0).to_json())
    run.refresh()
    found = pace(run)
    assert found is not None
    assert (found.remaining, traffic(run)) == (None, {})


def test_a_run_that_is_over_has_the_figures_of_its_report(tmp_path: Path) -> None:
    run = run_in(tmp_path, steps=0)
    for number in range(60):
        seconds, predicted = (0.5, 0.4) if number < 35 else (0.9, None if number % 2 else 0.5)
        run.folder.append(
            StepRecord(step=number, loss=1.0, seconds=seconds, elapsed=float(number), samples=8, predicted_seconds=predicted)
        )
    run.refresh()
    during = pace(run)
    run.folder.result.write_text(RunResult(status="finished", steps=60, seconds=60.0).to_json())
    run.refresh()
    after, report = pace(run), load_run(tmp_path)
    assert during is not None
    assert after is not None
    assert (during.covers, during.step_seconds, during.ratio) == ("newest 20 steps", 0.9, 1.8)
    assert (after.covers, after.step_seconds, after.ratio) == ("median", report.median_seconds, report.predicted_ratio)
    assert ("step time, median", "500 ms") in headline(run)
    assert ("measured / predicted", "1.25") in headline(run)
    shared = {"step time, median", "measured / predicted"}
    assert {one for one in headline(run) if one[0] in shared} == {one for one in report_headline(report) if one[0] in shared}


def test_smoothing_leaves_out_what_is_no_number() -> None:
    assert smoothed([math.nan, 1.0, math.nan, 3.0], 3) == 2.0
    assert math.isnan(smoothed([math.nan], 0))
