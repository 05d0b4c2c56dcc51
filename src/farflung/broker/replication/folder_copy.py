"""What has changed in the folder of a broker that leads, as rows for the database."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from farflung.broker.replication.database import Change
from farflung.errors import DataError

__all__ = ["RECORDS_URL", "FolderCopy", "copied_files"]

#: The most bytes of one row, and of one transaction: a transaction renews the lease when it ends. Books are never cut.
_CHUNK, _MOST = 4 << 20, 4 << 20
#: The file with the URL of the database, for a service.
RECORDS_URL = "records-url"
#: Files of this machine only: the lock, ports, addresses, tickets for commands here, and what is being written.
_LOCAL = frozenset({"lock", "ports", "address", "broker-id", "submit-ticket", "dashboard.json", "dashboard.log", RECORDS_URL})
#: Suffixes of a broker's own files, and a name without one: somebody may put other files into its folder.
_OWN, _KEY = frozenset({".sqlite", ".json", ".jsonl", ".log", ".1", ".pem"}), "dashboard-key"
_GROWING = frozenset({".jsonl", ".log"})


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What changes with each write: time of change, size, number of the file."""

    changed: int
    size: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> _Stamp:
        found = path.stat()
        return cls(found.st_mtime_ns, found.st_size, found.st_ino)


def copied_files(home: Path, *, checkpoints: bool, over: Callable[[Path], bool] = lambda run: False) -> list[Path]:
    """Return the files of the broker's folder ``home`` that another broker needs, those of the books first.

    ``checkpoints``: also those of checkpoints. ``over``: which folders of runs are left out.
    """
    found = [path for path in home.iterdir() if path.is_file()] if home.is_dir() else []
    found = [path for path in found if path.suffix in _OWN or path.name == _KEY]
    found += [path for path in (home / "authority").glob("*") if path.is_file()]
    for run in sorted((home / "runs").glob("*")):
        found += [] if over(run) else run_files(run, checkpoints=checkpoints)
    return [path for path in found if not _local(home, path)]


def run_files(run: Path, *, checkpoints: bool) -> list[Path]:
    """Return the files of the folder ``run``; ``checkpoints``: also those of its checkpoints."""
    files = [path for path in run.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return sorted(path for path in files if checkpoints or path.relative_to(run).parts[0] != "checkpoints")


def _local(home: Path, path: Path) -> bool:
    return path.name.startswith(".") or path.name.endswith(("-wal", "-shm", "-journal")) or str(path.relative_to(home)) in _LOCAL


def database_bytes(path: Path) -> bytes:
    """Return the content of the SQLite file ``path``, including what its log has.

    Raises:
        DataError: it is damaged.
    """
    if not path.stat().st_size:
        return b""  # it is being made
    try:
        with closing(sqlite3.connect(path, timeout=10.0)) as base:
            return bytes(base.serialize())
    except sqlite3.Error as error:
        raise DataError(f"cannot read {path}: {error}; restore it from a backup") from None


class FolderCopy:
    """Writes what has changed below ``home``. Any thread may call; changes are numbered under one lock."""

    def __init__(self, home: Path, write: Callable[[Sequence[Change]], None], warn: Callable[[str], None]) -> None:
        """``write`` stores changes or ends the process; ``warn`` receives a line for each file that begins to fail."""
        self._home, self._write, self._warn, self._last = home, write, warn, 0
        self._failed: set[Path] = set()
        self._lock = threading.RLock()
        #: The files whose content is stored, and their state at that time.
        self._stored: dict[Path, tuple[_Stamp, ...]] = {}

    def begin(self, last: int, files: Iterable[Path]) -> None:
        """The database has ``files`` as they are; ``last``: the number of the last change."""
        with self._lock:
            self._last = last
            for path in files:
                self._stored[path] = _stamps(path)

    def has(self, path: Path) -> bool:
        """Whether ``path`` was stored."""
        return path in self._stored

    def compact(self, files: Iterable[Path]) -> None:
        """Store each of ``files`` in one piece the next time, in place of the pieces by which it has grown.

        A large one would be several transactions again, and a broker that takes over between them would have a part of it.
        """
        with self._lock:
            for path in files:
                if path.suffix in _GROWING and (stamps := self._stored.get(path)) and stamps[0].size < _CHUNK:
                    del self._stored[path]

    def sync(self, files: Iterable[Path]) -> dict[Path, DataError | OSError]:
        """Store what has changed in ``files``; returns when the database has it. A file that goes meanwhile is left out.

        Returns the files that cannot be read. The others are stored all the same.
        """
        with self._lock:
            due: list[Change] = []
            stamps: dict[Path, tuple[_Stamp, ...]] = {}
            failed: dict[Path, DataError | OSError] = {}

            def write() -> None:
                if due:
                    self._write(tuple(due))
                due.clear()
                self._stored.update(stamps)
                stamps.clear()

            size = 0
            for path in files:
                for group in self._groups(path, stamps, failed):
                    more = sum(len(change.body) for change in group)
                    if size + more > _MOST:
                        write()
                        size = 0
                    due += group
                    size += more
            write()
            for path in failed.keys() - self._failed:
                self._warn(f"warning: a broker that stands by does not get {path}: {failed[path]}")
            self._failed = failed.keys() | (self._failed - self._stored.keys())
            return failed

    def _groups(
        self, path: Path, stamps: dict[Path, tuple[_Stamp, ...]], failed: dict[Path, DataError | OSError]
    ) -> Iterator[list[Change]]:
        """Return the changes of ``path``, those that belong into one transaction together.

        Then put its state into ``stamps``, or what prevented that into ``failed``.
        """
        try:
            now = _stamps(path)
            if path.suffix == ".sqlite":  # a broker that takes over cannot use a part of a book
                yield list(self._changes(path, now))
            else:
                yield from ([change] for change in self._changes(path, now))
        except FileNotFoundError:
            self._stored.pop(path, None)
        except (DataError, OSError) as error:
            self._stored.pop(path, None)  # a part may be stored
            failed[path] = error
        else:
            stamps[path] = now

    def _changes(self, path: Path, now: tuple[_Stamp, ...]) -> Iterator[Change]:
        before = self._stored.get(path)
        if before == now:
            return
        start = 0
        if path.suffix in _GROWING and before and before[0].inode == now[0].inode and before[0].size <= now[0].size:
            start = before[0].size
        kind = "append" if start else "put"
        for body in _pieces(path, start, now[0].size):
            yield self._change(path, kind, body)
            kind = "append"

    def _change(self, path: Path, kind: str, body: bytes) -> Change:
        self._last += 1
        return Change(number=self._last, path=path.relative_to(self._home).as_posix(), kind=kind, body=body)


def _stamps(path: Path) -> tuple[_Stamp, ...]:
    """Return the state of ``path``; changes of an SQLite file may be in its log."""
    log = path.with_name(f"{path.name}-wal")
    return (_Stamp.of(path), *([_Stamp.of(log)] if path.suffix == ".sqlite" and log.exists() else []))


def _pieces(path: Path, start: int, end: int) -> Iterator[bytes]:
    """Return the bytes of ``path`` from ``start`` to ``end``, at least one piece."""
    if path.suffix == ".sqlite":
        data = database_bytes(path)
        yield from (data[place : place + _CHUNK] for place in range(0, max(len(data), 1), _CHUNK))
        return
    with path.open("rb") as file:
        file.seek(start)
        left = end - start
        while piece := file.read(min(_CHUNK, left)):
            left -= len(piece)
            yield piece
            if not left:
                return
    if end == start:
        yield b""
