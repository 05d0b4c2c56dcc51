"""``report`` of ``train``: trackers by name and of the caller, here and on the workers of a ticket."""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from farflung import Evaluation, JobSpec, ReportSpec, StopTraining, train
from farflung.errors import InputError
from farflung.telemetry.records import StepRecord
from farflung.tracking import TrackedRun
from tests.support.records.recorded_runs import RecordingTracker
from tests.support.runs.small_training import PLACES, Net, batch, held_out, same, trained


def rows(root: Path, name: str = "train/loss") -> dict[int, float]:
    with (root / "trackers/csv/metrics.csv").open(newline="") as file:
        return {int(row["step"]): float(row[name]) for row in csv.DictReader(file) if row[name]}


@PLACES
def test_losses_are_those_of_the_result(place: str | None, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = RecordingTracker()
    evaluation = Evaluation(batch_fn=held_out, batches=2, every=2)
    result = trained(place, clip_norm=0.5, evaluation=evaluation, report=["csv", ReportSpec(project="p", name="n"), mine])
    root = tmp_path / "runs" / result.run
    expected = dict(enumerate(result.losses, start=1))
    assert rows(root) == expected
    assert {step: values["train/loss"] for step, values in mine.logged if "train/loss" in values} == expected
    assert mine.steps("eval/loss") == [record.step for record in result.evaluations]
    assert mine.steps("train/grad_norm") == [1, 2, 3, 4]
    assert mine.run is not None
    assert (mine.run.project, mine.run.name, mine.run.id) == ("p", "n", result.run)
    assert mine.run.settings["job.optimizer.name"] == "adamw"
    assert mine.run.settings["plan.stages"] == len(result.plan.stages)
    assert mine.status == "finished"
    assert same(result, trained(place, clip_norm=0.5)), "reporting changes no number"


def test_a_run_with_a_folder_is_reported_from_there_and_resumes_in_the_same_record(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def stop(record: StepRecord) -> None:
        if record.step == 1:
            raise StopTraining

    first, second = RecordingTracker(), RecordingTracker()
    early = trained(folder=folder, report=["csv", first], on_step=stop)
    assert early.stopped
    assert first.status == "stopped"
    done = trained(folder=folder, resume=folder, report=["csv", second])
    assert rows(folder) == dict(enumerate(early.losses + done.losses, start=1))
    assert first.steps("train/loss") + second.steps("train/loss") == [1, 2, 3, 4]
    assert first.run is not None
    assert second.run is not None
    assert first.run.id == second.run.id


class Broken(RecordingTracker):
    def begin(self, run: TrackedRun) -> Mapping[str, int] | None:
        raise OSError("no route to http://me:secret1@tracker.example")


@PLACES
def test_a_tracker_that_fails_changes_nothing(
    place: str | None, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING, "farflung"):
        result = trained(place, report=Broken())
    assert same(result, trained(place))
    said = [record.getMessage() for record in caplog.records if "Broken" in record.getMessage()]
    assert said[0] == "warning: Broken gets no report: no route to http://***@tracker.example; training is not affected"
    assert len(said) <= 2


def test_a_folder_that_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("a file")
    with caplog.at_level(logging.WARNING, "farflung"):
        assert len(trained(report="csv").losses) == 4
    assert "warning: the run is not reported any more: cannot write runs/run-" in caplog.text


def test_a_run_that_fails_is_reported_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = RecordingTracker()

    def broken(step: int, micro_batch: int) -> object:
        if step == 2:
            raise ValueError("no more data")
        return batch(step, micro_batch)

    with pytest.raises(ValueError, match="no more data"):
        trained(report=mine, batch_fn=broken)
    assert mine.status == "failed"
    assert ("events/end", "no more data") in [(name, text) for _, name, text in mine.texts]


@pytest.mark.parametrize(
    ("report", "text"),
    [
        ("neptun", r"report: unknown tracker 'neptun': known are csv, mlflow, tensorboard, trackio, wandb"),
        (["csv", 3], r"report=3: pass the name of a tracker, a ReportSpec, or an object with the methods begin, log"),
        (RecordingTracker, r"report=<class .*: pass the name of a tracker"),
    ],
)
def test_what_is_no_tracker_is_refused_before_the_capture(report: object, text: str) -> None:
    with pytest.raises(InputError, match=text):
        train(Net(), batch, steps=1, report=report)  # type: ignore[arg-type]


def test_a_job_does_not_take_the_argument(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"job=JobSpec\(report=\.\.\.\) is not allowed here"):
        trained(job=JobSpec(report=ReportSpec(to=("csv",))))
