"""Time as a parameter: the real clocks for the runtime, a virtual one for tests and simulation.

Every other module reads the time here.
"""

from __future__ import annotations

import time
from typing import Protocol

from farflung.units import Seconds

__all__ = [
    "Clock",
    "MonotonicClock",
    "ThreadClock",
    "VirtualClock",
    "date_text",
    "local_time",
    "monotonic",
    "precise_time",
    "shift_wall_time",
    "sleep",
    "thread_time",
    "wall_time",
]


class _Jump:
    """``seconds``: how far ``wall_time`` is ahead of the machine's clock. Not 0 only after ``shift_wall_time``."""

    seconds = 0.0


def monotonic() -> float:
    """Seconds since an arbitrary moment; never goes back."""
    return time.monotonic()


def precise_time() -> float:
    """Seconds since an arbitrary moment, on the clock with the highest resolution: for measuring short work in one process."""
    return time.perf_counter()


def thread_time() -> float:
    """Seconds for which the calling thread has used a processor: its waits do not count."""
    return time.thread_time()


def wall_time() -> float:
    """Seconds since 1970, for dates that machines exchange or store; may go back."""
    return time.time() + _Jump.seconds


def shift_wall_time(seconds: float) -> None:
    """Let ``wall_time`` jump by ``seconds`` in this process: a fault that chaos runs inject."""
    _Jump.seconds += seconds


def date_text(form: str = "%Y-%m-%d %H:%M:%S", at: float | None = None, *, utc: bool = False) -> str:
    """Return the moment ``at`` (seconds since 1970; None: now) as ``time.strftime`` writes ``form``, in this machine's zone."""
    at = wall_time() if at is None else at
    return time.strftime(form, time.gmtime(at) if utc else time.localtime(at))


def local_time(at: float) -> time.struct_time:
    """Return the moment ``at`` (seconds since 1970) in this machine's zone."""
    return time.localtime(at)


def sleep(seconds: float) -> None:
    """Wait where nothing can wake the thread earlier. A thread that has an owner waits on an event instead."""
    time.sleep(seconds)


class Clock(Protocol):
    """Tells the time in seconds since an arbitrary moment; never goes back."""

    def now(self) -> Seconds:
        """Seconds since this clock's own beginning."""


class MonotonicClock:
    """The machine's monotonic clock."""

    __slots__ = ()

    def now(self) -> Seconds:
        """Seconds of ``time.monotonic``."""
        return Seconds(time.monotonic())


class ThreadClock:
    """The processor time of the thread that asks."""

    __slots__ = ()

    def now(self) -> Seconds:
        """Seconds of ``time.thread_time``."""
        return Seconds(time.thread_time())


class VirtualClock:
    """A clock that stands still until it is told to advance."""

    __slots__ = ("_now",)

    def __init__(self, start: float = 0.0) -> None:
        self._now = float(start)

    def now(self) -> Seconds:
        """The virtual time in seconds."""
        return Seconds(self._now)

    def advance(self, seconds: float) -> None:
        """Move on by ``seconds`` (finite, not negative)."""
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"a clock moves forward by a finite time, not by {seconds}")
        self._now += seconds
