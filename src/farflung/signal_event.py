"""An event that a signal handler may set."""

from __future__ import annotations

from queue import Empty, SimpleQueue

__all__ = ["SignalEvent"]


class SignalEvent:
    """Like ``threading.Event``, whose ``set`` must not be called by a signal handler: a thread that waits holds the event's lock
    for moments, and the handler may run in that very thread. It would then wait for itself. A ``SimpleQueue`` may be put to then.
    """

    def __init__(self) -> None:
        self._set = False
        self._woken: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Set the event."""
        self._set = True
        self._woken.put(None)

    def is_set(self) -> bool:
        """Whether the event is set."""
        return self._set

    def wait(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds until the event is set; return whether it is."""
        if not self._set:
            try:
                self._woken.get(timeout=timeout)
            except Empty:
                return self._set
            self._woken.put(None)  # for other threads that wait
        return True
