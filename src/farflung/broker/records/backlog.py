"""Lines for a disk that may be full: they wait in memory, in order, and are written when there is space again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from farflung.errors import DiskFull, FarflungError
from farflung.thread_group import ThreadGroup

__all__ = ["Backlog"]

Item = TypeVar("Item")

#: More lines than a watcher's memory has would be lost for watchers that come later.
_MOST = 1000
#: Seconds between two attempts to write, and for which whoever brings too many items is held back.
_AGAIN, _HOLD = 1.0, 10.0


class Backlog(Generic[Item]):
    """Writes items; while the disk is full they wait, and a thread "full-disk" tries again periodically. Any thread may call."""

    def __init__(
        self,
        write: Callable[[Item], None],
        warn: Callable[[str], None],
        most: int = _MOST,
        again: float = _AGAIN,
        hold: float = _HOLD,
    ) -> None:
        """``warn`` receives a text when the disk is full, and when there is space again; ``again``: seconds between attempts.

        While more than ``most`` items wait, whoever brings another one is held back for ``hold`` seconds.
        """
        self._write, self._warn, self._most, self._again, self._hold = write, warn, most, again, hold
        self._changed = threading.Condition()
        self._waiting: deque[Item] = deque()
        self._trying = False
        self._closed = threading.Event()
        self._threads = ThreadGroup()

    @property
    def waits(self) -> bool:
        """Whether items wait for space."""
        return self._trying

    def put(self, item: Item) -> None:
        """Write ``item`` after those that wait. If many wait, the caller is held back for some seconds.

        Raises:
            FarflungError: ``write`` failed, and not because the disk is full.
        """
        with self._changed:
            self._waiting.append(item)
            full = self._flush()
            begins = full is not None and not self._trying
            self._trying = self._trying or begins
            if not begins and full is not None and len(self._waiting) > self._most:
                self._changed.wait(self._hold)
        if begins:
            self._warn(f"{full}; what belongs there waits in memory meanwhile: nothing is lost while this process lives")
            self._threads.spawn("full-disk", self._try)

    def close(self) -> None:
        """Try once more, and join the thread."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        self._threads.join()

    def _flush(self) -> DiskFull | None:
        """Write what waits (under the lock); return the error if there is no space."""
        try:
            while self._waiting:
                self._write(self._waiting[0])
                self._waiting.popleft()
            self._changed.notify_all()
        except DiskFull as error:
            return error
        return None

    def _try(self) -> None:
        while self._trying:
            closed = self._closed.wait(self._again)
            with self._changed:
                try:
                    self._trying = self._flush() is not None
                except FarflungError as error:
                    self._trying = False
                    self._warn(f"{len(self._waiting)} lines are lost: {error}")
                    self._waiting.clear()
                    return
            if closed and self._trying:
                return
        self._warn("there is space again: what waited is written")
