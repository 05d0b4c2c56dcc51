"""Repeating the slices of stragglers in later rounds (Sequential Gradient Coding) against taking them over in the same step.

Source: Krishnan et al., "Sequential Gradient Coding For Straggler Mitigation" (2023), in the form that sums exactly without a
code: what a straggler has not finished in a round is repeated in the next one. The gradient of round t is then complete in round
t + T. The next step of the same model needs it, so T rounds are free only if T + 1 models train in turn on the same workers.

Favors the paper: stragglers are known at once, repeated slices are dealt out evenly, and nothing is transferred twice. Time is
virtual; a worker's share of a step takes 1 in the usual case.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["CASES", "Setting", "later_rounds", "same_step", "table", "waiting"]

#: An idle device computes a slice again that takes so many times its usual time (``plan.duplicates``).
_LATE = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """``workers`` with ``slices`` each; one is a straggler in a step with ``chance``, and then takes ``factor`` times as long."""

    workers: int = 16
    slices: int = 4
    chance: float = 0.05
    factor: float = 5.0
    steps: int = 2000
    seed: int = 0

    def paces(self) -> list[list[float]]:
        """How many times as long each worker takes, for each step."""
        drawn = np.random.default_rng(self.seed).random((self.steps, self.workers)) < self.chance
        found: list[list[float]] = np.where(drawn, self.factor, 1.0).tolist()
        return found


#: The settings of decision 54.
CASES = tuple(Setting(slices=slices, chance=chance) for chance in (0.01, 0.05) for slices in (1, 4, 16))


def waiting(paces: Sequence[float]) -> float:
    """Seconds of a step in which all wait for the slowest worker."""
    return max(paces)


def same_step(paces: Sequence[float], slices: int) -> float:
    """Seconds of a step in which idle workers take slices that have not begun, then late ones, and the first answer counts."""
    usual = 1.0 / slices
    queues = [deque((worker, number) for number in range(slices)) for worker in range(len(paces))]
    begun: dict[tuple[int, int], tuple[float, float]] = {}  # when a slice began first, and its end as things stand
    free = [(0.0, worker) for worker in range(len(paces))]
    copied: set[tuple[int, int]] = set()
    while free:
        now, worker = heapq.heappop(free)
        source = worker if queues[worker] else max(range(len(paces)), key=lambda other: len(queues[other]) * paces[other])
        if queues[source] and (source == worker or len(queues[source]) * paces[source] > paces[worker]):
            piece = queues[source].popleft() if source == worker else queues[source].pop()
            end = now + usual * paces[worker]
            begun[piece] = (now, end)
            heapq.heappush(free, (end, worker))
            continue
        late = [piece for piece, (_, end) in begun.items() if end > now and piece not in copied]
        wanted = min(late, key=lambda piece: begun[piece][0], default=None)
        if wanted is None:
            continue  # nothing is left for this worker
        at = max(now, begun[wanted][0] + _LATE * usual)
        if at + usual * paces[worker] < begun[wanted][1]:
            copied.add(wanted)
            end = at + usual * paces[worker]
            begun[wanted] = (begun[wanted][0], end)
            heapq.heappush(free, (end, worker))
    return max(end for _, end in begun.values())


def later_rounds(paces: Sequence[Sequence[float]], slices: int) -> tuple[float, float]:
    """Seconds of a step if what stragglers leave is repeated in the next round: with two models in turn, and with one model.

    A round ends when the workers that are no stragglers have computed their own slices and their parts of the repeated ones. With
    one model, a round of repeated slices alone follows.
    """
    both = alone = 0.0
    left = 0
    for row in paces:
        usual = min(row)
        sound = sum(pace == usual for pace in row)
        repeated = math.ceil(left / sound) / slices
        seconds = usual * (1.0 + repeated)
        left = sum(slices - math.floor(slices * seconds / pace) for pace in row if pace > usual)
        both += seconds
        alone += usual * (1.0 + (math.ceil(left / sound) / slices))
    return both / len(paces), alone / len(paces)


def table(settings: Sequence[Setting]) -> list[dict[str, float]]:
    """Seconds of a step by each way, for each setting."""
    found = []
    for setting in settings:
        paces = setting.paces()
        both, alone = later_rounds(paces, setting.slices)
        found.append(
            {
                "slices": setting.slices,
                "chance": setting.chance,
                "factor": setting.factor,
                "waiting": float(np.mean([waiting(row) for row in paces])),
                "same_step": float(np.mean([same_step(row, setting.slices) for row in paces])),
                "later_one_model": alone,
                "later_two_models": both,
            }
        )
    return found
