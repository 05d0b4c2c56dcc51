"""Named threads with one owner, which joins them. The table in docs/architecture.md has a row for each name."""

from __future__ import annotations

import threading
from collections.abc import Callable

from farflung.clock import monotonic

__all__ = ["ThreadGroup"]


class ThreadGroup:
    """The threads of one owner. Any thread may call; a thread that has ended takes no memory here."""

    def __init__(self) -> None:
        #: Reentrant: a signal's handler may spawn a thread while the main thread holds it.
        self._lock = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._cancelled = threading.Event()

    @property
    def running(self) -> list[threading.Thread]:
        """The threads that have not ended."""
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()]
            return list(self._threads)

    def spawn(
        self, name: str, target: Callable[..., object], *args: object, on_error: Callable[[BaseException], None] | None = None
    ) -> threading.Thread:
        """Start a daemon thread that calls ``target(*args)``, and return it.

        ``on_error`` is called on the thread with whatever ended it early (None: Python's ``threading.excepthook`` is).

        Raises:
            RuntimeError: the system has no more threads.
        """

        def run() -> None:
            try:
                target(*args)
            except BaseException as error:
                if on_error is None:
                    raise
                on_error(error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        # ``start`` returns once the thread runs, so a thread in the list that is not alive has ended
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()]
            thread.start()
            self._threads.append(thread)
        return thread

    def later(self, seconds: float, name: str, target: Callable[[], object]) -> threading.Thread:
        """Start a daemon thread that calls ``target`` after ``seconds``, unless ``cancel`` is called before."""
        return self.spawn(name, lambda: self._cancelled.wait(seconds) or target())

    def cancel(self) -> None:
        """End the threads of ``later`` that still wait, without their calls."""
        self._cancelled.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until all threads have ended, except the calling one; at most ``timeout`` seconds together (None: no limit)."""
        until = None if timeout is None else monotonic() + timeout
        while True:
            running = [one for one in self.running if one is not threading.current_thread()]
            if not running:
                return
            for thread in running:
                left = None if until is None else until - monotonic()
                if left is not None and left <= 0:
                    return
                thread.join(left)
