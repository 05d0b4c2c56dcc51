"""Sets that need not be runs: list schedules, then a seeded search; never worse than the best split into runs.

Equation (5) only needs to know in which step a layer is averaged; nothing asks for neighbours. H steps are then H equal machines,
a unit is a task with a release time (its backward's end), and the sum of the ends beyond the backward is minimized. Two list
schedules in O(H L): in backward order, each unit to the set whose exposure grows least and that waits least; and in forward
order, where the units with the least slack choose first. The best of both and of the contiguous optimum is refined by annealing
over moves and swaps, with a fixed seed and number of proposals, so the result is reproducible; it stops at the lower bound.
Cost O(H L + proposals x L / H).
"""

from __future__ import annotations

import math
import random

from farflung.sync.layer_sets.bounds import exposed_bound
from farflung.sync.layer_sets.contiguous import Units, optimal, without_empty
from farflung.sync.layer_sets.layers import Layers, exposed_seconds

__all__ = ["free", "list_schedules"]

PROPOSALS = 4000
HOT, COLD = 0.03, 3e-5  # temperatures, as shares of the backward pass


def free(layers: Layers, sync_every: int, *, proposals: int = PROPOSALS) -> list[Units]:
    """``sync_every`` sets of units with a short period, at most that of ``optimal``; none is empty.

    ``proposals``: moves and swaps that are tried; 0: only the list schedules.
    """
    candidates = [*list_schedules(layers, sync_every), optimal(layers, sync_every)]
    best = min(candidates, key=lambda sets: exposed_seconds(layers, sets))
    floor = exposed_bound(layers, sync_every)
    if sync_every > 1 and exposed_seconds(layers, best) > floor + 1e-9 * layers.total:
        search = _Annealing(layers, best)
        search.run(proposals, floor)
        best = min(best, search.best, key=lambda sets: exposed_seconds(layers, sets))
    return sorted(without_empty(best, sync_every))


def list_schedules(layers: Layers, sync_every: int) -> list[list[Units]]:
    """The two list schedules: in backward order, and in forward order."""
    return [_backward_list(layers, sync_every), _forward_list(layers, sync_every)]


def _backward_list(layers: Layers, sync_every: int) -> list[Units]:
    ends = [0.0] * sync_every
    sets: list[list[int]] = [[] for _ in ends]
    total = layers.total
    for unit, (ready, comm) in enumerate(zip(layers.ready, layers.comm, strict=True)):

        def growth(index: int, ready: float = ready, comm: float = comm) -> tuple[float, float, float]:
            start = max(ends[index], ready)
            return max(total, start + comm) - max(total, ends[index]), start, ends[index]

        index = min(range(sync_every), key=growth)
        ends[index] = max(ends[index], ready) + comm
        sets[index].append(unit)
    return [tuple(chosen) for chosen in sets]


def _forward_list(layers: Layers, sync_every: int) -> list[Units]:
    load, exposed = [0.0] * sync_every, [0.0] * sync_every
    sets: list[list[int]] = [[] for _ in load]
    slack = layers.slack().tolist()
    for unit in range(len(layers) - 1, -1, -1):
        comm, left = layers.comm[unit], slack[unit]

        def growth(index: int, spare: float = left - comm) -> tuple[float, float]:
            return max(0.0, load[index] - spare - exposed[index]), -load[index]

        index = min(range(sync_every), key=growth)
        load[index] += comm
        exposed[index] = max(exposed[index], load[index] - left)
        sets[index].append(unit)
    return [tuple(reversed(chosen)) for chosen in sets]


class _Annealing:
    """Simulated annealing over sets: a unit moves, or two units change places."""

    def __init__(self, layers: Layers, sets: list[Units]) -> None:
        self._layers = layers
        self._random = random.Random(0)
        self._sets = [sorted(chosen) for chosen in sets]
        self._exposed = [self._exposure(chosen) for chosen in self._sets]
        self._set_of = {unit: index for index, chosen in enumerate(sets) for unit in chosen}
        self._value = math.fsum(self._exposed)
        self._best_value = self._value
        self.best: list[Units] = list(sets)

    def run(self, proposals: int, floor: float) -> None:
        """Try ``proposals`` changes, or stop when exposure has reached ``floor``."""
        total = self._layers.total
        cooling = (COLD / HOT) ** (1.0 / max(1, proposals))
        heat = HOT * total
        for _ in range(proposals):
            self._propose(heat)
            heat *= cooling
            if self._best_value <= floor + 1e-9 * total:
                return

    def _exposure(self, chosen: list[int]) -> float:
        ready, comm, end = self._layers.ready, self._layers.comm, 0.0
        for unit in chosen:
            begin = ready[unit]
            end = max(end, begin) + comm[unit]
        return max(0.0, end - self._layers.total)

    def _propose(self, heat: float) -> None:
        draw = self._random.random
        unit = int(draw() * len(self._layers))
        source, other = self._set_of[unit], None
        if draw() < 0.5:
            target = int(draw() * len(self._sets))
        else:
            other = int(draw() * len(self._layers))
            target = self._set_of[other]
        if target == source:
            return
        left = [item for item in self._sets[source] if item != unit]
        right = [item for item in self._sets[target] if item != other]
        right.append(unit)
        if other is not None:
            left.append(other)
        left.sort()
        right.sort()
        old = self._exposed[source] + self._exposed[target]
        first, second = self._exposure(left), self._exposure(right)
        change = first + second - old
        if change > 0 and (heat <= 0 or draw() >= math.exp(-change / heat)):
            return
        self._sets[source], self._sets[target] = left, right
        self._exposed[source], self._exposed[target] = first, second
        self._set_of[unit] = target
        if other is not None:
            self._set_of[other] = source
        self._value += change
        if self._value < self._best_value - 1e-12 * self._layers.total:
            self._best_value = self._value
            self.best = [tuple(chosen) for chosen in self._sets]
