"""Time as a parameter: the real clocks for the runtime, a virtual one for tests and simulation.

Every other module reads the time here.
"""

from __future__ import annotations

import time
from typing import Protocol

from farflung.units import Seconds

__all__ = ["Clock", "MonotonicClock", "VirtualClock", "monotonic", "wall_time"]


def monotonic() -> float:
    """Seconds since an arbitrary moment; never goes back."""
    return time.monotonic()


def wall_time() -> float:
    """Seconds since 1970, for dates that machines exchange or store; may go back."""
    return time.time()


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
