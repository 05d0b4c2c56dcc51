"""The end of a leader whose lease is over, even while a call of the database hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from farflung.clock import monotonic
from farflung.thread_group import ThreadGroup

__all__ = ["LeaseWatch"]


class LeaseWatch:
    """The lease of one leader. When it is over, ``end`` is called on the thread "lease-watch". Any thread may call."""

    def __init__(self, length: float, end: Callable[[str], None]) -> None:
        """``length``: seconds for which a renewal counts."""
        self._length, self._end = length, end
        #: Monotonic time just before the last write that the database accepted.
        self._renewed = 0.0
        self._closed = threading.Event()
        self._threads = ThreadGroup()

    @property
    def expired(self) -> bool:
        """Whether the lease is over."""
        return self._left() < 0

    def begin(self, renewed: float) -> None:
        """The lease begins; ``renewed``: the monotonic time before the write that took the lead."""
        self._renewed = renewed
        self._threads.spawn("lease-watch", self._watch)

    def renew(self, renewed: float) -> None:
        """The database has accepted a write that began at the monotonic time ``renewed``."""
        self._renewed = max(self._renewed, renewed)

    def close(self) -> None:
        """Nobody needs the lease any more. May be called again."""
        self._closed.set()
        self._threads.join()

    def _left(self) -> float:
        return self._renewed + self._length - monotonic()

    def _watch(self) -> None:
        while (left := self._left()) >= 0:
            if self._closed.wait(left):
                return
        if not self._closed.is_set():
            self._end(f"this broker could not renew its lease: the database did not answer for {self._length:.0f} s")
