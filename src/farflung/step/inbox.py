"""Where values wait for the compute thread: a keyed store that can be waited on and aborted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from farflung.clock import monotonic
from farflung.errors import WireError

__all__ = ["Inbox"]


class Inbox:
    """Items by key, put by transport threads and taken by the compute thread.

    ``abort`` wakes every waiter with an error; from then on nothing waits any more.
    """

    def __init__(self, limit: int | None = None) -> None:
        """``limit``: the most keys that may wait (None: any number)."""
        self._limit = limit
        #: Guards all fields below. It is notified of each item, of an error, and of a poke.
        self._changed = threading.Condition()
        self._items: dict[Hashable, Any] = {}
        self._error: BaseException | None = None
        #: The keys for which the compute thread waits, and since when (seconds; infinite: it does not wait).
        self._awaits: Callable[[], Iterable[Hashable]] = tuple
        self._since = inf

    def put(self, key: Hashable, item: object) -> None:
        """Store ``item``; a second item under a key that was not taken replaces the first (a repeat after reconnection).

        Raises:
            WireError: more keys wait than the run can have.
        """
        with self._changed:
            if self._limit is not None and len(self._items) >= self._limit and key not in self._items:
                raise WireError(f"{len(self._items)} values wait already, more than this run can have: {key!r:.80} is refused")
            self._items[key] = item
            self._changed.notify_all()

    def take(self, key: Hashable) -> Any:
        """Remove and return the item under ``key``, waiting for it.

        Raises:
            BaseException: what ``abort`` was given.
        """
        self.wait_until(lambda: key in self._items, awaits=lambda: (key,))
        # The lock was free in between. That is safe: one thread takes, and a second ``put`` only replaces the item.
        with self._changed:
            return self._items.pop(key)

    def wait_until(
        self,
        ready: Callable[[], bool],
        seconds: float | None = None,
        awaits: Callable[[], Iterable[Hashable]] | None = None,
    ) -> None:
        """Return once ``ready()`` holds, or ``seconds`` have passed; it is asked under the lock, after each change.

        ``awaits``: the keys for which the compute thread waits, for those who ask (``awaited``); other threads give none.

        Raises:
            BaseException: what ``abort`` was given.
        """
        until = None if seconds is None else monotonic() + seconds
        with self._changed, self._waiting(awaits):
            while True:
                if self._error is not None:  # before ``ready``: an aborted run goes no further, even if its input is here
                    raise self._error
                left = None if until is None else until - monotonic()
                if ready() or (left is not None and left <= 0):
                    return
                self._changed.wait(left)

    @contextmanager
    def _waiting(self, awaits: Callable[[], Iterable[Hashable]] | None) -> Iterator[None]:
        """Inside, the compute thread waits (under the lock)."""
        if awaits is None:
            yield
            return
        self._awaits, self._since = awaits, monotonic()
        try:
            yield
        finally:
            self._awaits, self._since = tuple, inf

    def awaited(self) -> tuple[list[Hashable], float]:
        """Return the keys for which the compute thread waits, and for how many seconds it has waited (0: it does not)."""
        with self._changed:
            return [key for key in self._awaits() if key not in self._items], max(monotonic() - self._since, 0.0)

    def wait_for(self, key: Hashable, seconds: float | None) -> bool:
        """Wait until ``key`` has an item, which stays, or ``seconds`` have passed (None: for ever); whether it has one.

        Raises:
            BaseException: what ``abort`` was given.
        """
        with self._changed, self._waiting(lambda: (key,)):
            self._changed.wait_for(lambda: self._error is not None or key in self._items, seconds)
            if self._error is not None:
                raise self._error
            return key in self._items

    def seen(self, keys: Iterable[Hashable]) -> list[Any] | None:
        """The items under ``keys``, which stay where they are; None where one is missing."""
        with self._changed:
            keys = list(keys)
            return [self._items[key] for key in keys] if self.holds(keys) else None

    def holds(self, keys: Iterable[Hashable]) -> bool:
        """Whether every key has an item; for use inside ``wait_until`` (the lock is held already)."""
        return all(key in self._items for key in keys)

    def poke(self) -> None:
        """Make waiters ask their condition again."""
        with self._changed:
            self._changed.notify_all()

    def abort(self, error: BaseException) -> None:
        """Wake all waiters with ``error``; the first error stays."""
        with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()

    def clear(self) -> None:
        """Drop all items: nobody will take them."""
        with self._changed:
            self._items.clear()

    @property
    def error(self) -> BaseException | None:
        """What ``abort`` was given, if it was called."""
        return self._error

    def __len__(self) -> int:
        return len(self._items)
