"""Named threads with one owner, which joins them. The table in docs/architecture.md has a row for each name."""

from __future__ import annotations

import threading
from collections.abc import Callable

from farflung.clock import monotonic

__all__ = ["ThreadGroup"]


class ThreadGroup:
    """The threads of one owner. Any thread may call; a thread that has ended takes no memory here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def spawn(self, name: str, target: Callable[..., object], *args: object) -> threading.Thread:
        """Start a daemon thread that calls ``target(*args)``, and return it.

        Raises:
            RuntimeError: the system has no more threads.
        """
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        # ``start`` returns once the thread runs, so a thread in the list that is not alive has ended
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()]
            thread.start()
            self._threads.append(thread)
        return thread

    def join(self, timeout: float | None = None) -> None:
        """Wait until all threads have ended, except the calling one; at most ``timeout`` seconds together (None: no limit)."""
        until = None if timeout is None else monotonic() + timeout
        while True:
            with self._lock:
                self._threads = [one for one in self._threads if one.is_alive()]
                running = [one for one in self._threads if one is not threading.current_thread()]
            if not running:
                return
            for thread in running:
                left = None if until is None else until - monotonic()
                if left is not None and left <= 0:
                    return
                thread.join(left)
