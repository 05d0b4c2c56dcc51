"""The standing of members on disk, so that a restart of the broker pardons nobody: a table beside that of the names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farflung.errors import DiskFull, SecurityError
from farflung.protocol.standing import StandingRecord
from farflung.security.book import Book

__all__ = ["StandingBook"]

_SCHEMA = "CREATE TABLE IF NOT EXISTS standing (name TEXT PRIMARY KEY, record TEXT NOT NULL)"
_PUT = "INSERT OR REPLACE INTO standing VALUES (?, ?)"
#: The most characters of one cause.
_MOST = 500


class StandingBook:
    """Any thread may call; one broker at a time writes."""

    def __init__(self, path: Path, warn: Callable[[str], None] = lambda line: None) -> None:
        """Open or begin the table in the book at ``path``. ``warn`` receives a text if a change can't be stored.

        Raises:
            SecurityError: the file can't be read or written.
            DiskFull: there is no space for a new book.
        """
        self._book, self._warn = Book(path, "standing", _SCHEMA), warn

    def read(self) -> dict[str, StandingRecord]:
        """Return all records by name; the one that changed least recently is the first.

        Raises:
            SecurityError: the file is damaged.
        """
        with self._book.transaction() as book:
            rows = [(str(row["name"]), str(row["record"])) for row in book.execute("SELECT * FROM standing ORDER BY rowid")]
        try:
            return {name: _record(json.loads(text)) for name, text in rows}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SecurityError(f"the table of standing is damaged: {error!r:.200}; restore names.sqlite or delete it") from None

    def write(self, changes: Mapping[str, StandingRecord | None]) -> None:
        """Store ``changes`` (None: the member has no record any more). While the disk is full, they stay in memory only."""
        if not changes:
            return
        kept = [(name, _text(record)) for name, record in changes.items() if record is not None]
        try:
            with self._book.transaction() as book:
                book.executemany("DELETE FROM standing WHERE name = ?", [(name,) for name in changes])
                book.executemany(_PUT, kept)
        except (DiskFull, SecurityError) as error:
            self._warn(f"{error}; a restart of the broker would forget the new standing of {', '.join(changes):.200}")


def _text(record: StandingRecord) -> str:
    return json.dumps({"points": dict(record.points), "causes": [cause[:_MOST] for cause in record.causes]})


def _record(found: dict[str, Any]) -> StandingRecord:
    points = {str(source): int(many) for source, many in dict(found["points"]).items()}
    return StandingRecord(points=points, causes=tuple(str(cause) for cause in found["causes"]))
