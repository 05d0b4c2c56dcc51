"""The journal that a broker is started from again."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from farflung.broker.records.journal import Journal, JournaledRun
from farflung.broker.restored_runs import _whole_lines
from farflung.errors import DataError
from farflung.telemetry import injecting


def test_events_are_replayed_in_order_and_become_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    first = Journal(path)
    assert first.runs == ()
    first.write("r", "submitted", submitter="client-x")
    first.write("s", "submitted", submitter="client-y")
    first.write("r", "planned", attempts=1, devices=3)
    first.write("r", "planned", attempts=2, devices=2)
    first.write("s", "over", outcome="failed", kind="DataError")
    expected = (
        JournaledRun(run="r", submitter="client-x", attempts=2, devices=2),
        JournaledRun(run="s", submitter="client-y", outcome="failed", kind="DataError"),
    )
    second = Journal(path)  # the first was never closed: a kill closes nothing
    assert second.runs == expected
    assert second._base.execute("SELECT count(*) FROM events").fetchone() == (0,)
    second.write("r", "planned", attempts=3, devices=1)
    second.close()
    assert Journal(path).runs[0].attempts == 3
    with pytest.raises(DataError, match=r"cannot write .*: Cannot operate on a closed database"):
        second.write("r", "over", outcome="finished")


def test_old_runs_that_are_over_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    first = Journal(path)
    for number in range(60):
        first.write(f"r{number}", "over", outcome="finished")
    first.write("open", "submitted", submitter="x")
    runs = [kept.run for kept in Journal(path).runs]
    assert (len(runs), runs[0], runs[-1]) == (51, "r10", "open")


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"something else entirely, and long enough to be noticed" * 20)
    with pytest.raises(DataError, match=r"is no journal of a broker: .*; move it away to begin a new one"):
        Journal(tmp_path / "journal.sqlite")


def test_a_journal_that_cannot_be_opened_is_not_called_damaged(tmp_path: Path) -> None:
    """As on a full disk: whoever moves the file away loses all runs that are not over."""
    (tmp_path / "journal.sqlite").mkdir()
    with pytest.raises(DataError, match=r"cannot open the journal .*: unable to open database file; free space on its disk"):
        Journal(tmp_path / "journal.sqlite")


@pytest.mark.parametrize(("text", "count", "left"), [("", 0, ""), ("a\nb\n", 2, "a\nb\n"), ("a\nb", 1, "a\n"), ("torn", 0, "")])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, text: str, count: int, left: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(text)
    assert _whole_lines(path) == count
    assert path.read_text() == left
    assert _whole_lines(tmp_path / "none") == 0


@pytest.mark.parametrize("code", [sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_BUSY])
def test_errors_that_pass_lose_nothing(tmp_path: Path, code: int) -> None:
    """As while no descriptor is free."""
    left = [1]

    def fail(name: str, facts: object) -> None:
        if name == "disk.before_write" and left:
            left.pop()
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorcode = code
            raise error

    journal = Journal(tmp_path / "journal.sqlite")
    with injecting(fail):
        journal.write("r", "planned", attempts=3)
    journal.write("r", "planned", attempts=4)
    journal.close()
    (kept,) = Journal(tmp_path / "journal.sqlite").runs
    assert (kept.attempts, left) == (4, [])
