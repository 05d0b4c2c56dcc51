"""Which workers are here, and why others left, on disk: ``farflung status`` knows it after a restart of the broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from farflung.errors import DiskFull, SecurityError
from farflung.protocol.members import Gone
from farflung.security.book import Book

__all__ = ["PresenceBook"]

_SCHEMA = "CREATE TABLE IF NOT EXISTS presence (name TEXT PRIMARY KEY, generation INTEGER NOT NULL, cause TEXT NOT NULL)"
_LEAVE_OUT = "DELETE FROM presence WHERE rowid NOT IN (SELECT rowid FROM presence ORDER BY rowid DESC LIMIT ?)"
#: Workers that are remembered, and the most characters of one cause.
_MOST, _LONGEST = 200, 500
#: Of a worker that was here when the broker ended.
_AWAY = "it has not returned since the broker was started again"


class PresenceBook:
    """Any thread may call; one broker at a time writes."""

    def __init__(self, path: Path, warn: Callable[[str], None] = lambda line: None) -> None:
        """Open or begin the table in the book at ``path``. ``warn`` receives a text if a change can't be stored.

        Raises:
            SecurityError: the file can't be read or written.
            DiskFull: there is no space for a new book.
        """
        self._book, self._warn = Book(path, "presence", _SCHEMA), warn

    def read(self) -> dict[str, Gone]:
        """Return who is not here, by name, the latest last: who has left, and who was here when the broker ended.

        Raises:
            SecurityError: the file is damaged.
        """
        with self._book.transaction() as book:
            rows = book.execute("SELECT * FROM presence ORDER BY rowid").fetchall()
        found = (Gone(name=str(row[0]), generation=int(row[1]), cause=str(row[2]) or _AWAY) for row in rows)
        return {one.name: one for one in found}

    def write(self, name: str, generation: int, cause: str) -> None:
        """Store that the worker ``name`` is here (``cause`` is empty), or why it has left."""
        try:
            with self._book.transaction() as book:
                book.execute("INSERT OR REPLACE INTO presence VALUES (?, ?, ?)", (name, generation, cause[:_LONGEST]))
                book.execute(_LEAVE_OUT, (_MOST,))
        except (DiskFull, SecurityError) as error:
            self._warn(f"{error}; after a restart of the broker, farflung status would not know about {name}")
