"""``farflung report`` and the line that ends ``farflung submit``."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.cli.main import main
from farflung.cli.report import report_here
from farflung.job import JobSpec, to_json
from farflung.plan import Plan, Stage
from farflung.telemetry import RunFolder, StepRecord


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


def test_no_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path)])
    assert ended.value.code == 12
    assert "is not a complete run folder, it lacks job.json, plan.json, metrics.jsonl" in capsys.readouterr().err


def test_after_submit(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run-1", "first")
    assert report_here(folder) == f"report: {folder / 'report.html'}"
    elsewhere = tmp_path / "elsewhere"
    assert report_here(elsewhere) == f"report: run on the broker's machine: farflung report {elsewhere}"
    started = run_folder(tmp_path / "run-2", "second", losses=())
    assert report_here(started) == "", "a run that ended before its first step has its cause, and no report"
