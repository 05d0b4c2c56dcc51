"""``chain``: the exact dynamic program for chains against brute force, and its time on larger ones."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median

import numpy as np
import numpy.typing as npt

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.planners.chain_exact import exact_cuts

__all__ = ["ChainBench", "ChainSettings", "Instance"]

Tables = list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Operators with work, weights, values that they keep and values that cross before them; devices with speed, memory, the link
    from the device before (rate, latency) and micro-batches in flight. Units are arbitrary.
    """

    work: tuple[float, ...]
    weights: tuple[float, ...]
    kept: tuple[float, ...]
    cross: tuple[float, ...]
    speed: tuple[float, ...]
    memory: tuple[float, ...]
    rate: tuple[float, ...]
    latency: tuple[float, ...]
    flying: tuple[int, ...]
    micro_batches: int

    @classmethod
    def drawn(cls, seed: int, operators: int | None = None, devices: int | None = None) -> Instance:
        """A random instance; up to 9 operators and 5 devices unless told otherwise."""
        draw = random.Random(seed)
        count = operators or draw.randint(3, 9)
        held = min(devices or draw.randint(1, 5), count)
        micro_batches = draw.randint(1, 12)
        whole = draw.choice([1.2, 2.0, 10.0]) * count / held * 4

        def each(low: float, high: float, number: int) -> tuple[float, ...]:
            return tuple(draw.uniform(low, high) for _ in range(number))

        return cls(
            work=each(0.1, 5.0, count),
            weights=each(0.0, 2.0, count),
            kept=each(0.0, 2.0, count),
            cross=each(0.0, 3.0, count),
            speed=each(0.3, 3.0, held),
            memory=each(0.5 * whole, 1.5 * whole, held),
            rate=tuple(draw.choice([0.3, 1.0, 20.0]) for _ in range(held)),
            latency=tuple(draw.choice([0.0, 0.1, 2.0]) for _ in range(held)),
            flying=tuple(min(held - j + draw.randint(0, 1), micro_batches) for j in range(held)),
            micro_batches=micro_batches,
        )

    def stage(self, j: int, a: int, b: int) -> tuple[float, float]:
        """(pace, seconds) of the operators a to b (exclusive) on device j, infinite where they do not fit."""
        if sum(self.weights[a:b]) + self.flying[j] * sum(self.kept[a:b]) > self.memory[j]:
            return math.inf, math.inf
        compute = sum(self.work[a:b]) / self.speed[j]
        wire = self.cross[a] / self.rate[j] if j else 0.0
        return max(compute, wire), compute + 2 * wire + (2 * self.latency[j] if j else 0.0)

    def seconds(self, cuts: tuple[int, ...]) -> float:
        """A step of the stages between ``cuts`` (both ends included)."""
        found = [self.stage(j, a, b) for j, (a, b) in enumerate(pairwise(cuts))]
        if any(math.isinf(pace) for pace, _ in found):
            return math.inf
        ways = [sum(spent for _, spent in found[j:]) / flying for j, flying in enumerate(self.flying)]
        return sum(spent for _, spent in found) + (self.micro_batches - 1) * max(*ways, *(pace for pace, _ in found))

    def brute(self) -> float:
        """The least over every way to cut (infinite: nothing fits)."""
        n = len(self.work)
        return min(self.seconds((0, *inner, n)) for inner in combinations(range(1, n), len(self.speed) - 1))

    def tables(self) -> Tables:
        """What the dynamic program takes."""
        n = len(self.work) + 1
        found = []
        for j in range(len(self.speed)):
            pace, spent = np.full((n, n), np.inf), np.full((n, n), np.inf)
            for a in range(n - 1):
                for b in range(a + 1, n):
                    pace[a, b], spent[a, b] = self.stage(j, a, b)
            found.append((pace, spent))
        return found

    def exact(self) -> tuple[list[int], float] | None:
        """The dynamic program's answer."""
        return exact_cuts(self.tables(), self.flying, self.micro_batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSettings(Settings):
    """``instances``: small ones, compared with brute force. ``large``: of ``operators`` on ``devices``, timed."""

    instances: int = 300
    large: int = 5
    operators: int = 120
    devices: int = 24


class ChainBench:
    """Equal to brute force; seconds on larger chains."""

    name = "chain"
    summary = "the exact dynamic program for chains on ordered unequal devices against brute force"

    def settings(self, quick: bool) -> ChainSettings:
        """Quick: twenty small ones."""
        return ChainSettings(quick=True, instances=20, large=1, operators=20, devices=4) if quick else ChainSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Solve, compare and time in this process."""
        assert isinstance(settings, ChainSettings)
        say(f"{settings.instances} instances by brute force")
        equal = infeasible = 0
        for number in range(settings.instances):
            instance = Instance.drawn(settings.seed + number)
            best, found = instance.brute(), instance.exact()
            seconds = math.inf if found is None else found[1]
            equal += seconds == best or abs(seconds - best) <= 1e-12 * best
            infeasible += math.isinf(best)
        walls = []
        for number in range(settings.large):
            instance = Instance.drawn(settings.seed + number, settings.operators, settings.devices)
            tables = instance.tables()
            begin = time.perf_counter()
            exact_cuts(tables, instance.flying, instance.micro_batches)
            walls.append(time.perf_counter() - begin)
        say(f"{equal} of {settings.instances} equal")
        return Report(
            figures={"equal": equal, "instances": settings.instances, "infeasible": infeasible, "large_seconds": walls},
            columns=("instances", "equal", "of them infeasible", f"{settings.operators} on {settings.devices}, seconds"),
            rows=[(settings.instances, equal, infeasible, round(median(walls), 3))],
            checks=(
                Check(
                    name="exact dynamic program",
                    target="equal to brute force on every instance",
                    measured=f"{equal} of {settings.instances}",
                    passed=None if settings.quick else equal == settings.instances,
                    note=f"{infeasible} do not fit",
                ),
            ),
        )
