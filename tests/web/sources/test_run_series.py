"""The columns of a run follow its file, through recoveries, torn lines and damage."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from farflung.errors import DataError
from farflung.telemetry.records import CodecUse, EvaluationRecord, RecoveryRecord, StepRecord
from farflung.web.sources.run_series import COLUMNS, RunSeries


def step(number: int, **changes: object) -> StepRecord:
    base: dict[str, object] = {
        "loss": 1.0 / (number + 1),
        "seconds": 0.5,
        "elapsed": 0.5 * (number + 1),
        "samples": 8,
        "tokens": 64,
    }
    return StepRecord(step=number, **(base | changes))  # type: ignore[arg-type]


def write(path: Path, *records: StepRecord | EvaluationRecord | RecoveryRecord) -> None:
    with path.open("a") as file:
        file.writelines(record.to_line() for record in records)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_steps_arrive_as_the_file_grows(path: Path) -> None:
    series = RunSeries(path)
    assert (series.read(), len(series), series.latest) == (False, 0, None)
    write(path, step(0), step(1, learning_rate=0.1, predicted_seconds=0.4, link_bytes={(0, 1): 5, (1, 0): 7}))
    series.read()
    write(path, step(2))
    series.read()
    assert len(series) == 3
    assert list(series.columns["step"]) == [1, 2, 3]
    assert {name: column[1] for name, column in series.columns.items() if not math.isnan(column[1])} == {
        "step": 2, "loss": 0.5, "learning_rate": 0.1, "seconds": 0.5, "predicted": 0.4, "clock": 1.0, "samples": 8, "tokens": 64,
        "sent": 12, "traffic": 12,
    }  # fmt: skip
    assert series.latest == step(2)
    assert series.recent == (
        step(0),
        step(1, learning_rate=0.1, predicted_seconds=0.4, link_bytes={(0, 1): 5, (1, 0): 7}),
        step(2),
    )


def test_a_torn_line_is_read_when_it_is_whole(path: Path) -> None:
    line = step(0).to_line()
    path.write_text(line[:40])
    series = RunSeries(path)
    series.read()
    assert len(series) == 0
    path.write_text(line)
    series.read()
    assert (len(series), series.damaged) == (1, 0)


def test_a_recovery_removes_the_steps_that_are_made_again(path: Path) -> None:
    series = RunSeries(path)
    write(path, *map(step, range(5)), EvaluationRecord(step=4, elapsed=2.0, loss=0.3))
    series.read()
    assert (len(series), len(series.evaluations), series.rewritten) == (5, 1, 0)
    write(path, RecoveryRecord(step=3, attempt=2, replayed=2, pause=1.0, elapsed=4.0), step(3, elapsed=4.5, loss=9.0))
    series.read()
    assert list(series.columns["step"]) == [1, 2, 3, 4]
    assert (series.columns["loss"][3], series.evaluations, series.rewritten) == (9.0, [], 1)
    assert [one.attempt for one in series.recoveries] == [2]


def test_the_clock_continues_where_a_resumed_run_counts_from_zero(path: Path) -> None:
    write(path, step(0, elapsed=10.0), step(1, elapsed=1.0), step(2, elapsed=2.0))
    series = RunSeries(path)
    series.read()
    assert list(series.columns["clock"]) == [10.0, 11.0, 12.0]


def test_traffic_adds_up_the_steps_that_count(path: Path) -> None:
    write(path, *(step(number, link_bytes={(0, 1): 5, (1, 0): number}) for number in range(3)))
    series = RunSeries(path)
    series.read()
    assert list(series.columns["traffic"]) == [5, 11, 18]
    write(
        path, RecoveryRecord(step=1, attempt=2, replayed=2, pause=1.0, elapsed=4.0), step(1, elapsed=4.5, link_bytes={(0, 1): 2})
    )
    series.read()
    assert list(series.columns["traffic"]) == [5, 7]


def test_codec_errors_are_means_and_not_a_number_stays_so(path: Path) -> None:
    codecs = {(0, 1): CodecUse(error=0.1), (1, 0): CodecUse(error=0.3), (1, 2): CodecUse()}
    write(path, step(0, codecs=codecs, loss=math.nan))
    series = RunSeries(path)
    series.read()
    assert series.columns["error"][0] == pytest.approx(0.2)
    assert math.isnan(series.columns["loss"][0])
    assert (series.known("error"), series.known("divergence")) == (True, False)


def test_a_column_that_was_measured_long_ago_is_still_known(path: Path) -> None:
    write(path, step(0, codecs={(0, 1): CodecUse(error=0.1)}), *map(step, range(1, 60)))
    series = RunSeries(path)
    series.read()
    assert (series.known("error"), series.known("divergence")) == (True, False)
    write(path, RecoveryRecord(step=0, attempt=2, replayed=60, pause=1.0, elapsed=40.0), step(0, elapsed=41.0))
    series.read()
    assert not series.known("error"), "no step that counts has it"


def test_damaged_lines_are_counted_and_others_ignored(path: Path) -> None:
    path.write_text('{"kind":"step","step":"x"}\nnot json\n{"kind":"other"}\n\xff\n' + step(0).to_line(), encoding="latin-1")
    series = RunSeries(path)
    series.read()
    assert (len(series), series.damaged) == (1, 3)


def test_a_file_that_begins_anew_is_read_anew(path: Path) -> None:
    series = RunSeries(path)
    write(path, *map(step, range(4)))
    series.read()
    path.write_text(step(0, loss=7.0).to_line())
    series.read()
    assert (list(series.columns["loss"]), series.rewritten) == ([7.0], 1)


def test_a_file_that_cannot_be_read_is_an_error(path: Path) -> None:
    path.mkdir()
    with pytest.raises(DataError, match=r"cannot read .*metrics.jsonl: Is a directory; check the rights of this user"):
        RunSeries(path).read()


def test_all_columns_have_the_same_length(path: Path) -> None:
    write(path, step(0), step(1, divergence=0.2))
    series = RunSeries(path)
    series.read()
    assert {len(series.columns[name]) for name in COLUMNS} == {2}
