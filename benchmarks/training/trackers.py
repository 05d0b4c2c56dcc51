"""``trackers``: what web server, metrics and experiment trackers cost a training step. Two figures.

CPU time: on the way of a step, a worker adds to sums, and the broker counts each record. Beside the step, a process of low
priority reads the records, and Prometheus reads the page. Their CPU time counts as if it were taken from the step.

Step time: of one run of two workers, in alternating blocks with and without dashboard, trackers and scrapes (``reported_run``).
This figure is judged where its 95 % interval is narrower than the target, which needs an idle machine with four cores.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.training.reported_run import reported_run
from farflung.broker.records.latest_records import LatestRecords
from farflung.integrations.metrics.definitions import MOST_WORKERS
from farflung.integrations.metrics.worker import StepTotals, WorkerCollector
from farflung.integrations.trackers.csv_file import CsvTracker
from farflung.integrations.trackers.tensorboard import TensorBoardTracker
from farflung.job import make_job, to_json
from farflung.messages.conversions.step_reports import StepReport
from farflung.telemetry.folder import RunFolder
from farflung.telemetry.records import RunResult, StepRecord
from farflung.tracking import MakeTracker, RunFollower
from farflung.transports.base import LinkStatistics

__all__ = ["Trackers", "TrackersSettings"]

_SHARE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackersSettings(Settings):
    """``steps`` that are reported, in ``rounds``; ``step_seconds``: the step of which everything together may take 0.5 %;
    ``scrape_seconds``: how often Prometheus reads a page; ``peers`` of a worker. ``pairs`` of blocks of ``block`` steps, with a
    model of ``width``, are compared."""

    steps: int = 2000
    rounds: int = 7
    step_seconds: float = 0.5
    scrape_seconds: float = 15.0
    peers: int = 16
    pairs: int = 60
    block: int = 8
    width: int = 256


class Trackers:
    """Cost of a reported step."""

    name = "trackers"
    summary = "CPU time that trackers and metrics take from a training step"

    def settings(self, quick: bool) -> TrackersSettings:
        """Quick: few steps."""
        return TrackersSettings(quick=True, steps=50, rounds=2, pairs=2, block=2, width=32) if quick else TrackersSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, TrackersSettings)
        say(f"{settings.rounds} rounds of {settings.steps} steps")
        costs = {
            "worker": _microseconds(settings, lambda: _worker(settings.steps)),
            "broker": _microseconds(settings, lambda: _broker(settings.steps)),
            "csv": _microseconds(settings, lambda: _followed(settings.steps, CsvTracker)),
            "tensorboard": _microseconds(settings, lambda: _followed(settings.steps, TensorBoardTracker)),
        }
        page = _microseconds(settings, lambda: _pages(settings)) * settings.steps  # of one page
        scraped = page * settings.step_seconds / settings.scrape_seconds  # of a step
        share = (sum(costs.values()) + scraped) * 1e-6 / settings.step_seconds
        waits = (costs["worker"] + costs["broker"]) * 1e-6 / settings.step_seconds
        check = Check(
            name=f"a step of {settings.step_seconds:g} s with CSV, TensorBoard and Prometheus",
            target=f"{_SHARE:.1%} of its time at most",
            measured=f"{share:.3%}",
            passed=None if settings.quick else share <= _SHARE,
        )
        say(f"{settings.pairs} pairs of blocks with and without")
        with tempfile.TemporaryDirectory() as folder:
            compared = reported_run(
                Path(folder) / "run", say, pairs=settings.pairs, block=settings.block, width=settings.width, seed=settings.seed
            )
        wide = compared["uncertainty"] > _SHARE
        slower = Check(
            name="a step beside dashboard, trackers and scrapes",
            target=f"{_SHARE:.1%} slower at most",
            measured=f"{compared['change']:+.2%} ({compared['low']:+.2%} to {compared['high']:+.2%})",
            passed=None if settings.quick or wide else compared["change"] <= _SHARE,
            note=f"chance alone moves the figure by {compared['uncertainty']:.2%}" if wide else "",
        )
        rows = [*((name, f"{cost:.1f} us of a step") for name, cost in costs.items()), ("page of metrics", f"{page:.0f} us")]
        rows.append(("step time with and without", slower.measured))
        figures = {
            "microseconds": costs,
            "page_microseconds": page,
            "share": share,
            "share_on_the_way": waits,
            "compared": compared,
        }
        figures |= {"compared": compared}
        return Report(figures=figures, columns=("part", "cost"), rows=rows, checks=(check, slower))


def _record(step: int) -> StepRecord:
    links = {(stage, stage + 1): 1000 + step for stage in range(4)}
    return StepRecord(
        step=step,
        loss=1.0,
        seconds=0.5,
        elapsed=0.5 * step,
        samples=64,
        tokens=8192,
        link_bytes=links,
        dense_bytes=links,
    )


def _worker(steps: int) -> None:
    totals, report = StepTotals(), StepReport(step=0, seconds=0.5, busy=0.4, wait=0.1, sent={}, dense={}, stage_busy={0: 0.4})
    for _ in range(steps):
        totals.step("run", report)


def _broker(steps: int) -> None:
    latest = LatestRecords()
    for step in range(steps):
        latest.take(_record(step))


def _followed(steps: int, make: MakeTracker) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        run.job.write_text(to_json(make_job({"steps": steps})), encoding="utf-8")
        run.metrics.write_text("".join(_record(step).to_line() for step in range(steps)), encoding="utf-8")
        run.result.write_text(RunResult(status="finished", steps=steps, seconds=1.0).to_json(), encoding="utf-8")
        RunFollower(run.root, "tracker", make).follow(lambda seconds: True)


def _pages(settings: TrackersSettings) -> None:
    links = {f"peer-{number}": LinkStatistics() for number in range(min(settings.peers, MOST_WORKERS))}
    for _ in WorkerCollector(name="a", totals=StepTotals(), links=lambda: links).collect():
        pass


def _microseconds(settings: TrackersSettings, work: Callable[[], object]) -> float:
    """CPU time of ``work`` for each step, the median of all rounds; the first call is for imports."""
    work()
    found = []
    for _ in range(settings.rounds):
        begin = time.process_time()
        work()
        found.append((time.process_time() - begin) / settings.steps * 1e6)
    return statistics.median(found)
