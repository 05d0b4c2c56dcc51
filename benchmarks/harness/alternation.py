"""Two ways that alternate block by block on one run: the ratio of their times, and how far chance alone moves it.

Each block of one way stands beside a block of the other, in random order, so that slow changes of the machine cancel. The median
of the ratios of the pairs is the figure. Its 95 % interval comes from resampling the pairs (B. Efron, "Bootstrap methods", 1979).
The noise is the same figure for pairs of blocks of one way, which cannot differ.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Alternation", "alternation", "order_of"]

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternation:
    """``change``: the first way's time by the second's, minus 1. ``low``, ``high``: its 95 % interval.

    ``noise``: the same of blocks of the second way by their neighbours of the same way.
    """

    change: float
    low: float
    high: float
    noise: float

    @property
    def uncertainty(self) -> float:
        """Half of the interval."""
        return (self.high - self.low) / 2


def order_of(pairs: int, seed: int) -> list[bool]:
    """The ways of ``2 * pairs`` blocks: in each pair one of both, in random order."""
    chance = random.Random(seed)
    return [way for _ in range(pairs) for way in ((True, False) if chance.random() < 0.5 else (False, True))]


def alternation(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Alternation:
    """Compare times of blocks: ``first[i]`` and ``second[i]`` are those of pair i."""
    chance = random.Random(seed)
    ratios = [a / b - 1 for a, b in zip(first, second, strict=True)]
    found = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES))
    same = [a / b - 1 for a, b in zip(second[::2], second[1::2], strict=False)]
    return Alternation(
        change=statistics.median(ratios),
        low=found[int(0.025 * _RESAMPLES)],
        high=found[int(0.975 * _RESAMPLES)],
        noise=statistics.median(same) if same else 0.0,
    )
