"""An SQLite file of the broker's folder that holds what others must not read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from farflung.errors import DiskFull, SecurityError
from farflung.security.files import make_private_folder, read_private, write_private

__all__ = ["Book"]


class Book:
    """One table in a file of mode 0600. Safe for several threads and processes: each transaction has a connection of its own."""

    def __init__(self, path: Path, what: str, schema: str) -> None:
        """Open or begin the book at ``path``; ``what`` it is of stands in the texts of errors, ``schema`` makes its table.

        Raises:
            SecurityError: it can't be made, is readable by others, or is no such book.
        """
        self._path, self._what = path, what
        make_private_folder(path.parent)
        if path.exists():
            read_private(path)
        else:
            write_private(path, b"")
        with self.transaction() as connection:
            connection.execute(schema)

    def stamp(self) -> tuple[int, int, int]:
        """What changes with each transaction that writes: time of change in nanoseconds, size and number of the file.

        Raises:
            SecurityError: the file is gone.
        """
        try:
            found = self._path.stat()
        except OSError as error:
            raise SecurityError(f"the book of {self._what} {self._path} can't be used: {error.strerror}; restore it") from error
        return found.st_mtime_ns, found.st_size, found.st_ino

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything done inside is kept, or nothing; rows are ``sqlite3.Row``. Reading needs no free space.

        Raises:
            DiskFull: there is no space for what was written.
            SecurityError: the file is damaged, or can't be read or written.
        """
        try:
            with closing(sqlite3.connect(self._path, timeout=10.0, isolation_level="IMMEDIATE")) as connection, connection:
                connection.row_factory = sqlite3.Row
                yield connection
        except sqlite3.OperationalError as error:  # locked, read-only, no space
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL:  # the low byte; the others say more precisely where
                raise DiskFull(f"cannot write {self._path}: {error}; free space on the disk") from error
            remedy = "check its rights and the disk's free space"
            raise SecurityError(f"the book of {self._what} {self._path} can't be used: {error}; {remedy}") from error
        except sqlite3.Error as error:
            raise SecurityError(f"the book of {self._what} {self._path} is damaged: {error}; restore or delete it") from error
