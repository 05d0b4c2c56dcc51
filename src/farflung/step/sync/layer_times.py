"""What the layers of one stage take on this replica: seconds of backward, and of an exchange, over the steps of a period."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from farflung.clock import precise_time
from farflung.sync import World

__all__ = ["LayerTimes"]

Vector = npt.NDArray[Any]


class LayerTimes:
    """Marks of one stage; the compute thread sets them.

    A layer's backward lasts from the end of the one above it to its own; what the replica does in between (an update, the begin
    of an exchange) is taken off. A layer that is never reported counts with the layer below it. What an exchange takes per byte
    is the time in which any was under way over the bytes of all.
    """

    def __init__(self, world: World, clock: Callable[[], float] = precise_time) -> None:
        self._clock = clock
        self._nbytes = np.array([float(layer.nbytes) for layer in world.layers])
        self._steps: list[Vector] = []
        self._last = 0.0
        self._seen = np.zeros(len(self._nbytes))
        self._spans: list[tuple[float, float]] = []
        self._bytes = self._busy = 0.0

    def now(self) -> float:
        """The clock by which layers are marked, seconds."""
        return self._clock()

    def begins(self) -> None:
        """The last backward of a step begins."""
        self._seen = np.zeros(len(self._nbytes))
        self._last = self._clock()

    def ready(self, layer: int, at: float) -> None:
        """The backward of ``layer`` ended at ``at``; what it set off is done now."""
        self._seen[layer] = max(at - self._last, 0.0)
        self._last = self._clock()

    def ends(self) -> None:
        """That backward is over: what no layer counted belongs to the first one."""
        self._seen[0] += max(self._clock() - self._last, 0.0)
        self._steps.append(self._seen)

    def exchanged(self, nbytes: float, begin: float, end: float) -> None:
        """An exchange of ``nbytes`` was under way from ``begin`` to ``end``, seconds of any one clock."""
        self._bytes += nbytes
        self._spans.append((begin, end))

    def step_over(self) -> None:
        """All exchanges of a step have ended."""
        reached = 0.0
        for begin, end in sorted(self._spans):
            self._busy += max(end - max(begin, reached), 0.0)
            reached = max(reached, end)
        self._spans.clear()

    def take(self) -> Vector:
        """float32[2 L] as ``sync.adapting.times_of``: medians over the steps since the last call; zeros: nothing was seen."""
        backward = np.median(self._steps, axis=0) if self._steps else np.zeros(len(self._nbytes))
        exchange = self._nbytes * (self._busy / self._bytes if self._bytes else 0.0)
        self._steps, self._bytes, self._busy = [], 0.0, 0.0
        return np.concatenate([backward, exchange]).astype(np.float32)
