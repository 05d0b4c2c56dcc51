"""What watchers received is there after a restart of the broker, between the same records."""

from __future__ import annotations

from pathlib import Path

from farflung.broker.records.run_log import LogPosition, RunLog
from farflung.broker.records.watch_history import read_history, write_history
from farflung.messages.schema import Message
from farflung.messages.watching import CheckpointWritten, GeneratedText, MemberReady, Note, RecordLine, Started
from farflung.telemetry.log_file import LogWriter


def write(folder: Path, *messages: tuple[int, Message]) -> None:
    writer = LogWriter()
    for records, message in messages:
        write_history(writer, folder, message, records)
    writer.close()


def test_messages_come_back_in_order(tmp_path: Path) -> None:
    told: list[tuple[int, Message]] = [
        (0, Started(run="run-1", attempt=1, seconds=0.5)),
        (2, Note(text="a died:\n[bold]\x1b", detail=True)),
        (2, CheckpointWritten(step=2)),
        (3, GeneratedText(text="def f():\n\tpass")),
    ]
    write(tmp_path, *told, (3, MemberReady(name="a")))
    assert read_history(tmp_path, 3) == told, "a worker that is ready is no news after a restart"
    assert [records for records, _ in read_history(tmp_path, 2)] == [0, 2, 2, 2], "a kill has cost a record"


def test_a_new_log_repeats_them_between_the_records(tmp_path: Path) -> None:
    write(tmp_path, (1, Note(text="a died")), (2, CheckpointWritten(step=2)))
    log = RunLog(lambda first, end: [f"record {index}" for index in range(first, end)], records=3)
    for after, message in read_history(tmp_path, 3):
        assert log.mark(message, after) == after
    log.mark(Note(text="again"))
    found: list[str] = []
    position = LogPosition()
    while log.has_more(position):
        fresh, position = log.read(position)
        found += [one.line if isinstance(one, RecordLine) else getattr(one, "text", "checkpoint") for one in fresh]
    assert found == ["record 0", "a died", "record 1", "checkpoint", "record 2", "again"]


def test_damaged_lines_and_a_missing_file_are_no_error(tmp_path: Path) -> None:
    assert read_history(tmp_path, 1) == []
    write(tmp_path, (0, Note(text="a")))
    with (tmp_path / "watch.log").open("ab") as file:
        file.write(b'\xff[\n2026 [1, "note", {}]\n2026 [1, "no such", {}]\n2026 {"a": 1}\nnothing\n2026 [1, "note"\n')
    assert read_history(tmp_path, 1) == [(0, Note(text="a"))]


def test_a_long_message_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, (0, Note(text="x" * 300_000)), (0, Note(text="y")))
    assert read_history(tmp_path, 0) == [(0, Note(text="y"))]
