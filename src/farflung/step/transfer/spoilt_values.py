"""From which peer the first value of a step came that is not finite. It matters only if the step fails: who is to blame then.

Cost: one pass over each value that arrives from a peer, on the transport thread that has just decoded it.
"""

from __future__ import annotations

import math
import threading

import ml_dtypes
import numpy as np

from farflung.engines.base import Array

__all__ = ["SpoiltValues"]

#: Steps that are remembered: no worker is more than one step ahead of another.
_STEPS = 4
#: The bits of an exponent, all of which are set in infinities and NaN.
_EXPONENTS = {np.dtype(np.float16): 0x7C00, np.dtype(ml_dtypes.bfloat16): 0x7F80}


class SpoiltValues:
    """Transport threads call ``check``, the compute thread asks."""

    def __init__(self) -> None:
        #: Guards the next two. Arrays are checked before it is taken: that takes long.
        self._lock = threading.Lock()
        #: step -> the peer; ``_passed_on``: of sums that the peer made of what others sent to it
        self._first: dict[int, str] = {}
        self._passed_on: dict[int, str] = {}

    def check(self, step: int, peer: str, array: Array, *, passed_on: bool = False) -> None:
        """``array`` has come from ``peer`` for ``step``, or was computed here if ``peer`` is this worker.

        ``passed_on``: it is a sum, so another member may be the origin.
        """
        if finite(array):
            return
        found = self._passed_on if passed_on else self._first
        with self._lock:
            found.setdefault(step, peer)
            for old in sorted(found)[:-_STEPS]:
                del found[old]

    def source(self, step: int) -> str:
        """Return the peer that sent the first value of ``step`` that is not finite (empty: nobody did)."""
        with self._lock:
            return self._first.get(step) or self._passed_on.get(step, "")

    def knows_origin(self, step: int) -> bool:
        """Return whether no other member knows better from whom the numbers of ``step`` came that are not finite."""
        with self._lock:
            return step in self._first or step not in self._passed_on


def finite(array: Array) -> bool:
    """Return whether all elements of ``array`` are finite. A sum that overflows counts as not finite: that is no honest value."""
    if array.dtype in _EXPONENTS:
        mask = _EXPONENTS[array.dtype]
        return not np.any((np.ascontiguousarray(array).view(np.uint16) & mask) == mask)
    if array.dtype.kind != "f":
        return True
    with np.errstate(all="ignore"):
        return math.isfinite(float(np.add.reduce(array, axis=None)))
