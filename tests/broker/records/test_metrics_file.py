"""Records of a run whose folder is deleted: the newest ones are written again, and readers get the right lines."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from farflung.broker.records.metrics_file import _MOST, MetricsFile
from farflung.errors import DataError
from farflung.telemetry import RunFolder, StepRecord


def record(step: int) -> StepRecord:
    return StepRecord(step=step, loss=1.0, seconds=1.0, elapsed=1.0, samples=4)


def steps(folder: RunFolder) -> list[int]:
    return [found.step for found in folder.records() if isinstance(found, StepRecord)]


def test_the_newest_records_are_written_again_and_are_found_by_their_numbers(tmp_path: Path) -> None:
    said: list[str] = []
    folder = RunFolder(tmp_path / "run")
    folder.root.mkdir()
    folder.append(record(0))  # by the broker before this one
    metrics = MetricsFile(folder, said.append, lines=1)
    for step in range(1, _MOST + 3):
        metrics.append(record(step))
    assert len(metrics.older(0, 5)) == 5
    shutil.rmtree(folder.root)
    metrics.append(record(_MOST + 3))
    assert steps(folder) == list(range(3, _MOST + 4))
    assert metrics.older(1, 5) == [record(step).to_line() for step in (3, 4)]
    assert metrics.older(0, 2) == []
    again = f"was deleted or moved away during the run; it was made again with {_MOST} of {_MOST + 3} records"
    assert said == [f"{folder.root} {again}, without earlier checkpoints: stop the run if you do not want it"]
    shutil.rmtree(folder.root)
    metrics.append(record(_MOST + 4))
    assert steps(folder) == list(range(4, _MOST + 5))
    assert len(said) == 2


def test_a_folder_that_can_not_be_made_again_is_an_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "run")
    folder.root.mkdir(parents=True)
    metrics = MetricsFile(folder, pytest.fail)
    metrics.append(record(0))
    shutil.rmtree(tmp_path / "runs")
    text = r"cannot make .*run again, which was deleted or moved away: No such file or directory; start this again"
    with pytest.raises(DataError, match=text):
        metrics.append(record(1))
