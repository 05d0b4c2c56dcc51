"""The broker's journal: which runs there are and how far each is, in SQLite (WAL). The broker may be killed at any instant.

Documents, metrics and checkpoints are in the runs' folders; the journal has what no folder has. Each event is durable when
``write`` returns. Opening the journal replays the events on the last snapshot, and makes a new snapshot.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farflung.broker.records.backlog import Backlog
from farflung.errors import DataError, DiskFull
from farflung.telemetry.faults import fault_point

__all__ = ["Journal", "JournaledRun"]

#: The number of finished runs that are still shown after a restart.
MOST_OVER = 50
_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, run TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS snapshot (place INTEGER PRIMARY KEY, run TEXT NOT NULL UNIQUE, body TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournaledRun:
    """What the journal knows of a run. ``attempts``: how many plans it has had; ``devices``: workers of the last plan.
    ``plan``: the SHA-256 of its document, which is on disk a moment before the journal says so (empty: an older journal).

    ``outcome`` is empty while the run is not over; ``kind``: the class of the error that ended it. ``stopping``: a stop was
    requested.
    """

    run: str
    submitter: str = ""
    attempts: int = 0
    devices: int = 0
    plan: str = ""
    outcome: str = ""
    kind: str = ""
    stopping: bool = False


#: Errors of SQLite that pass: no space, no descriptor, a file that the system can't write now, another process that reads it.
_TEMPORARY = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY})


class Journal:
    """Stores events. ``runs``: the runs when it was opened, the oldest first. Any thread may call."""

    def __init__(self, path: Path, warn: Callable[[str], None] = lambda line: None) -> None:
        """Open or create the journal at ``path``; ``warn`` receives a text when the disk is full.

        Raises:
            DataError: it can't be read or written.
            DiskFull: there is no space to write.
        """
        self._path = path
        self._lock = threading.Lock()
        self._backlog: Backlog[tuple[str, str, str]] = Backlog(self._insert, warn)
        try:
            self._base = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = FULL")
            self._base.executescript(_SCHEMA)
            self.runs = self._replay()
        except (sqlite3.Error, ValueError, TypeError) as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                raise DiskFull(f"cannot write {path}: {error}; free space on the disk, then start the broker again") from None
            if isinstance(error, sqlite3.OperationalError):  # the file may be whole: nobody should move it away
                remedy = "free space on its disk and check the rights of its folder, then start the broker again"
                raise DataError(f"cannot open the journal {path}: {error}; {remedy}") from None
            raise DataError(f"{path} is no journal of a broker: {error}; move it away to begin a new one") from None

    def write(self, run: str, what: str, /, **fields: Any) -> None:
        """Store an event of ``run`` (``submitted``, ``planned``, ``stopping``, ``over``) with fields of ``JournaledRun``.

        While the disk is full, events wait in memory.

        Raises:
            DataError: the journal is damaged or closed.
        """
        self._backlog.put((run, what, json.dumps(fields)))

    def _insert(self, event: tuple[str, str, str]) -> None:
        try:
            fault_point("disk.before_write", file=self._path.name)
            with self._lock:
                self._base.execute("INSERT INTO events (run, kind, body) VALUES (?, ?, ?)", event)
        except (sqlite3.Error, OSError) as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_FULL if isinstance(error, OSError) else 0)
            kind = DiskFull if code & 0xFF in _TEMPORARY else DataError
            why = error.strerror if isinstance(error, OSError) else error
            raise kind(f"cannot write {self._path}: {why}; free space or choose another folder") from None

    def close(self) -> None:
        """Close the file; nothing is written any more."""
        self._backlog.close()
        with self._lock:
            self._base.close()

    def _replay(self) -> tuple[JournaledRun, ...]:
        runs: dict[str, JournaledRun] = {}
        for run, body in self._base.execute("SELECT run, body FROM snapshot ORDER BY place"):
            runs[run] = JournaledRun(run=run, **_fields(body))
        for run, body in self._base.execute("SELECT run, body FROM events ORDER BY id"):
            runs[run] = replace(runs.get(run, JournaledRun(run=run)), **_fields(body))
        over = [run for run, journaled in runs.items() if journaled.outcome]
        for run in over[:-MOST_OVER]:
            del runs[run]
        self._base.execute("BEGIN")
        self._base.execute("DELETE FROM snapshot")
        rows = [(run, json.dumps(_body(journaled))) for run, journaled in runs.items()]
        self._base.executemany("INSERT INTO snapshot (run, body) VALUES (?, ?)", rows)
        self._base.execute("DELETE FROM events")
        self._base.execute("COMMIT")
        return tuple(runs.values())


def _body(journaled: JournaledRun) -> dict[str, Any]:
    return {name: getattr(journaled, name) for name in JournaledRun.__dataclass_fields__ if name != "run"}


def _fields(body: str) -> Mapping[str, Any]:
    found = json.loads(body)
    if not isinstance(found, dict):
        raise TypeError(f"an event must be an object, got {body[:60]!r}")
    return found
