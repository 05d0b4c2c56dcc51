"""Gives freed memory back to the system.

glibc keeps freed blocks of up to 32 MB in its heaps, with holes between what is alive: a stage of 28 M parameters with one
micro-batch in flight took 370 MB beside its states instead of 123. Mapping every large block apart costs page faults at each
operator (3 to 50 % of a step); giving back what is free between micro-batches, seldom, costs next to nothing.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable

__all__ = ["HEAP", "Heap"]

#: Seconds between two times: a page that comes back must be zeroed, about 0.3 s per GB.
_EVERY = 1.0


class Heap:
    """The C library's heap; ``trim`` and the clock are parameters. Elsewhere than on glibc nothing is done."""

    def __init__(self, trim: Callable[[], None] | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._trim = _of_glibc() if trim is None else trim
        self._now, self._next = now, 0.0

    def give_back(self) -> bool:
        """Give back what is free, if that was not done just now; whether it was done."""
        if self._trim is None or self._now() < self._next:
            return False
        self._trim()
        self._next = self._now() + _EVERY
        return True


def _of_glibc() -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return None if trim is None else lambda: trim(0)


#: This process's.
HEAP = Heap()
