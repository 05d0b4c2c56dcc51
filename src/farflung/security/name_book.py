"""Which name belongs to which key: an SQLite file in the broker's folder, so that nobody takes a name while its owner is away.

A name is bound to the first key that joins under it, for as long as the certificate that was given lasts; each further join with
that key renews it. So names that nobody uses any more become free, and the file stays small.
"""

from __future__ import annotations

from pathlib import Path

from farflung.errors import SecurityError
from farflung.security.book import Book

__all__ = ["NameBook"]

_SCHEMA = "CREATE TABLE IF NOT EXISTS names (name TEXT PRIMARY KEY, key TEXT NOT NULL, ticket TEXT NOT NULL, until REAL NOT NULL)"
_GENERATIONS = "CREATE TABLE IF NOT EXISTS generations (name TEXT PRIMARY KEY, number INTEGER NOT NULL)"


class NameBook:
    """Binds names to keys. Safe for several threads and processes; each call is one transaction. Times are Unix seconds."""

    def __init__(self, path: Path) -> None:
        """Open or begin the book at ``path`` (mode 0600).

        Raises:
            SecurityError: it can't be made, is readable by others, or is no book of names.
        """
        self._book = Book(path, "names", _SCHEMA)
        with self._book.transaction() as book:
            book.execute(_GENERATIONS)

    def bind(self, name: str, key: str, ticket: str, *, now: float, until: float) -> None:
        """``name`` belongs to ``key`` (a fingerprint) from now on; ``ticket`` is the one that it was joined with.

        Raises:
            SecurityError: it belongs to another key.
        """
        with self._book.transaction() as book:
            book.execute("DELETE FROM names WHERE until <= ?", (now,))
            row = book.execute("SELECT key FROM names WHERE name = ?", (name,)).fetchone()
            if row is not None and row[0] != key:
                raise SecurityError(
                    f"the name {name!r} belongs to another key: join from the machine that has it (its key lies in "
                    "~/.farflung/member-key.pem, or in $FARFLUNG_HOME), choose another name with --name, or let the broker's "
                    f"owner run: farflung ticket free {name}"
                )
            book.execute("INSERT OR REPLACE INTO names VALUES (?, ?, ?, ?)", (name, key, ticket, until))

    def advance(self, name: str) -> int:
        """The number of the next session of ``name``: larger than all before, in earlier lives of the broker, too."""
        with self._book.transaction() as book:
            book.execute("INSERT INTO generations VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET number = number + 1", (name,))
            return int(book.execute("SELECT number FROM generations WHERE name = ?", (name,)).fetchone()[0])

    def key(self, name: str) -> str:
        """The fingerprint of the key that ``name`` belongs to ("": nobody has it)."""
        with self._book.transaction() as book:
            row = book.execute("SELECT key FROM names WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row is not None else ""

    def ticket(self, name: str) -> str:
        """The id of the ticket with which ``name`` joined last ("": nobody did)."""
        with self._book.transaction() as book:
            row = book.execute("SELECT ticket FROM names WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row is not None else ""

    def free(self, name: str) -> None:
        """Whoever joins next under ``name`` may have it (whoever has a certificate keeps it until it ends).

        Raises:
            SecurityError: nobody has it; the text lists the names that are bound.
        """
        with self._book.transaction() as book:
            gone = book.execute("DELETE FROM names WHERE name = ?", (name,)).rowcount
            known = [str(row[0]) for row in book.execute("SELECT name FROM names ORDER BY name LIMIT 20")]
        if not gone:
            raise SecurityError(f"no key has the name {name!r}; bound are {', '.join(known) or 'none'}")
