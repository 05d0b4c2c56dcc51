"""``grid``: ``assign_grid`` on DT-FM's cases, on irregular networks against the paper's search, and on thousands of devices."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any, Literal

import numpy as np

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from farflung.cluster import Device, Topology
from farflung.planners import Assignment, assign_grid
from farflung.planners.grid import prove_grid
from farflung.units import Bytes, FlopsPerSecond

__all__ = ["DP_BYTES", "OPTIMA", "PP_BYTES", "Grid", "GridSettings", "cities", "lognormal"]

#: Of GPT3-1.3B in the authors' scheduler: 3 of 24 layers of 1.3e9 float32, and 2024 x 2048 x 2 x 61.035 bytes, called GB by
#: dividing by 2^30; seconds are GB x 8 / Gbit/s.
DP_BYTES = 0.65e9
PP_BYTES = 506e6 / 2**30 * 1e9

#: Proven optimal (branch and bound over regions, and a constraint solver).
OPTIMA: Mapping[str, float] = {"dtfm-case3": 16.0868, "dtfm-case4": 34.8020, "dtfm-case5": 49.2184}
_RANDOM = {"dtfm-case3": 54.7, "dtfm-case4": 61.0, "dtfm-case5": 171.8}

#: dp, pp, and the seconds that planning may take.
_SCALES = ((8, 8, 1.0), (64, 16, 2.0), (160, 64, 10.0))

_Method = Literal["search", "dtfm", "kernighan_lin", "random"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSettings(Settings):
    """``seeds``: runs of the search on each case, ``case_seconds`` each. ``topologies``: irregular networks, ``seconds`` for each
    method. ``draws``: random assignments averaged. ``scales``: how many of the sizes 64, 1,024 and 10,240 (a part of the time
    that planning may take goes to the search, ``share``, the rest is for tables before and matchings after it).
    ``proof_seconds``: that the certificate's solver may take for a case (0, or OR-tools not installed: no certificate).
    """

    seeds: int = 10
    case_seconds: float = 1.0
    dtfm_seconds: float = 10.0
    draws: int = 300
    topologies: int = 20
    seconds: float = 10.0
    scales: int = 3
    share: float = bounded(0.8, most=1.0)
    proof_seconds: float = bounded(120.0)


class Grid:
    """Seconds of DT-FM's model, by method and time."""

    name = "grid"
    summary = "devices onto DP x PP grids: DT-FM's cases, irregular networks, thousands of devices"

    def settings(self, quick: bool) -> GridSettings:
        """Quick: tenths of a second."""
        if quick:
            short = GridSettings(quick=True, seeds=2, case_seconds=0.2, dtfm_seconds=0.2, draws=10, topologies=1, seconds=0.3)
            return replace(short, scales=2, proof_seconds=0.0)
        return GridSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure in this process, one thread."""
        assert isinstance(settings, GridSettings)
        cases = {name: _case(name, settings, say) for name in OPTIMA}
        irregular = [_irregular(seed, settings, say) for seed in range(settings.topologies)]
        scales = [_scale(*scale, settings, say) for scale in _SCALES[: settings.scales]]
        rows: list[tuple[object, ...]] = [
            (name, "search", found["search_worst"], found["optimum"], found["lower_bound"]) for name, found in cases.items()
        ]
        for name, found in cases.items():
            rows += [(name, method, found[method], found["optimum"], found["lower_bound"]) for method in _BASELINES]
        rows += [(f"lognormal {i}", "search / dtfm", r["search"], r["dtfm"], r["lower_bound"]) for i, r in enumerate(irregular)]
        rows += [(f"{r['devices']} devices", "search", r["cost"], r["random"], r["lower_bound"]) for r in scales]
        return Report(
            figures={"cases": cases, "irregular": irregular, "scales": scales},
            columns=("network", "method", "seconds", "against", "lower bound"),
            rows=rows,
            checks=(*_case_checks(cases, settings), *_irregular_checks(irregular, settings), *_scale_checks(scales, settings)),
        )


_BASELINES: tuple[_Method, ...] = ("dtfm", "kernighan_lin", "random")


def _assign(topology: Topology, method: _Method, seconds: float, seed: int) -> Assignment:
    return assign_grid(topology, dp=8, pp=8, dp_bytes=DP_BYTES, pp_bytes=PP_BYTES, method=method, seconds=seconds, seed=seed)


def _case(name: str, settings: GridSettings, say: Say) -> dict[str, Any]:
    say(f"{name}: {settings.seeds} x {settings.case_seconds} s of search, {settings.dtfm_seconds} s of dtfm and kernighan_lin")
    topology = Topology.preset(name)
    found = [_assign(topology, "search", settings.case_seconds, seed) for seed in range(settings.seeds)]
    costs = [one.cost_seconds for one in found]
    result = {
        "optimum": OPTIMA[name],
        "lower_bound": found[0].lower_bound_seconds,
        "search": costs,
        "search_worst": max(costs),
        "optimal": sum(cost <= OPTIMA[name] + 1e-4 for cost in costs),
        "random": fmean(_assign(topology, "random", 1.0, seed).cost_seconds for seed in range(settings.draws)),
    }
    others: tuple[_Method, ...] = ("dtfm", "kernighan_lin")
    for method in others:
        one = _assign(topology, method, settings.dtfm_seconds, settings.seed)
        result |= {method: one.cost_seconds, f"{method}_evaluations": one.evaluations}
    return result | {"certificate": _certificate(topology, settings)}


def _certificate(topology: Topology, settings: GridSettings) -> dict[str, Any] | None:
    """The proven lower bound, where the solver is there."""
    if settings.proof_seconds <= 0 or importlib.util.find_spec("ortools") is None:
        return None
    proof = prove_grid(
        topology, dp=8, pp=8, dp_bytes=DP_BYTES, pp_bytes=PP_BYTES, seconds=1.0, proof_seconds=settings.proof_seconds
    )
    return {"lower_bound": proof.lower_bound_seconds, "optimal": proof.optimal, "solver_seconds": proof.seconds}


def lognormal(count: int, seed: int) -> Topology:
    """Links drawn for each direction: bandwidth of median 1 Gbit/s and sigma 1, latency of median 50 ms and sigma 0.5."""
    random = np.random.default_rng(seed)
    shape = (count, count)
    return Topology.from_matrices(0.05 * random.lognormal(0, 0.5, shape), 125e6 * random.lognormal(0, 1, shape))


def _irregular(seed: int, settings: GridSettings, say: Say) -> dict[str, Any]:
    topology = lognormal(64, seed)
    methods: tuple[_Method, ...] = ("search", "dtfm")
    found = {method: _assign(topology, method, settings.seconds, settings.seed) for method in methods}
    say(f"lognormal {seed}: search {found['search'].cost_seconds:.2f}, dtfm {found['dtfm'].cost_seconds:.2f}")
    return {method: one.cost_seconds for method, one in found.items()} | {
        "lower_bound": found["search"].lower_bound_seconds,
        "search_evaluations": found["search"].evaluations,
        "dtfm_evaluations": found["dtfm"].evaluations,
    }


def cities(count: int, seed: int = 0, regions: int = 10) -> Topology:
    """``count`` devices in uneven regions at random places of a unit square.

    Shares are uniform between 0.3 and 1.7 of the mean. 2 Gbit/s and 5 ms inside; across 1.2 Gbit/s times 0.25^distance and
    5 ms plus 150 ms times the distance.
    """
    random = np.random.default_rng(seed)
    share = random.uniform(0.3, 1.7, regions)
    sizes = np.floor(share / share.sum() * count).astype(np.int64)
    sizes[0] += count - sizes.sum()
    place = random.uniform(size=(regions, 2))
    distance = np.hypot(*(place[:, None] - place).transpose(2, 0, 1))
    alpha, beta = 0.005 + 0.15 * distance, 150e6 * 0.25**distance
    np.fill_diagonal(beta, 250e6)
    group = np.repeat(np.arange(regions), sizes)
    devices = [
        Device(name=f"device-{i}", memory=Bytes(16e9), speed=FlopsPerSecond(1e12), region=f"city-{g}")
        for i, g in enumerate(group.tolist())
    ]
    return Topology.from_groups(devices, group, alpha, beta, f"cities-{count}")


def _scale(dp: int, pp: int, limit: float, settings: GridSettings, say: Say) -> dict[str, Any]:
    topology = cities(dp * pp, settings.seed)
    walls, costs = [], []
    for seed in range(3):
        begin = time.perf_counter()
        found = assign_grid(
            topology, dp=dp, pp=pp, dp_bytes=DP_BYTES, pp_bytes=PP_BYTES, seconds=limit * settings.share, seed=seed
        )
        walls.append(time.perf_counter() - begin)
        costs.append(found.cost_seconds)
    chance = assign_grid(topology, dp=dp, pp=pp, dp_bytes=DP_BYTES, pp_bytes=PP_BYTES, method="random")
    say(f"{dp * pp} devices: {median(costs):.2f} s in {median(walls):.2f} s of planning, random {chance.cost_seconds:.2f}")
    return {
        "devices": dp * pp,
        "dp": dp,
        "pp": pp,
        "limit": limit,
        "wall": walls,
        "costs": costs,
        "cost": median(costs),
        "random": chance.cost_seconds,
        "lower_bound": found.lower_bound_seconds,
    }


def _case_checks(cases: Mapping[str, Any], settings: GridSettings) -> list[Check]:
    checks = []
    for name, found in cases.items():
        proof = found["certificate"]
        if proof is not None:
            checks.append(
                Check(
                    name=f"{name}, certificate",
                    target="the search's cost proven optimal",
                    measured=f"lower bound {proof['lower_bound']:.4f} s",
                    passed=proof["optimal"],
                    note=f"{proof['solver_seconds']:.1f} s of the solver, one thread",
                )
            )
        checks.append(
            Check(
                name=f"{name}, search",
                target=f"{found['optimum']:.3f} s in {settings.case_seconds:g} s, every seed",
                measured=f"{found['optimal']} of {settings.seeds} seeds",
                passed=None if settings.quick else found["optimal"] == settings.seeds,
                note=f"lower bound {found['lower_bound']:.3f} s",
            )
        )
        checks.append(
            Check(
                name=f"{name}, random",
                target=f"{_RANDOM[name]} s within 3 %",
                measured=f"{found['random']:.1f} s",
                passed=None if settings.quick else abs(found["random"] / _RANDOM[name] - 1) < 0.03,
            )
        )
    return checks


def _irregular_checks(runs: list[dict[str, Any]], settings: GridSettings) -> list[Check]:
    gains = [1 - run["search"] / run["dtfm"] for run in runs]
    note = f"{settings.seconds:g} s each, {len(runs)} networks"
    measured = f"mean {fmean(gains):.1%}, least {min(gains):.1%}"
    passed = None if settings.quick else fmean(gains) >= 0.1 and min(gains) >= 0
    return [Check(name="below dtfm", target="10 % on average, never above", measured=measured, passed=passed, note=note)]


def _scale_checks(runs: list[dict[str, Any]], settings: GridSettings) -> list[Check]:
    return [
        Check(
            name=f"planning {run['devices']} devices",
            target=f"{run['limit']:g} s",
            measured=f"{max(run['wall']):.2f} s",
            passed=None if settings.quick else max(run["wall"]) <= run["limit"],
            note=f"cost {run['cost']:.1f} s, random {run['random']:.1f} s, lower bound {run['lower_bound']:.1f} s",
        )
        for run in runs
    ]
