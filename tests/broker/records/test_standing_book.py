"""A restart of the broker pardons nobody."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from farflung.broker.records.standing_book import StandingBook
from farflung.errors import SecurityError
from farflung.protocol.standing import StandingRecord
from farflung.security.name_book import NameBook

LATE = StandingRecord(points={"eve": 2, "": 1}, causes=("it was late", "it lied"))
LIED = StandingRecord(points={"": 3}, causes=("x" * 1000,))


def test_records_are_there_again_the_oldest_change_first(tmp_path: Path) -> None:
    NameBook(tmp_path / "names.sqlite")  # they share a file
    book = StandingBook(tmp_path / "names.sqlite")
    book.write({"a": LATE, "b": LIED})
    book.write({"a": LATE})
    again = StandingBook(tmp_path / "names.sqlite").read()
    assert list(again) == ["b", "a"]
    assert again["a"] == LATE
    assert again["b"].total == 3
    assert len(again["b"].causes[0]) == 500
    book.write({"a": None})
    book.write({})
    assert list(StandingBook(tmp_path / "names.sqlite").read()) == ["b"]


def test_a_damaged_table_is_no_reason_to_pardon(tmp_path: Path) -> None:
    book = StandingBook(tmp_path / "names.sqlite")
    with sqlite3.connect(tmp_path / "names.sqlite") as connection:
        connection.execute("INSERT INTO standing VALUES ('a', '[]')")
    with pytest.raises(SecurityError, match=r"the table of standing is damaged: .*; restore names.sqlite or delete it"):
        book.read()


def test_a_change_that_can_not_be_stored_is_reported(tmp_path: Path) -> None:
    said: list[str] = []
    book = StandingBook(tmp_path / "names.sqlite", said.append)
    (tmp_path / "names.sqlite").write_bytes(b"no database" * 1000)
    book.write({"a": LATE})
    assert len(said) == 1
    assert said[0].endswith("; a restart of the broker would forget the new standing of a")
