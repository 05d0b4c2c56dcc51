"""DT-FM's hybrid genetic search (section 3.4), and the baselines that it is compared with: Kernighan-Lin gains, and chance.

A population of balanced partitions; an offspring takes the stages of a few devices from another parent and is balanced again;
a circular local search moves devices from stage to stage until the chain returns to where it began, and keeps the prefix of
greatest gain; the offspring replaces the worst of the population if it costs less. Costs are exact (matchings and Held-Karp).

What the paper leaves open follows the authors' settings: a population of 100, five devices taken over. What differs: the
authors' program compares an offspring with a truth value instead of the worst cost, and never seeds its generators; both are as
the paper says here. Cost: O(pp^2) moves of O(n pp) steps for a local search, and one evaluation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from farflung.planners.grid.budget import Budget
from farflung.planners.grid.model import Array, GridProblem, Indices
from farflung.planners.grid.swaps import Swaps
from farflung.planners.grid.tours import open_tour

__all__ = ["fastest_link", "genetic", "random_rows"]

_POPULATION = 100
_TAKEN_OVER = 5

#: (label of each device, unlocked devices, pp) -> (n, pp) gain of moving a device to a stage, -inf where it is no candidate.
_Gains = Callable[[Indices, Indices, int], Array]


def random_rows(problem: GridProblem, random: np.random.Generator) -> Indices:
    """Partition, order and matching at random, (pp, dp)."""
    return random.permutation(problem.dp * problem.pp).reshape(problem.pp, problem.dp)


def genetic(problem: GridProblem, budget: Budget, random: np.random.Generator, kernighan_lin: bool = False) -> Indices:
    """The best stages found, in the best order, (pp, dp); ``kernighan_lin``: with that gain instead of the paper's."""
    swaps = Swaps(problem)
    links = swaps.hop.copy()
    np.fill_diagonal(links, 0.0)
    gains = _kernighan_lin(links) if kernighan_lin else fastest_link(links)
    people: list[Indices] = []
    costs: list[float] = []
    while len(people) < _POPULATION and (budget.left() or not people):
        label = np.argsort(random.permutation(swaps.n)) // problem.dp
        people.append(label)
        costs.append(_price(swaps, label)[0])
        budget.spend()
    while budget.left() and problem.pp > 1:
        first, second = random.integers(len(people), size=2)
        child = _crossover(people[first], people[second], problem, random)
        child = _circular(child, gains, problem.pp)
        cost = _price(swaps, child)[0]
        budget.spend()
        worst = int(np.argmax(costs))
        if cost < min(costs):
            budget.improved()
        if cost < costs[worst]:
            people[worst], costs[worst] = child, cost
    return _price(swaps, people[int(np.argmin(costs))])[1]


def _price(swaps: Swaps, label: Indices) -> tuple[float, Indices]:
    rows = np.argsort(label, kind="stable").reshape(swaps.pp, swaps.dp)
    seconds, order = open_tour(swaps.edges(rows.ravel()))
    return float(swaps.groups(rows.ravel()).max()) + seconds, rows[order]


def _crossover(first: Indices, second: Indices, problem: GridProblem, random: np.random.Generator) -> Indices:
    """``second`` with the stages of five devices taken from ``first``; then the first devices of full stages fill the others."""
    child = second.copy()
    points = random.permutation(len(child))[:_TAKEN_OVER]
    child[points] = first[points]
    sizes = np.bincount(child, minlength=problem.pp)
    for device in range(len(child)):
        if sizes[child[device]] > problem.dp:
            sizes[child[device]] -= 1
            child[device] = int(np.argmax(sizes < problem.dp))
            sizes[child[device]] += 1
    return child


def fastest_link(links: Array) -> _Gains:
    """The paper's gain of moving d1 to stage j': mean of its links to j' minus the fastest link d1-d2 of its own stage.

    Candidates of a stage are the two ends of one link, its fastest; of several that are as fast, the first. The gain of a swap
    is that of its two moves together.
    """
    inner = links.copy()
    np.fill_diagonal(inner, np.inf)

    def gains(label: Indices, free: Indices, pp: int) -> Array:
        member = label[:, None] == np.arange(pp)
        within = np.where(label[:, None] == label, inner, np.inf)
        other = within.argmin(axis=1)
        fastest = within[np.arange(len(label)), other]
        mine = np.where(member & (free == 1)[:, None], fastest[:, None], np.inf)
        first = mine.argmin(axis=0)
        ends = np.unique(np.concatenate([first, other[first]]))
        ends = ends[(free[ends] == 1) & np.isfinite(fastest[ends])]
        table = np.full(member.shape, -np.inf)
        gain = links[ends] @ member / np.maximum(member.sum(axis=0), 1) - fastest[ends, None]
        table[ends] = np.where(member[ends], -np.inf, gain)
        return table

    return gains


def _kernighan_lin(links: Array) -> _Gains:
    """Kernighan and Lin's gain: links to the other stage minus links to the own, over all devices."""

    def gains(label: Indices, free: Indices, pp: int) -> Array:
        member = label[:, None] == np.arange(pp)
        to_stage = links @ member
        gain = to_stage - to_stage[np.arange(len(label)), label][:, None]
        return np.where((free == 1)[:, None] & ~member, gain, -np.inf)

    return gains


def _circular(label: Indices, gains: _Gains, pp: int) -> Indices:
    """Cycles of moves while stages are left that none has entered; the result is the best prefix of cycles."""
    free = np.ones(len(label), dtype=np.int64)
    entered: set[int] = set()
    states, total = [label], [0.0]
    for _ in range(pp):
        label, gain = _cycle(states[-1], gains, free, entered)
        states.append(label)
        total.append(total[-1] + gain)
        if len(entered) == pp:
            break
    return states[int(np.argmax(total))]


def _cycle(label: Indices, gains: _Gains, free: Indices, entered: set[int]) -> tuple[Indices, float]:
    """One cycle: each move takes the best candidate of the stage that the last one entered, until one returns to the start.

    The prefix of moves is kept that, closed by the best move home, has the greatest sum of gains; ``free`` and ``entered`` are
    written to.
    """
    pp = int(label.max()) + 1
    now, closed, best, summed = label.copy(), label, 0.0, 0.0
    table = gains(now, free, pp)
    device, target = np.unravel_index(int(table.argmax()), table.shape)
    start = int(label[device])
    while np.isfinite(table[device, target]) and target != start:
        summed += float(table[device, target])
        now[device], free[device] = target, 0
        entered.add(int(target))
        table = np.where((now == target)[:, None], gains(now, free, pp), -np.inf)
        home = int(table[:, start].argmax())
        if np.isfinite(table[home, start]) and (summed + table[home, start] > best or closed is label):
            best, closed = summed + float(table[home, start]), now.copy()
            closed[home] = start
        device, target = np.unravel_index(int(table.argmax()), table.shape)
    return closed, best
