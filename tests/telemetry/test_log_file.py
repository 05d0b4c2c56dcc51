"""Logs: lines with a time in files of bounded size."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from farflung.telemetry import log_file
from farflung.telemetry.log_file import LogPart, LogTail, LogWriter, read_last, read_more


def written(path: Path, *texts: str) -> list[str]:
    """What the log has after ``texts`` were added, without the times."""
    writer = LogWriter(now=lambda: 0.0)
    for text in texts:
        writer.write(path, text)
    writer.close()
    return [line.partition(" ")[2].partition(" ")[2] for line in read_last(path, 1000).lines]


def test_lines_have_a_time_and_stay_together(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    assert written(path, "first", "two\nlines\n") == ["first", "two", "lines"]
    begin = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(0.0))
    assert path.read_text() == f"{begin} first\n{begin} two\n  lines\n"
    assert [line.split()[-1] for line in read_last(path, 1).lines] == ["lines"]
    assert read_last(path, 0).lines == []
    assert len(read_last(path, 5, lambda line: "first" in line).lines) == 1


def test_foreign_text_neither_controls_a_terminal_nor_forges_a_line(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    written(path, "worker \x1b]0;owned\x07a\n1970-01-01 00:00:00 forged\r\x9b2J\u202e")
    _, second = path.read_text().splitlines()
    assert second.startswith("  1970"), "a line of its own would begin with its time"
    assert not set(path.read_text()) & set("\x1b\x07\r\x9b\u202e")


def test_a_log_is_bounded_and_read_across_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "_MOST", 100)
    path = tmp_path / "run.log"
    texts = [f"line {number}" for number in range(20)]
    assert written(path, *texts)[-3:] == texts[-3:]
    assert sorted(place.name for place in tmp_path.iterdir()) == ["run.log", "run.log.1"]
    assert all(place.stat().st_size <= 100 for place in tmp_path.iterdir())
    assert len(read_last(path, 1000).lines) > 3, "also those of the file before"


def test_new_lines_are_read_from_a_position(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    assert read_more(path, 0).lines == ()
    path.write_text("one\ntwo\nhal")
    first = read_last(path, 10)
    assert (first.lines, first.position) == (["one", "two"], 8), "half a line is not read"
    path.write_text("one\ntwo\nhalf\nfour\n")
    more = read_more(path, first.position)
    assert (more.lines, more.position) == (["half", "four"], 18)
    assert read_more(path, more.position).lines == []
    path.write_text("new\n")
    assert read_more(path, more.position).lines == ["new"], "the file began anew"


def test_what_can_not_be_written_is_left_out(tmp_path: Path) -> None:
    assert written(tmp_path / "nowhere" / "run.log", "lost") == []


def test_a_flood_of_lines_waits_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is slower than whoever reports: lines are left out, and later ones are written."""
    monkeypatch.setattr(log_file, "_MOST_WAITING", 100)
    free, stamp = threading.Event(), log_file.date_text

    def wait(*, at: float) -> str:
        free.wait(60)
        return stamp(at=at)

    monkeypatch.setattr(log_file, "date_text", wait)
    path, writer = tmp_path / "run.log", LogWriter()
    for number in range(1000):
        writer.write(path, f"line {number:05}")
    free.set()
    writer.close()
    assert 10 <= len(read_last(path, 1000).lines) <= 11
    assert written(path, "later")[-1] == "later"


def test_a_tail_reads_only_what_was_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, reads = tmp_path / "run.log", list[int]()

    def count(place: Path, lines: int) -> LogPart:
        reads.append(lines)
        return read_last(place, lines)

    monkeypatch.setattr(log_file, "read_last", count)
    monkeypatch.setattr(log_file, "_BLOCK", 8)  # several blocks are read at once
    tail = LogTail(path, 3)
    assert tail.read() == []
    path.write_text("one\ntwo\nthree\nfour\nhal")
    assert tail.read() == tail.read() == ["two", "three", "four"]
    with path.open("a") as file:
        file.write("f\nsix\nseven\n")
    assert tail.read() == ["half", "six", "seven"]
    assert reads == [3], "the whole log was read once"


def test_a_tail_loses_no_line_where_the_file_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("one\ntwo\n")
    tail = LogTail(path, 3)
    assert tail.read() == ["one", "two"]
    path.with_name("run.log.1").write_text("one\ntwo\nthree\n")
    path.write_text("four\n")
    assert tail.read() == ["two", "three", "four"]
