"""CSV files are read by Python's own reader; a crash leaves no half row."""

from __future__ import annotations

import csv
from pathlib import Path

from farflung.integrations.trackers.csv_file import CsvTracker
from farflung.tracking import RunFollower
from tests.support.records.recorded_runs import recorded_run


def table(root: Path) -> list[dict[str, str]]:
    with (root / "trackers/csv/metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run-1")
    RunFollower(folder.root, "csv", CsvTracker).follow(lambda seconds: True)
    steps = [row for row in table(folder.root) if row["train/loss"]]
    assert [int(row["step"]) for row in steps] == list(range(1, 21))
    assert [float(row["train/loss"]) for row in steps] == [3.0 / step for step in range(1, 21)], "no digit is lost"
    assert [row["eval/loss"] for row in table(folder.root) if row["eval/loss"]] == ["2.0"] * 4
    with (folder.root / "trackers/csv/texts.csv").open(newline="") as file:
        assert [row[:2] for row in csv.reader(file)] == [["12", "events/recovery"], ["20", "samples/generated"]]


def test_a_row_that_a_crash_cut_off_is_written_again(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run-1")
    RunFollower(folder.root, "csv", CsvTracker).follow(lambda seconds: True)
    path, cursor = folder.root / "trackers/csv/metrics.csv", folder.root / "trackers/csv.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:-300])
    cursor.unlink()
    RunFollower(folder.root, "csv", CsvTracker).follow(lambda seconds: True)
    assert path.read_bytes() == whole
