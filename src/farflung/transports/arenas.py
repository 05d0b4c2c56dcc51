"""How many arenas glibc's heap of this process has."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["limit_arenas"]

#: ``M_ARENA_MAX`` of mallopt(3). Two: the thread of the event loop seldom waits for one that handles a report.
_ARENA_MAX, _ARENAS = -8, 2


def limit_arenas() -> None:
    """Limit the arenas, before threads are created; elsewhere than on Linux with glibc, nothing is done.

    Threads that handle one report each spread what they allocate over up to 16 arenas on two cores, and holes between what is
    alive stay in each of them: the memory of a broker grew with every member that went and came.
    """
    library = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    mallopt = getattr(library, "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, _ARENAS)
