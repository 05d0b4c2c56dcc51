"""Gives freed memory back to the system.

glibc keeps freed blocks of up to 32 MB in its heaps, with holes between what is alive: a stage of 28 M parameters with one
micro-batch in flight took 370 MB beside its states instead of 123. Mapping every large block apart costs page faults at each
operator (3 to 50 % of a step); giving back what is free between micro-batches costs as little as it is seldom done.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Callable

from farflung.clock import thread_time

__all__ = ["HEAP", "Heap"]

#: Growth in bytes that is worth it, and seconds between two looks: at least so many, and so many per byte that was given back.
#: A page that comes back must be zeroed, 0.3 to 1 s per GB: that is to be 1 to 2 % of the time for which the thread computes. A
#: process that waits for others, as those of a pipeline do, would spend more by another clock.
_MUCH, _EVERY, _PER_BYTE = 48 << 20, 1.0, 40e-9


class _Looks(threading.local):
    """When a thread looks again, by its own clock."""

    again = 0.0


class Heap:
    """The C library's heap. ``resident`` (bytes of the process), ``trim`` and the clock are parameters; on Linux with glibc they
    are its own, elsewhere nothing is done."""

    def __init__(
        self,
        resident: Callable[[], int] | None = None,
        trim: Callable[[], None] | None = None,
        now: Callable[[], float] = thread_time,
    ) -> None:
        own = _of_glibc()
        self._resident, self._trim = resident or own[0], trim or own[1]
        self._now, self._next, self._least = now, _Looks(), 0

    def give_back(self) -> bool:
        """Give back what is free, if the process has grown much since that was done, and not just now; whether it was done."""
        if self._now() < self._next.again:
            return False
        before = self._resident()
        grown, given = before >= self._least + _MUCH, 0
        if grown:
            self._trim()
            self._least = self._resident()
            given = max(before - self._least, 0)
        self._next.again = self._now() + max(_EVERY, _PER_BYTE * given)
        return grown


def _of_glibc() -> tuple[Callable[[], int], Callable[[], None]]:
    library = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    trim = getattr(library, "malloc_trim", None)
    if trim is None:
        return (lambda: 0), (lambda: None)
    return _resident, (lambda: trim(0))


def _resident() -> int:
    """Bytes of this process; by the name ``self``, which also holds after a fork and in a namespace of its own."""
    with open("/proc/self/statm", "rb") as sizes:
        return int(sizes.read().split()[1]) * mmap.PAGESIZE


#: This process's.
HEAP = Heap()
