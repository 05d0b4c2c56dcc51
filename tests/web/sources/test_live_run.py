"""A run in a list: its last loss is known without its metrics being read."""

from __future__ import annotations

from pathlib import Path

from farflung.telemetry import RunFolder, RunResult, StepRecord
from farflung.telemetry.records import EvaluationRecord
from farflung.web.sources.live_run import LiveRun
from tests.support.steps.small_runs import small_job


def finished(folder: Path, steps: int) -> RunFolder:
    files = RunFolder(folder)
    files.job.write_text(small_job().model_dump_json())
    for number in range(steps):
        files.append(StepRecord(step=number, loss=4.0 - number, seconds=0.5, elapsed=0.5, samples=8))
    if steps:
        files.append(EvaluationRecord(step=steps, loss=9.0, elapsed=1.0))
    files.result.write_text(RunResult(status="finished", steps=steps, seconds=2.0).to_json())
    return files


def test_the_summary_of_a_finished_run_has_its_last_loss(tmp_path: Path) -> None:
    finished(tmp_path, 3)
    run = LiveRun(tmp_path)
    run.refresh_summary()
    assert (len(run.series), run.loss) == (0, 2.0)


def test_a_run_that_is_read_has_its_newest_loss(tmp_path: Path) -> None:
    files = finished(tmp_path, 2)
    files.result.unlink()
    run = LiveRun(tmp_path)
    run.refresh()
    assert run.loss == 3.0


def test_a_run_without_steps_has_no_loss(tmp_path: Path) -> None:
    finished(tmp_path, 0)
    run = LiveRun(tmp_path)
    run.refresh_summary()
    assert run.loss is None
