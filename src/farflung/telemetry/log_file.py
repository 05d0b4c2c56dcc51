"""Logs for people: lines with a time, in files of bounded size, written without making anybody wait."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from farflung.clock import date_text, wall_time
from farflung.foreign_text import printable

__all__ = ["LogPart", "LogTail", "LogWriter", "read_last", "read_more"]

#: Bytes of a log file; then it becomes ``<name>.1``, in the place of the one before, so a log takes at most twice as much.
_MOST = 2_000_000
#: Characters that may wait to be written.
_MOST_WAITING = 8_000_000
#: Bytes that are read at once.
_BLOCK = 1 << 18


class LogWriter:
    """Adds lines to log files, on a thread of its own (``log-writer``), which ``close`` ends.

    A line that can't be written (a full disk, a missing folder, too many lines that wait) is left out: a log must never stop what
    it is about.
    """

    def __init__(self, now: Callable[[], float] = wall_time) -> None:
        """``now``: seconds since 1970."""
        self._now = now
        self._lines: queue.SimpleQueue[tuple[Path, float, str] | None] = queue.SimpleQueue()
        #: Guards ``_waiting``: characters in the queue.
        self._lock = threading.Lock()
        self._waiting = 0
        self._thread = threading.Thread(target=self._write_all, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, path: Path, text: str) -> None:
        """Add ``text`` to ``path``, from any thread; never waits."""
        with self._lock:
            if self._waiting + len(text) > _MOST_WAITING:
                return
            self._waiting += len(text)
        self._lines.put((path, self._now(), text))

    def close(self) -> None:
        """Write what is left, and end."""
        self._lines.put(None)
        self._thread.join()

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            path, when, text = line
            with self._lock:
                self._waiting -= len(text)
            stamp = date_text(at=when)
            with suppress(OSError):
                _append(path, f"{stamp} {printable(text).rstrip().replace(chr(10), chr(10) + '  ')}\n")


def _append(path: Path, line: str) -> None:
    with suppress(FileNotFoundError):
        if path.stat().st_size + len(line) > _MOST:
            path.replace(_older(path))
    with path.open("a", encoding="utf-8", errors="replace") as file:
        file.write(line)


def _older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


@dataclass(frozen=True, slots=True)
class LogPart:
    """Lines of a log, and the byte ``position`` of its file after the last of them."""

    lines: Sequence[str]
    position: int


def read_last(path: Path, count: int, wanted: Callable[[str], bool] = lambda line: True) -> LogPart:
    """The last ``count`` lines of the log ``path`` that are ``wanted`` (none: there is no such file)."""
    found: list[str] = []
    position = 0
    for file in (_older(path), path):
        position = 0
        with suppress(FileNotFoundError):
            data = file.read_bytes()
            position = data.rfind(b"\n") + 1
            found += filter(wanted, data[:position].decode("utf-8", "replace").splitlines())
    return LogPart(found[len(found) - min(count, len(found)) :], position)


def read_more(path: Path, position: int, wanted: Callable[[str], bool] = lambda line: True) -> LogPart:
    """The lines that were added to ``path`` after ``position``, of a file that began anew meanwhile from its beginning."""
    try:
        if path.stat().st_size < position:
            position = 0
        with path.open("rb") as file:
            file.seek(position)
            data = file.read(_BLOCK)
    except FileNotFoundError:
        return LogPart((), position)
    end = data.rfind(b"\n") + 1
    lines = data[:end].decode("utf-8", "replace").splitlines()
    return LogPart([line for line in lines if wanted(line)], position + end)


class LogTail:
    """The last ``count`` lines of a log that grows. Not thread-safe."""

    def __init__(self, path: Path, count: int) -> None:
        self._path = path
        self._lines: deque[str] = deque(maxlen=count)
        #: Where the next line begins (None: nothing was read yet).
        self._position: int | None = None

    def read(self) -> list[str]:
        """The lines, oldest first (none: there is no such file). Only what was added since the last call is read."""
        size = 0
        with suppress(OSError):
            size = self._path.stat().st_size
        if self._position is None or size < self._position:  # the file began anew, and the rest of the older one counts, too
            part = read_last(self._path, self._lines.maxlen or 0)
            self._lines.clear()
        else:
            part = read_more(self._path, self._position)
        while part.position != self._position:
            self._position = part.position
            self._lines.extend(part.lines)
            part = read_more(self._path, part.position)
        return list(self._lines)
