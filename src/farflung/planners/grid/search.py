"""Our own search on DT-FM's cost: annealing over whole neighbourhoods, or over counts of regions.

Source: our own. Where a neighbourhood of swaps can be priced at once (``swaps``), each step draws one swap with Boltzmann's
probability (the smallest of cost minus temperature times Gumbel noise), so no step is lost to rejection; stages are put in
the best order from time to time (Held-Karp). Each cycle cools and begins at the best found so far. Where devices form few
regions, constructed starts and a search over counts come first, which are independent of the number of devices. Where the ways
to part the devices into stages are few, all of them are looked at instead, each in its best order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import comb, prod

import numpy as np

from farflung.planners.grid.budget import Budget
from farflung.planners.grid.counts import REGIONS, anneal_counts
from farflung.planners.grid.matching import SUBSETS, bottleneck
from farflung.planners.grid.model import GridProblem, Indices, counts_of, data_parallel_seconds, pipeline_seconds
from farflung.planners.grid.starts import starts
from farflung.planners.grid.swaps import Neighbourhood, Swaps
from farflung.planners.grid.tours import open_tour

__all__ = ["search"]

#: Up to this many devices a neighbourhood of swaps is priced at once.
_DENSE = 256
_CYCLE = 1000
_HOT, _COLD = 0.01, 0.0005
_TIES = 0.05
_REORDER = 20
#: Up to so many ways to part devices into stages are all looked at.
_ALL = 400


def search(problem: GridProblem, budget: Budget, random: np.random.Generator) -> Indices:
    """The best stages found, in pipeline order, (pp, dp)."""
    if len(problem.hop) <= min(REGIONS, problem.dp * problem.pp // 2):
        return anneal_counts(problem, list(starts(problem)), budget, random)
    priced = []
    for rows in starts(problem):
        priced.append((_cost(problem, rows), rows))
        budget.spend()
        if not budget.left():
            break
    rows = min(priced, key=lambda entry: entry[0])[1]
    if problem.pp == 1 or not budget.left():
        return rows
    if problem.dp <= SUBSETS and _partitions(problem.dp, problem.pp) <= _ALL:
        return _best_of_all(problem, rows, budget)
    if problem.dp <= SUBSETS and problem.dp * problem.pp <= _DENSE:
        return _anneal(problem, rows, budget, random)
    return _climb(problem, rows, budget, random)


def _cost(problem: GridProblem, rows: Indices) -> float:
    groups = data_parallel_seconds(problem, counts_of(problem, rows))
    return float(groups.max() + pipeline_seconds(problem, rows).sum())


def _partitions(dp: int, pp: int) -> int:
    """In how many ways ``dp * pp`` devices form ``pp`` unordered stages."""
    return prod(comb(dp * left - 1, dp - 1) for left in range(1, pp + 1))


def _stages(left: tuple[int, ...], dp: int) -> Iterator[tuple[int, ...]]:
    """All of these ways, each as one tuple of devices, stage after stage."""
    if not left:
        yield ()
        return
    for others in combinations(left[1:], dp - 1):
        rest = tuple(device for device in left[1:] if device not in others)
        for tail in _stages(rest, dp):
            yield (left[0], *others, *tail)


def _best_of_all(problem: GridProblem, rows: Indices, budget: Budget) -> Indices:
    swaps = Swaps(problem)
    best_cost, best = _reordered(swaps, rows.ravel())
    for stages in _stages(tuple(range(swaps.n)), problem.dp):
        if not budget.left():
            break
        budget.spend()
        cost, flat = _reordered(swaps, np.array(stages))
        if cost < best_cost:
            best_cost, best = cost, flat
    return best.reshape(problem.pp, problem.dp)


def _anneal(problem: GridProblem, rows: Indices, budget: Budget, random: np.random.Generator) -> Indices:
    swaps = Swaps(problem)
    best_cost, best = _reordered(swaps, rows.ravel())
    # chance is as good a start as construction where there are no regions; the better of both goes first
    cost, other = _reordered(swaps, random.permutation(swaps.n))
    flat = best if best_cost <= cost else other
    while budget.left():
        for step in range(_CYCLE):
            near = swaps.neighbourhood(flat)
            budget.spend()
            if near.base < best_cost:
                best_cost, best = near.base, flat.copy()
            if not budget.left():
                break
            warm = best_cost * _HOT * (_COLD / _HOT) ** (step / _CYCLE)
            i, j = _drawn(swaps, flat, near, warm, random)
            flat = flat.copy()
            flat[[i, j]] = flat[[j, i]]
            if step % _REORDER == _REORDER - 1:
                cost, flat = _reordered(swaps, flat)
                if cost < best_cost:
                    best_cost, best = cost, flat.copy()
        flat = best
    return _reordered(swaps, best)[1].reshape(problem.pp, problem.dp)


def _reordered(swaps: Swaps, flat: Indices) -> tuple[float, Indices]:
    seconds, order = open_tour(swaps.edges(flat))
    return float(swaps.groups(flat).max()) + seconds, flat.reshape(swaps.pp, swaps.dp)[order].ravel()


def _drawn(swaps: Swaps, flat: Indices, near: Neighbourhood, warm: float, random: np.random.Generator) -> tuple[int, int]:
    """A swap with probability proportional to exp(-cost / warm)."""
    noise = np.triu(random.gumbel(size=near.cost.shape), 1)
    bent = _TIES * near.mean - warm * (noise + noise.T)
    known = np.where(swaps.beside, np.inf, near.cost + bent).min()
    swaps.exact(flat, near, near.cost + bent < known)
    i, j = np.unravel_index(int((near.cost + bent).argmin()), near.cost.shape)
    return int(i), int(j)


def _climb(problem: GridProblem, rows: Indices, budget: Budget, random: np.random.Generator) -> Indices:
    """Random swaps that do not cost more, for networks that neither have few regions nor are small."""
    rows = rows.copy()
    groups = data_parallel_seconds(problem, counts_of(problem, rows))
    edges = pipeline_seconds(problem, rows)
    while budget.left():
        budget.spend()
        a = int(groups.argmax()) if random.random() < 0.5 else int(random.integers(problem.pp))
        b = (a + 1 + int(random.integers(problem.pp - 1))) % problem.pp
        i, j = random.integers(problem.dp, size=2)
        trial = rows.copy()
        trial[a, i], trial[b, j] = rows[b, j], rows[a, i]
        new_groups, new_edges = groups.copy(), edges.copy()
        new_groups[[a, b]] = data_parallel_seconds(problem, counts_of(problem, trial[[a, b]]))
        if new_groups.max() > groups.max():
            continue
        for edge in {j for stage in (a, b) for j in (stage - 1, stage) if 0 <= j < len(edges)}:
            kinds = problem.group[trial[edge]], problem.group[trial[edge + 1]]
            new_edges[edge] = bottleneck(problem.hop[np.ix_(*kinds)])[0]
        if new_groups.max() + new_edges.sum() <= groups.max() + edges.sum():
            rows, groups, edges = trial, new_groups, new_edges
    return rows
