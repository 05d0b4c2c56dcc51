"""``sync-schedule``: schedules of partial synchronization: exactness, seconds, and the length of their periods."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.sync import partial_sync_schedule
from farflung.sync.equations import partial_local_sgd_seconds

__all__ = ["SyncSchedule", "SyncScheduleSettings", "layer_times"]

Times = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
FAMILIES = ("uniform", "log-normal", "transformer")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncScheduleSettings(Settings):
    """``exact``: instances for brute force. ``instances``: per family and for all ``ratios`` together, at each of ``periods``."""

    exact: int = 500
    instances: int = 300
    ratios: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
    periods: tuple[int, ...] = (3, 5, 10)
    judged_period: int = 5
    layers_from: int = 20
    layers_to: int = 30
    sizes: tuple[str, ...] = ("161x10", "2000x50")
    repeats: int = 9


class SyncSchedule:
    """Schedules of partial synchronization by equation (7)."""

    name = "sync-schedule"
    summary = "partial synchronization: exact scheduler against brute force, its seconds, free sets against contiguous ones"

    def settings(self, quick: bool) -> SyncScheduleSettings:
        """Quick: few and small instances."""
        if quick:
            return SyncScheduleSettings(quick=True, exact=5, instances=3, ratios=(1.0, 4.0), sizes=("20x4",), repeats=1)
        return SyncScheduleSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, SyncScheduleSettings)
        say(f"brute force: {settings.exact} instances")
        worst, algorithm_2 = _against_brute_force(settings)
        say("seconds")
        seconds = {
            f"{size} {method}": _seconds(settings, size, method) for size in settings.sizes for method in ("optimal", "free")
        }
        free = {}
        for sync_every in settings.periods:
            say(f"free sets: {settings.instances} instances of each family, H = {sync_every}")
            free[str(sync_every)] = _free_sets(settings, sync_every)
        figures = {"worst_difference_to_brute_force": worst, "algorithm_2": algorithm_2, "seconds": seconds, "free": free}
        rows = [(f"H = {period}, {name}", *row.values()) for period, table in free.items() for name, row in table.items()]
        rows += [(f"{name}, seconds", value) for name, value in seconds.items()]
        columns = ("case", "shorter % mean", "shorter % max", "gap % mean", "gap % max", "worse", "at bound")
        return Report(figures=figures, columns=columns, rows=rows, checks=_checks(settings, figures))


def layer_times(random: np.random.Generator, family: str, count: int, ratio: float) -> Times:
    """Seconds of backward and exchange per layer, forward order; exchanges sum to ``ratio`` times the backward.

    ``uniform``: both from 0.1 to 1. ``log-normal``: sigma 1. ``transformer``: an embedding (cheap backward, exchange of one to
    six blocks), equal blocks with 5 % noise, a head (backward of one to three blocks; its exchange is small if tied, else the
    embedding's).
    """
    if family == "uniform":
        bp, comm = random.uniform(0.1, 1, count), random.uniform(0.1, 1, count)
    elif family == "log-normal":
        bp, comm = random.lognormal(0, 1, count), random.lognormal(0, 1, count)
    else:
        bp, comm = np.ones(count), np.ones(count)
        bp[0], bp[-1], comm[0] = 0.2, random.uniform(1, 3), random.uniform(1, 6)
        comm[-1] = 0.01 if random.random() < 0.5 else comm[0]
        bp *= random.uniform(0.95, 1.05, count)
    return bp, comm * (ratio * bp.sum() / comm.sum())


def _against_brute_force(settings: SyncScheduleSettings) -> tuple[float, dict[str, Any]]:
    """Largest relative difference to the best of all splits, and how often Algorithm 2 misses the optimum by how much."""
    random = np.random.default_rng(settings.seed)
    worst, lost = 0.0, []
    for number in range(settings.exact):
        count = int(random.integers(2, 21))
        sync_every = int(random.integers(1, min(count, 6) + 1))
        bp, comm = layer_times(random, FAMILIES[number % 3], count, float(random.uniform(0.3, 8)))
        best = _brute_force(bp, comm, sync_every)
        worst = max(worst, abs(partial_sync_schedule(bp, comm, sync_every, "optimal").period_seconds / best - 1))
        lost.append(partial_sync_schedule(bp, comm, sync_every, "dreamddp").period_seconds / best - 1)
    misses = [value for value in lost if value > 1e-9]
    return worst, {"instances": len(lost), "missed": len(misses), "lost_mean": statistics.fmean(lost), "lost_max": max(lost)}


def _brute_force(bp: npt.NDArray[np.float64], comm: npt.NDArray[np.float64], sync_every: int) -> float:
    """The shortest period of all splits into runs, each set scored by equation (7)."""
    count = len(bp)
    table = np.zeros((count + 1, count + 1))
    for a, b in itertools.combinations(range(count + 1), 2):
        table[a, b] = partial_local_sgd_seconds(1, 0.0, bp.tolist(), comm.tolist(), [range(a, b)])
    cuts = np.array(list(itertools.combinations(range(1, count), sync_every - 1)), dtype=int)
    ends = np.ones((len(cuts), 1), dtype=int)
    edges = np.hstack([0 * ends, cuts, count * ends])
    return float(table[edges[:, :-1], edges[:, 1:]].sum(axis=1).min())


def _seconds(settings: SyncScheduleSettings, size: str, method: str) -> float:
    count, sync_every = (int(part) for part in size.split("x"))
    random = np.random.default_rng(settings.seed)
    taken = []
    for number in range(settings.repeats):
        bp, comm = layer_times(random, FAMILIES[number % 3], count, sync_every / 2)
        begin = time.perf_counter()
        partial_sync_schedule(bp, comm, sync_every, method)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def _instances(settings: SyncScheduleSettings) -> Iterator[tuple[str, float, Times]]:
    for family in FAMILIES:
        random = np.random.default_rng(settings.seed)
        for number in range(settings.instances):
            ratio = settings.ratios[number % len(settings.ratios)]
            count = int(random.integers(settings.layers_from, settings.layers_to + 1))
            yield family, ratio, layer_times(random, family, count, ratio)


def _free_sets(settings: SyncScheduleSettings, sync_every: int) -> dict[str, dict[str, float]]:
    """For each family, and for ratios of at least 3: percent that free sets are shorter, and their gap to the bound."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for family, ratio, (bp, comm) in _instances(settings):
        runs = partial_sync_schedule(bp, comm, sync_every, "optimal")
        free = partial_sync_schedule(bp, comm, sync_every)
        pair = (1 - free.period_seconds / runs.period_seconds, free.period_seconds / free.lower_bound_seconds - 1)
        for group in (family, "all", *(("all, ratio 3 to 8",) if ratio >= 3 else ())):
            found[group].append(pair)
    return {group: _summary(pairs) for group, pairs in found.items()}


def _summary(pairs: list[tuple[float, float]]) -> dict[str, float]:
    shorter, gap = (100 * np.array(column) for column in zip(*pairs, strict=True))
    return {
        "shorter_percent_mean": float(shorter.mean()),
        "shorter_percent_max": float(shorter.max()),
        "gap_percent_mean": float(gap.mean()),
        "gap_percent_max": float(gap.max()),
        "worse": int((shorter < 0).sum()),
        "at_bound": float((gap < 1e-6).mean()),
    }


def _checks(settings: SyncScheduleSettings, figures: dict[str, Any]) -> tuple[Check, ...]:
    judged = not settings.quick
    worst = figures["worst_difference_to_brute_force"]
    checks = [Check(name="exact scheduler against brute force", target="equal", measured=f"{worst:.1e}", passed=worst < 1e-9)]
    for size, limit in (("161x10", 0.005), ("2000x50", 3.0)):
        if (value := figures["seconds"].get(f"{size} optimal")) is not None:
            goal = f"{limit * 1e3:g} ms"
            checks.append(Check(name=f"exact, {size}", target=goal, measured=f"{value * 1e3:.1f} ms", passed=value <= limit))
    table = figures["free"][str(settings.judged_period)]
    worse = sum(entry["all"]["worse"] for entry in figures["free"].values())
    checks.append(Check(name="free sets never worse", target="0", measured=str(worse), passed=worse == 0))
    for group, key, target in (("all, ratio 3 to 8", "shorter_percent_mean", 5.0), ("all", "gap_percent_mean", 6.0)):
        value = table[group][key]
        passed = (value >= target if "shorter" in key else value <= target) if judged else None
        what = "shorter than contiguous" if "shorter" in key else "gap to the bound"
        name = f"free sets, {what}, {group}, H = {settings.judged_period}"
        checks.append(Check(name=name, target=f"{target:g} %", measured=f"{value:.2f} %", passed=passed))
    return tuple(checks)
