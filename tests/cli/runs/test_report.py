"""``farflung report`` and the line that ends ``farflung submit``."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.cli.main import main
from farflung.cli.runs.report import report_here
from farflung.errors import TrainingError
from farflung.job import JobSpec, to_json
from farflung.plan import Plan, Stage
from farflung.telemetry import RunFolder, RunResult, StepRecord
from farflung.tracking import TRACKERS


def run_folder(root: Path, name: str, losses: tuple[float, ...] = (3.0, 2.0)) -> Path:
    folder = RunFolder(root)
    root.mkdir()
    folder.job.write_text(to_json(JobSpec(name=name, steps=2)))
    stage = Stage(index=0, start=0, stop=1, device="laptop")
    folder.plan.write_text(Plan(graph_hash="0" * 64, planner="equal_number", stages=(stage,)).to_json())
    for index, loss in enumerate(losses):
        folder.append(StepRecord(step=index, loss=loss, seconds=1.0, elapsed=index + 1.0, samples=1))
    return root


def test_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "run-1", "first")
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder)])
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert "first" in (folder / "report.html").read_text()


@pytest.mark.parametrize(("second", "label"), [("other", "other"), ("first", "run-2")])
def test_several_runs_are_compared(tmp_path: Path, second: str, label: str) -> None:
    folders = [run_folder(tmp_path / "run-1", "first"), run_folder(tmp_path / "run-2", second)]
    target = tmp_path / "both.md"
    with pytest.raises(SystemExit):
        main(["report", *map(str, folders), "--out", str(target)])
    assert f"| {label} |" in target.read_text()


def test_a_markdown_report_says_which_pictures_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, target = run_folder(tmp_path / "run-1", "first"), tmp_path / "my report.md"
    with pytest.raises(SystemExit):
        main(["report", str(folder), "--out", str(target)])
    count = len(list(tmp_path.glob("my report-*.svg")))
    assert count > 1
    assert capsys.readouterr().out.strip() == f"{target}, with {count} pictures beside it: my report-*.svg"


def test_the_figures_at_the_top_say_what_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``submit`` shows the loss of the last step and the time of the whole run: both are there, too."""
    folder, target = run_folder(tmp_path / "run-1", "first", losses=tuple(range(8, 0, -1))), tmp_path / "r.md"
    RunFolder(folder).job.write_text(to_json(JobSpec(name="first", steps=8)))
    RunFolder(folder).result.write_text(RunResult(status="finished", steps=8, seconds=9.5).to_json())
    with pytest.raises(SystemExit):
        main(["report", str(folder), "--out", str(target)])
    text = target.read_text()
    assert "- loss of the last step: **1.0000**\n- loss, mean of the last 2 steps: **1.5**" in text
    assert "- time to the end of the last step: **8.00 s**\n- time of the whole run: **9.50 s**" in text


def test_no_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path)])
    assert ended.value.code == 12
    assert "is not a complete run folder, it lacks job.json, plan.json, metrics.jsonl" in capsys.readouterr().err


def test_a_run_folder_at_hand_needs_neither_a_broker_nor_a_ticket(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path / "home"))
    folder = run_folder(tmp_path / "copied", "gpt")
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as over:
        main(["report", "."])
    assert over.value.code == 0
    assert capsys.readouterr().out == "report.html\n"
    assert "<title>gpt" in (folder / "report.html").read_text()
    with pytest.raises(SystemExit) as over:
        main(["report", "run-1"])
    assert over.value.code == 2
    assert capsys.readouterr().err == (
        f"farflung: there is no run 'run-1' in {tmp_path}/home/broker/runs, and no such folder; runs there: none; "
        "of a broker elsewhere: run this on its machine, or copy the run's folder and name it\n"
    )


def test_after_submit(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run-1", "first")
    assert report_here(folder) == f"report: {folder / 'report.html'}"
    elsewhere = tmp_path / "elsewhere"
    assert report_here(elsewhere) == f"report: run on the broker's machine: farflung report {elsewhere}"
    started = run_folder(tmp_path / "run-2", "second", losses=())
    assert report_here(started) == "", "a run that ended before its first step has its cause, and no report"


def test_a_run_is_sent_to_a_tracker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "run-1", "first")
    for text in ("csv has steps 1 to 2; the run is not over", "csv has no new step; the run is not over"):
        with pytest.raises(SystemExit) as ended:
            main(["report", str(folder), "--to", "csv"])
        assert ended.value.code == 0
        assert capsys.readouterr().out.strip() == f"run-1: {text} ({folder}/trackers/csv)"
    RunFolder(folder).result.write_text(RunResult(status="finished", steps=2, seconds=1.0).to_json())
    with pytest.raises(SystemExit):
        main(["report", str(folder), "--to", "csv", "--follow"])
    assert capsys.readouterr().out.strip() == f"run-1: csv has no new step ({folder}/trackers/csv)"
    assert not (folder / "report.html").exists()


def test_a_tracker_that_fails_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tmp_path / "run-1", "first")

    def fail(spec: object) -> None:
        raise OSError("no answer of http://me:secret1@host")

    monkeypatch.setattr(TRACKERS, "get", lambda name: fail)
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder), "--to", "mlflow"])
    assert ended.value.code == TrainingError.exit_code
    assert "the tracker 'mlflow' failed: no answer of http://***@host; check its server" in capsys.readouterr().err


def test_an_unknown_tracker_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(run_folder(tmp_path / "run-1", "first")), "--to", "neptun"])
    assert ended.value.code == 2
    assert "--to: unknown tracker 'neptun': known are csv, mlflow" in capsys.readouterr().err
