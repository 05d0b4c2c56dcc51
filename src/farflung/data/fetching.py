"""How far a fetch of remote data is: the broker waits while it makes progress, and a run that is over fetches no more."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

__all__ = ["Fetch"]

#: Seconds between two attempts to get a lock.
_POLL = 1.0


class Fetch:
    """What one thread fetches. Any thread may call ``end`` and read ``nbytes``."""

    def __init__(self) -> None:
        #: The bytes so far. They change as long as the fetch makes progress.
        self.nbytes = 0
        self._ended = threading.Event()
        self._ended_by: BaseException | None = None

    @staticmethod
    def current() -> Fetch:
        """Return the fetch of this thread (a new one if there is none)."""
        return _CURRENT.get() or Fetch()

    def use(self) -> None:
        """Make this the fetch of this thread."""
        _CURRENT.set(self)

    def end(self, error: BaseException) -> None:
        """Fetch no more: ``add`` and ``alone`` raise ``error``."""
        self._ended_by = self._ended_by or error
        self._ended.set()

    def add(self, nbytes: int) -> None:
        """Count ``nbytes`` that have come.

        Raises:
            BaseException: what ``end`` was given.
        """
        if self._ended_by is not None:
            raise self._ended_by
        self.nbytes += nbytes

    @contextmanager
    def alone(self, folder: Path) -> Iterator[None]:
        """Wait until no other thread or process of this machine writes ``folder``; what they write meanwhile is counted.

        Raises:
            BaseException: what ``end`` was given.
        """
        before = _size(folder)
        with folder.with_name(f"{folder.name}.lock").open("w") as lock:
            while not _taken(lock.fileno()):
                self._ended.wait(_POLL)
                now = _size(folder)
                self.add(max(now - before, 0))
                before = now
            yield


_CURRENT: ContextVar[Fetch | None] = ContextVar("fetch", default=None)


def _taken(descriptor: int) -> bool:
    """Whether this process has the lock now, or the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _size(folder: Path) -> int:
    """The bytes of the files in ``folder``, of which some may vanish meanwhile."""
    found = 0
    for file in folder.rglob("*"):
        try:
            found += file.stat().st_size
        except OSError:
            continue
    return found
