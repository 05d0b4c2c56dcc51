"""Reads of a job's data on a thread of their own, so that a disk, a pipe or a data source that never answers blocks nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from farflung.data.fetching import Fetch
from farflung.errors import DataError
from farflung.thread_group import ThreadGroup
from farflung.units import Seconds

__all__ = ["TimedReads"]

Found = TypeVar("Found")

#: A read that hangs is left behind: the system ends its thread with the process.
_END_SECONDS = 1.0


class TimedReads:
    """Calls functions on the thread "data-RUN", one at a time. One thread calls ``read``; any thread may call ``end``."""

    def __init__(self, run: str, place: str, fetch: Fetch | None = None) -> None:
        """``place``: where the data are, for errors. ``fetch`` counts what the calls fetch."""
        self._run, self._place, self._fetch = run, place, fetch or Fetch()
        #: Guards the fields below.
        self._changed = threading.Condition()
        self._asked: Callable[[], Any] | None = None
        #: What the last call returned or raised.
        self._answer: tuple[Any, BaseException | None] | None = None
        self._ended_by: BaseException | None = None
        self._threads = ThreadGroup()

    def read(self, what: str, call: Callable[[], Found], limit: float | None = None) -> Found:
        """Return what ``call()`` returns; ``what`` names it, and ``limit`` is in seconds (None: the broker's limits hold).

        Raises:
            DataError: it has not returned within ``limit``.
            BaseException: what it raises, or what ``end`` was given.
        """
        with self._changed:
            self._unless_ended()
            self._asked, self._answer = call, None
            if not self._threads.running:
                self._threads.spawn(f"data-{self._run}", self._serve)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._answer is not None or self._ended_by is not None, limit)
            self._unless_ended()
            answer = self._take()
            if answer is None:
                self._ended_by = DataError(
                    f"{what} has not come within {Seconds(limit or 0.0)} from {self._place}: "
                    "check the disk, or the network folder, that holds the data"
                )
                self._fetch.end(self._ended_by)
                raise self._ended_by
            found, error = answer
        if error is not None:
            raise error
        result: Found = found
        return result

    def _take(self) -> tuple[Any, BaseException | None] | None:
        answer, self._answer = self._answer, None
        return answer

    def _unless_ended(self) -> None:
        if self._ended_by is not None:
            raise self._ended_by

    def end(self, error: BaseException) -> None:
        """Read no more: ``read`` raises ``error``, from any thread."""
        with self._changed:
            self._ended_by = self._ended_by or error
            self._fetch.end(self._ended_by)
            self._changed.notify_all()

    def close(self) -> None:
        """Join the thread, unless it hangs in a read."""
        self.end(DataError("the run is over here"))
        self._threads.join(_END_SECONDS)

    def _serve(self) -> None:
        self._fetch.use()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked is not None or self._ended_by is not None)
                call, self._asked = self._asked, None
                if call is None or self._ended_by is not None:
                    return
            try:
                answer: tuple[Any, BaseException | None] = call(), None
            except BaseException as error:  # noqa: BLE001 - the thread that reads raises it
                answer = None, error
            with self._changed:
                self._answer = answer
                self._changed.notify_all()
            del answer, call
