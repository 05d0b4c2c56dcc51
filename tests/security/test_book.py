"""A full disk under the broker's book of names: reading works, and names that are bound meanwhile are not lost."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from farflung.errors import DiskFull, SecurityError
from farflung.security import book, files
from farflung.security.files import write_private
from farflung.security.name_book import NameBook
from farflung.security.ticket_book import TicketBook

NOW = 1e9
#: Longer than a page, so that each row needs space.
LONG = "k" * 9000


def fill(patch: pytest.MonkeyPatch) -> None:
    """From now on SQLite says that the disk is full when a file of its would grow."""
    connect = sqlite3.connect

    def full(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.execute("PRAGMA max_page_count = 1")  # of a larger file: what it has
        return connection

    patch.setattr(book.sqlite3, "connect", full)


def issue_many(tickets: TicketBook) -> None:
    """More than the last page of the book has room for."""
    for _ in range(1000):
        tickets.issue("join", addresses=["localhost:1"], fingerprint=bytes(32), now=NOW)


def test_names_are_bound_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, said = tmp_path / "names.sqlite", list[str]()
    names = NameBook(place, said.append)
    names.bind("attic", "k1", "t1", now=NOW, until=NOW + 10)
    with monkeypatch.context() as patch:
        fill(patch)
        names.bind("cellar", LONG, "t2", now=NOW, until=NOW + 10)
        names.bind("desk", LONG, "t3", now=NOW, until=NOW + 10)
        assert (names.key("attic"), names.key("cellar"), names.ticket("desk")) == ("k1", LONG, "t3")
        with pytest.raises(SecurityError, match="the name 'cellar' belongs to another key"):
            names.bind("cellar", "k9", "t1", now=NOW + 1, until=NOW + 99)
        with pytest.raises(SecurityError, match="the name 'attic' belongs to another key"):
            names.bind("attic", "k9", "t1", now=NOW + 1, until=NOW + 99)
        assert [names.advance("attic") for _ in range(3)] == [1, 2, 3]
        assert NameBook(place).key("cellar") == "", "it is only in memory"
    assert len(said) == 1
    assert "names.sqlite: database or disk is full; free space on the disk; names of members that join meanwhile stay" in said[0]
    assert names.advance("attic") == 4
    again = NameBook(place)
    assert (again.key("cellar"), again.ticket("desk"), again.advance("attic")) == (LONG, "t3", 5)


def test_a_name_that_is_only_in_memory_can_be_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = NameBook(tmp_path / "names.sqlite")
    with monkeypatch.context() as patch:
        fill(patch)
        names.bind("cellar", LONG, "t2", now=NOW, until=NOW + 10)
        names.free("cellar")
        names.bind("cellar", "k2", "t2", now=NOW, until=NOW + 10)
    assert NameBook(tmp_path / "names.sqlite").key("cellar") in ("", "k2")


def test_tickets_are_checked_and_listed_and_none_is_issued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tickets = TicketBook(tmp_path / "tickets.sqlite")
    ticket = tickets.issue("join", addresses=["localhost:1"], fingerprint=bytes(32), now=NOW)
    with monkeypatch.context() as patch:
        fill(patch)
        again = TicketBook(tmp_path / "tickets.sqlite")
        assert again.check(ticket.ticket_id, ticket.secret, "join", NOW).ticket_id == ticket.ticket_id
        assert len(again.list()) == 1
        with pytest.raises(DiskFull, match=r"cannot write .*tickets\.sqlite: database or disk is full; free space on the disk"):
            issue_many(again)


def test_a_secret_without_space_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(DiskFull, match=r"cannot write .*key\.pem: No space left on device; free space on the disk"):
        write_private(tmp_path / "key.pem", b"secret")
    assert list(tmp_path.iterdir()) == []
