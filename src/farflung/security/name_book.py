"""Which name belongs to which key: an SQLite file in the broker's folder, so that nobody takes a name while its owner is away.

A name is bound to the first key that joins under it, for as long as the certificate that was given lasts; each further join with
that key renews it. So names that nobody uses any more become free, and the file stays small.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from farflung.errors import DiskFull, InputError, SecurityError
from farflung.security.book import Book

__all__ = ["Binding", "NameBook"]

_SCHEMA = "CREATE TABLE IF NOT EXISTS names (name TEXT PRIMARY KEY, key TEXT NOT NULL, ticket TEXT NOT NULL, until REAL NOT NULL)"
_GENERATIONS = "CREATE TABLE IF NOT EXISTS generations (name TEXT PRIMARY KEY, number INTEGER NOT NULL)"
_BARRED = "CREATE TABLE IF NOT EXISTS barred (key TEXT PRIMARY KEY, name TEXT NOT NULL)"
_ADVANCE = (
    "INSERT INTO generations VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET number = max(generations.number, excluded.number)"
)


class Binding(NamedTuple):
    """What a name is bound to: the fingerprint of a key, the id of the ticket that it joined with last, and until when."""

    key: str
    ticket: str
    until: float


class NameBook:
    """Binds names to keys. Any thread may call; one broker at a time binds names. Times are Unix seconds.

    While the disk is full, new bindings stay in memory, so that members can join and come back, and a client can ask for the
    status. They are written with the next binding after there is space again.
    """

    def __init__(self, path: Path, warn: Callable[[str], None] = lambda line: None) -> None:
        """Open or begin the book at ``path`` (mode 0600). ``warn`` is told when the disk is full.

        Raises:
            SecurityError: it can't be made, is readable by others, or is no book of names.
            DiskFull: there is no space for a new book.
        """
        self._book = Book(path, "names", _SCHEMA)
        self._warn = warn
        self._lock = threading.Lock()
        self._unwritten: dict[str, Binding] = {}
        self._numbers: dict[str, int] = {}
        self._full = False
        #: The barred keys, each with the name under which it was barred (None: they must be read again). Only this process
        #: bars keys.
        self._barred: Mapping[str, str] | None = None
        with self._book.transaction() as book:
            book.execute(_GENERATIONS)
            book.execute(_BARRED)

    def bind(self, name: str, key: str, ticket: str, *, now: float, until: float) -> None:
        """``name`` belongs to ``key`` (a fingerprint) from now on; ``ticket`` is the one that it was joined with.

        Raises:
            SecurityError: it belongs to another key.
        """
        with self._lock:
            bound = self._binding(name)
            if bound is not None and bound.until > now and bound.key != key:
                raise SecurityError(
                    f"the name {name!r} belongs to another key: join from the machine that has it (its key lies in "
                    "~/.farflung/member-key.pem, or in $FARFLUNG_HOME), choose another name with --name, or let the broker's "
                    f"owner run: farflung ticket free {name}"
                )
            self._unwritten[name] = Binding(key, ticket, until)
            self._write(now)

    def advance(self, name: str) -> int:
        """The number of the next session of ``name``: larger than all before, in earlier lives of the broker, too."""
        with self._lock:
            with self._book.transaction() as book:
                row = book.execute("SELECT number FROM generations WHERE name = ?", (name,)).fetchone()
            number = max(self._numbers.get(name, 0), 0 if row is None else int(row[0])) + 1
            self._numbers[name] = number
            self._write()
            return number

    def binding(self, name: str) -> Binding:
        """Return what ``name`` is bound to (empty texts: nobody has joined under it)."""
        with self._lock:
            return self._binding(name) or Binding("", "", 0.0)

    def key(self, name: str) -> str:
        """The fingerprint of the key that ``name`` belongs to ("": nobody has it)."""
        return self.binding(name).key

    def ticket(self, name: str) -> str:
        """The id of the ticket with which ``name`` joined last ("": nobody did)."""
        return self.binding(name).ticket

    def names_of(self, ticket: str) -> int:
        """How many names were taken with ``ticket``."""
        with self._lock, self._book.transaction() as book:
            return int(book.execute("SELECT count(*) FROM names WHERE ticket = ?", (ticket,)).fetchone()[0])

    def bar(self, name: str, key: str, *, barred: bool) -> None:
        """Whoever has ``key``, which joined under ``name``, may join no more; or (``barred`` is False) may join again.

        Raises:
            DiskFull: there is no space to write that down.
        """
        with self._lock, self._book.transaction() as book:
            if barred:
                book.execute("INSERT OR REPLACE INTO barred VALUES (?, ?)", (key, name))
            else:
                book.execute("DELETE FROM barred WHERE key = ?", (key,))
            self._barred = None

    def barred(self) -> Mapping[str, str]:
        """Return the name under which each barred key was barred, by key."""
        with self._lock:  # else what was read before ``bar`` could be stored after it
            if self._barred is None:
                with self._book.transaction() as book:
                    self._barred = {str(key): str(name) for key, name in book.execute("SELECT key, name FROM barred")}
            return self._barred

    def free(self, name: str) -> None:
        """Whoever joins next under ``name`` may have it (whoever has a certificate keeps it until it ends).

        Raises:
            InputError: nobody has it; the text lists the names that are bound.
            DiskFull: there is no space to write that down.
        """
        with self._lock, self._book.transaction() as book:
            gone = book.execute("DELETE FROM names WHERE name = ?", (name,)).rowcount
            known = [str(row[0]) for row in book.execute("SELECT name FROM names ORDER BY name LIMIT 20")]
            gone += self._unwritten.pop(name, None) is not None
        if not gone:
            raise InputError(f"no key has the name {name!r}; bound are {', '.join(known) or 'none'}")

    def _binding(self, name: str) -> Binding | None:
        """The newest binding of ``name``, which may have ended (under the lock)."""
        if name in self._unwritten:
            return self._unwritten[name]
        with self._book.transaction() as book:
            row = book.execute("SELECT key, ticket, until FROM names WHERE name = ?", (name,)).fetchone()
        return None if row is None else Binding(str(row[0]), str(row[1]), float(row[2]))

    def _write(self, now: float = 0.0) -> None:
        """Write what is only in memory, and drop what had ended at ``now`` (under the lock)."""
        try:
            with self._book.transaction() as book:
                book.execute("DELETE FROM names WHERE until <= ?", (now,))
                names = [(name, *bound) for name, bound in self._unwritten.items()]
                book.executemany("INSERT OR REPLACE INTO names VALUES (?, ?, ?, ?)", names)
                book.executemany(_ADVANCE, list(self._numbers.items()))
        except DiskFull as error:
            first, self._full = not self._full, True
            if first:
                self._warn(f"{error}; names of members that join meanwhile stay in memory")
            self._unwritten = {name: bound for name, bound in self._unwritten.items() if bound.until > now}
            return
        self._full = False
        self._unwritten.clear()
        self._numbers.clear()
