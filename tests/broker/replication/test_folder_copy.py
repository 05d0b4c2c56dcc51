"""What changes in one folder is the same in the folder that is made from the rows."""

from __future__ import annotations

import errno
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from farflung.broker.replication import folder_copy
from farflung.broker.replication.database import Change
from farflung.broker.replication.folder_copy import FolderCopy, copied_files
from farflung.broker.replication.folder_replay import FolderReplay
from farflung.errors import DataError


class Pair:
    """The folders of a leader and of a standby, and the rows between them."""

    def __init__(self, place: Path) -> None:
        self.leader, self.standby = place / "leader", place / "standby"
        self.leader.mkdir()
        self.rows: list[Change] = []
        self.said: list[str] = []
        self.copy = FolderCopy(self.leader, self._write, self.said.append)
        self.replay = FolderReplay(self.standby)

    def _write(self, changes: Sequence[Change]) -> None:
        self.rows += changes

    def sync(self) -> list[tuple[str, str, int]]:
        """Copy what has changed; the new rows without their bodies."""
        before = len(self.rows)
        self.copy.sync(copied_files(self.leader, checkpoints=False))
        new = self.rows[before:]
        self.replay.apply(new)
        return [(row.path, row.kind, len(row.body)) for row in new]

    def write(self, name: str, data: bytes) -> Path:
        path = self.leader / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_the_copy_has_every_file_that_another_broker_needs(pair: Pair) -> None:
    wanted = {"links.json": b"{}", "authority/authority-key.pem": b"key", "runs/r/job.json": b"job", "runs/r/model/a.txt": b""}
    wanted |= {"audit.jsonl": b"{}", "broker.log": b"", "broker.log.1": b"", "dashboard-key": b"key"}
    unwanted = ["lock", "ports", "submit-ticket", "broker-id", "dashboard.json", "runs/r/.job.part", "runs/r/checkpoints/step/x"]
    unwanted += ["old.tar", "core", "notes.txt"]
    for name, data in wanted.items():
        pair.write(name, data)
    for name in unwanted:
        pair.write(name, b"only here")
    pair.sync()
    found = {path.relative_to(pair.standby).as_posix(): path.read_bytes() for path in pair.standby.rglob("*") if path.is_file()}
    assert found == wanted
    assert {path.stat().st_mode & 0o777 for path in pair.standby.rglob("*") if path.is_file()} == {0o600}


def test_only_what_has_changed_is_sent(pair: Pair) -> None:
    pair.write("links.json", b"one")
    pair.write("other.json", b"other")
    assert len(pair.sync()) == 2
    assert pair.sync() == []
    pair.write("links.json", b"three")
    assert pair.sync() == [("links.json", "put", 5)]


def test_of_a_file_that_grows_only_the_new_end_is_sent(pair: Pair) -> None:
    metrics = pair.write("runs/r/metrics.jsonl", b"1\n")
    pair.sync()
    with metrics.open("ab") as file:
        file.write(b"2\n3\n")
    assert pair.sync() == [("runs/r/metrics.jsonl", "append", 4)]
    assert (pair.standby / "runs/r/metrics.jsonl").read_bytes() == b"1\n2\n3\n"


def test_a_growing_file_that_was_cut_or_replaced_is_sent_whole(pair: Pair) -> None:
    metrics = pair.write("runs/r/metrics.jsonl", b"1\n2\n3\n")
    pair.sync()
    with metrics.open("r+b") as file:
        file.truncate(2)
    assert pair.sync() == [("runs/r/metrics.jsonl", "put", 2)]
    metrics.rename(metrics.with_name("metrics.jsonl.1"))
    pair.write("runs/r/metrics.jsonl", b"another line\n")
    assert ("runs/r/metrics.jsonl", "put", 13) in pair.sync()
    assert (pair.standby / "runs/r/metrics.jsonl").read_bytes() == b"another line\n"


def test_an_ended_run_is_stored_in_one_piece(pair: Pair) -> None:
    metrics = pair.write("runs/r/metrics.jsonl", b"1\n")
    pair.sync()
    with metrics.open("ab") as file:
        file.write(b"2\n")
    pair.copy.compact([metrics])
    assert pair.sync() == [("runs/r/metrics.jsonl", "put", 4)]


def test_of_an_ended_run_only_small_files_that_grew_are_sent_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_copy, "_CHUNK", 10)
    files = [pair.write("runs/r/weights.safetensors", b"w"), pair.write("runs/r/metrics.jsonl", b"more than ten bytes")]
    pair.sync()
    pair.copy.compact(files)
    assert pair.sync() == []


def test_a_large_file_goes_in_pieces(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_copy, "_CHUNK", 10)
    monkeypatch.setattr(folder_copy, "_MOST", 20)
    pair.write("runs/r/weights.safetensors", bytes(range(35)))
    pair.sync()
    assert [(row.kind, len(row.body)) for row in pair.rows] == [("put", 10), ("append", 10), ("append", 10), ("append", 5)]
    assert (pair.standby / "runs/r/weights.safetensors").read_bytes() == bytes(range(35))


def test_a_transaction_ends_before_it_is_large_and_never_within_a_book(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_copy, "_CHUNK", 4096)
    monkeypatch.setattr(folder_copy, "_MOST", 4096)
    sizes: list[list[str]] = []
    copy = FolderCopy(pair.leader, lambda changes: sizes.append([change.path for change in changes]), pair.said.append)
    with closing(sqlite3.connect(pair.leader / "names.sqlite")) as base:
        base.execute("CREATE TABLE names (name TEXT)")
        base.commit()
    files = [pair.write("a.json", bytes(3000)), pair.write("b.json", bytes(3000)), pair.leader / "names.sqlite"]
    copy.sync(files)
    assert sizes == [["a.json"], ["b.json"], ["names.sqlite", "names.sqlite"]]


def test_what_an_sqlite_file_has_in_its_log_is_copied_while_it_is_open(pair: Pair) -> None:
    with closing(sqlite3.connect(pair.leader / "journal.sqlite", isolation_level=None)) as base:
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("CREATE TABLE events (body TEXT)")
        for body in ("one", "two"):
            base.execute("INSERT INTO events VALUES (?)", (body,))
            pair.sync()
            with closing(sqlite3.connect(pair.standby / "journal.sqlite")) as other:
                rows = [row[0] for row in other.execute("SELECT body FROM events")]
            assert rows[-1] == body
        assert pair.sync() == []


def test_a_file_of_an_earlier_life_is_replaced(pair: Pair) -> None:
    (pair.standby / "runs/r").mkdir(parents=True)
    (pair.standby / "runs/r/metrics.jsonl").write_bytes(b"what a former leader wrote last\n")
    pair.replay.apply([Change(number=1, path="runs/r/metrics.jsonl", kind="append", body=b"1\n")])
    assert (pair.standby / "runs/r/metrics.jsonl").read_bytes() == b"1\n"


@pytest.mark.parametrize("path", ["../x", "/etc/x", "runs/../../x", ""])
def test_no_row_leads_out_of_the_folder(pair: Pair, path: str) -> None:
    with pytest.raises(DataError, match=r"which is outside of the broker's folder: restore a backup"):
        pair.replay.apply([Change(number=1, path=path, kind="put", body=b"")])


def test_files_that_cannot_be_read_are_named_once_and_the_others_are_stored(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    book = pair.write("names.sqlite", b"no database, but long enough to be read as one" * 100)
    bad = pair.write("bad.json", b"a bad sector")
    pair.write("zoo.json", b"one")
    read = Path.open

    def failing(path: Path, *arguments: Any, **named: Any) -> Any:
        if path == bad:
            raise OSError(errno.EIO, "Input/output error")
        return read(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", failing)
    assert pair.sync() == [("zoo.json", "put", 3)]
    assert pair.sync() == []
    assert len(pair.said) == 2
    assert any(re.fullmatch(r"warning: a broker that stands by does not get \S*bad\.json: .*output error", s) for s in pair.said)
    assert any(re.search(r"does not get \S*names\.sqlite: cannot read .*; restore it from a backup", s) for s in pair.said)
    monkeypatch.undo()
    book.unlink()
    assert pair.sync() == [("bad.json", "put", 12)]


def test_what_was_written_before_a_write_failed_is_not_sent_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_copy, "_MOST", 10)
    pair.write("a.json", bytes(8))
    pair.write("b.json", bytes(9))
    paths: list[str] = []

    def write(changes: Sequence[Change]) -> None:
        paths.extend(change.path for change in changes)
        if paths == ["a.json", "b.json"] or paths == ["b.json", "a.json"]:
            raise DataError("the database refuses")

    copy = FolderCopy(pair.leader, write, pair.said.append)
    files = [pair.leader / "a.json", pair.leader / "b.json"]
    with pytest.raises(DataError, match="refuses"):
        copy.sync(files)
    copy.sync(files)
    assert paths == ["a.json", "b.json", "b.json"]
