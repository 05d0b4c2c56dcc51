"""Lines for a disk that may be full: they wait in memory, in order, and are written when there is space again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from farflung.errors import DiskFull, FarflungError

__all__ = ["Backlog"]

Item = TypeVar("Item")

#: More than a watcher's memory holds would be lost for those who come later.
_MOST = 1000
_AGAIN = 1.0


class Backlog(Generic[Item]):
    """``write`` is tried with each item; while the disk is full they wait, and are tried again by and by. Any thread may call."""

    def __init__(
        self, write: Callable[[Item], None], warn: Callable[[str], None], most: int = _MOST, again: float = _AGAIN
    ) -> None:
        """``warn`` is told when the disk is full, and when it is not any more; ``again``: seconds between two tries."""
        self._write, self._warn, self._most, self._again = write, warn, most, again
        self._lock = threading.Lock()
        self._waiting: deque[Item] = deque()
        self._trying = False

    def put(self, item: Item) -> None:
        """Write ``item`` after those that wait.

        Raises:
            DiskFull: too many wait already.
            FarflungError: something else is wrong.
        """
        with self._lock:
            self._waiting.append(item)
            full = self._flush()
            if full is not None and len(self._waiting) > self._most:
                raise full
            begins = full is not None and not self._trying
            self._trying = self._trying or begins
        if begins:
            self._warn(f"{full}; what belongs there waits in memory meanwhile: nothing is lost while this process lives")
            threading.Thread(target=self._try, name="full-disk", daemon=True).start()

    def _flush(self) -> DiskFull | None:
        """Write what waits (under the lock); what stands in the way."""
        try:
            while self._waiting:
                self._write(self._waiting[0])
                self._waiting.popleft()
        except DiskFull as error:
            return error
        return None

    def _try(self) -> None:
        pause = threading.Event()
        while self._trying:
            pause.wait(self._again)
            with self._lock:
                try:
                    self._trying = self._flush() is not None
                except FarflungError as error:
                    self._trying = False
                    self._warn(f"{len(self._waiting)} lines are lost: {error}")
                    self._waiting.clear()
                    return
        self._warn("there is space again: what waited is written")
