"""Sets that are runs of layers in backward order: equal numbers, and the exact optimum of problem (8).

Source: DreamDDP, problem (8) with the start times of equation (7). What differs: the paper searches depth first with pruning.
A split into runs is an interval partition, and the exposure of run [a, b) is ``max(0, C(b) + max_{a<=k<b} w_k)`` with
``C`` the prefix sums of exchange times and ``w_k = -C(k) - slack_k``. The maximum is a step function of ``a``: a stack holds its
steps, and of the starts on one step the earliest is best, because covering less never costs more. So a dynamic program needs
O(log L) per layer and number of sets: O(H L log L) seconds in all, O(H L) memory; numbers of sets are handled as one vector.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from farflung.sync.layer_sets.layers import Layers, Vector

__all__ = ["equal_number", "optimal", "without_empty"]

Units = tuple[int, ...]


def equal_number(layers: Layers, sync_every: int) -> list[Units]:
    """Equal-number partition (Example 1): runs whose numbers of units differ by one at most, in backward order."""
    return [tuple(int(unit) for unit in part) for part in np.array_split(np.arange(len(layers)), sync_every)]


def optimal(layers: Layers, sync_every: int) -> list[Units]:
    """The split into ``sync_every`` runs with the shortest period by equation (7)."""
    count = len(layers)
    starts = _solve(layers, sync_every)
    runs: list[Units] = []
    end, sets = count, sync_every
    while end > 0:
        begin = int(starts[end, sets])
        runs.append(tuple(range(begin, end)))
        end, sets = begin, sets - 1
    return without_empty(runs[::-1], sync_every)


def without_empty(sets: Sequence[Sequence[int]], sync_every: int) -> list[Units]:
    """``sync_every`` sets, none empty (Property 3 of the paper): the last unit of the largest set becomes a set until it fits.

    This never makes the period longer: exposure of a set falls by at least what its last unit costs alone, because every term of
    its exposure holds the last unit's exchange, and the last unit has the least slack. Runs stay runs. A latency that the last
    unit's slack cannot hide makes an exception: the new set then waits for it.
    """
    found = [tuple(chosen) for chosen in sets if len(chosen)]
    while len(found) < sync_every:
        widest = max(range(len(found)), key=lambda index: len(found[index]))
        *rest, last = found[widest]
        found[widest : widest + 1] = [tuple(rest), (last,)]
    return found


class _Steps:
    """The stack of starts. ``height``: minus the maximum of w over [start, b), ascending; ``best``: cheapest cover + w so far."""

    def __init__(self, width: int) -> None:
        self.height: list[float] = []
        self.start: list[int] = []
        self.best: list[Vector] = []
        self.best_start: list[npt.NDArray[np.int64]] = []
        self._width = width

    def push(self, start: int, w: float, cost: Vector) -> None:
        """Start ``start`` joins; steps that are not higher than ``w`` merge with it (``cost[s]``: of all s-set covers)."""
        while self.height and -self.height[-1] <= w:
            start = self.start[-1]
            self.height.pop()
            self.start.pop()
            self.best.pop()
            self.best_start.pop()
        value = cost[start] + w
        if self.height:
            origin = np.where(self.best[-1] <= value, self.best_start[-1], start)
            value = np.minimum(self.best[-1], value)
        else:
            origin = np.full(self._width, start)
        self.height.append(-w)
        self.start.append(start)
        self.best.append(value)
        self.best_start.append(origin)


def _solve(layers: Layers, sync_every: int) -> npt.NDArray[np.int64]:
    """``starts[b, s]``: where the last of at most s runs that cover the first b units begins."""
    count, width = len(layers), sync_every + 1
    done = list(accumulate(layers.comm, initial=0.0))
    slack = layers.slack().tolist()
    cost = np.full((count + 1, width), np.inf)
    cost[0] = 0.0
    starts = np.zeros((count + 1, width), dtype=np.int64)
    steps = _Steps(width)
    never = np.full(width, np.inf), np.zeros(width, dtype=np.int64)
    for end in range(1, count + 1):
        steps.push(end - 1, -done[end - 1] - slack[end - 1], cost)
        hidden = bisect_left(steps.height, done[end])
        value, origin = never
        if hidden:
            value, origin = steps.best[hidden - 1] + done[end], steps.best_start[hidden - 1]
        if hidden < len(steps.height):
            start = steps.start[hidden]
            origin = np.where(value < cost[start], origin, start)
            value = np.minimum(value, cost[start])
        cost[end, 1:] = value[:-1]
        starts[end, 1:] = origin[:-1]
    return starts
