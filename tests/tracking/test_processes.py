"""Processes that report: real ones, which fail, hang and are killed; the run is never told more than one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farflung.tracking.cursor import Cursor
from farflung.tracking.processes import TrackerProcesses, tracker_command
from tests.support.records.recorded_runs import add_steps, begin_run, end_run, recorded_run

WAIT = 100.0


class Said:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, run: str, text: str) -> None:
        self.lines.append(f"{run}: {text}")


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def processes(said: Said) -> Iterator[TrackerProcesses]:
    found = TrackerProcesses(said, first_pause=0.1)
    yield found
    found.close()


def rows(root: Path) -> list[int]:
    lines = (root / "trackers/csv/metrics.csv").read_text().splitlines()[1:]
    return [int(line.split(",")[0]) for line in lines if line.split(",")[1]]


def test_a_run_is_reported(tmp_path: Path, processes: TrackerProcesses, said: Said) -> None:
    folder = recorded_run(tmp_path / "run-1")
    processes.begin("run-1", folder.root, ["csv"])
    processes.begin("run-1", folder.root, ["csv"])
    assert processes.wait(WAIT) == []
    assert rows(folder.root) == list(range(1, 21))
    assert said.lines == []


def test_a_process_ends_with_the_one_that_started_it_and_the_next_continues(tmp_path: Path, said: Said) -> None:
    folder = begin_run(tmp_path / "run-1")
    add_steps(folder, 0, 8)
    first = TrackerProcesses(said)
    first.begin("run-1", folder.root, ["csv"])
    while Cursor.load(folder.root, "csv").train < 8:
        assert first.wait(0.2) == ["csv"]
    first.close()
    assert not Cursor.load(folder.root, "csv").complete
    add_steps(folder, 8, 20)
    end_run(folder)
    second = TrackerProcesses(said)
    second.begin("run-1", folder.root, ["csv"])
    assert second.wait(WAIT) == []
    second.close()
    assert rows(folder.root) == list(range(1, 21))


def test_a_failure_is_one_line_and_is_tried_again(tmp_path: Path, said: Said) -> None:
    folder = recorded_run(tmp_path / "run-1")
    tries = tmp_path / "tries"
    code = f"import sys; open({str(tries)!r}, 'a').write('x'); sys.exit(3)"

    def command(name: str, place: Path) -> list[str]:
        if tries.exists() and len(tries.read_text()) >= 3:
            return tracker_command(name, place)
        return [sys.executable, "-c", code]

    processes = TrackerProcesses(said, command, first_pause=0.1)
    processes.begin("run-1", folder.root, ["csv"])
    while processes.wait(WAIT):
        pass
    processes.close()
    assert rows(folder.root) == list(range(1, 21))
    assert len(said.lines) == 2
    assert said.lines[0].startswith("run-1: warning: csv gets no report: its process ended with code 3")
    assert said.lines[0].endswith("training is not affected, the report is tried again")
    assert said.lines[1] == "run-1: csv has the whole run now"


def test_what_would_fail_again_is_not_tried_again(tmp_path: Path, processes: TrackerProcesses, said: Said) -> None:
    folder = recorded_run(tmp_path / "run-1")
    processes.begin("run-1", folder.root, ["neptun"])
    assert processes.wait(WAIT) == ["neptun"]
    assert len(said.lines) == 1
    assert "unknown tracker 'neptun'" in said.lines[0]
    assert said.lines[0].endswith(f"farflung report --to neptun {folder.root} sends the rest")
    assert Cursor.load(folder.root, "neptun").refused


def test_a_program_that_cannot_be_started_is_one_line(tmp_path: Path, said: Said) -> None:
    folder = recorded_run(tmp_path / "run-1")
    processes = TrackerProcesses(said, lambda name, place: [str(tmp_path / "gone")], first_pause=0.01)
    processes.begin("run-1", folder.root, ["csv"])
    while processes.wait(WAIT) and len(said.lines) < 2:
        pass
    processes.close()
    assert "its process cannot be started: No such file or directory" in said.lines[0]
    assert said.lines[1].endswith("sends the rest"), "it is given up some time after the end of the run"


def test_secrets_stay_in_the_environment(
    tmp_path: Path, processes: TrackerProcesses, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow is not installed here, or no server listens: whatever it says, the password is not shown."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2secret")
    folder = begin_run(tmp_path / "run-1", to="mlflow")
    add_steps(folder, 0, 3)
    processes.begin("run-1", folder.root, ["mlflow"])
    processes.wait(WAIT)
    assert len(said.lines) == 1
    texts = [*said.lines, *(path.read_text() for path in folder.root.rglob("*") if path.is_file())]
    assert not [text for text in texts if "hunter2secret" in text]
    assert json.loads((folder.root / "trackers/mlflow.json").read_text())["trouble"]
