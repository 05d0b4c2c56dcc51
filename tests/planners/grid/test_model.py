"""Parts of the grid search against brute force: matchings, tours, neighbourhoods, counts of regions."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.planners.grid.budget import Budget
from farflung.planners.grid.counts import Counts, _exchanged, profiles, rows_of
from farflung.planners.grid.genetic import _circular, _crossover, _kernighan_lin, fastest_link
from farflung.planners.grid.matching import bottleneck, bottlenecks, replacements
from farflung.planners.grid.model import aligned, counts_of, data_parallel_seconds, pipeline_seconds
from farflung.planners.grid.starts import starts
from farflung.planners.grid.swaps import Swaps
from farflung.planners.grid.tours import _improved, open_tour, tour_seconds
from tests.support.plans.grid_cases import cost, lognormal, plain_cost, problem_of, regions

SEEDS = st.integers(0, 10**6)


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(1, 5), st.booleans())
def test_bottlenecks_are_those_of_the_best_permutation(seed, m, ties):
    random = np.random.default_rng(seed)
    matrices = random.integers(0, 4, (3, m, m)).astype(float) if ties else random.uniform(size=(3, m, m))
    best = [min(max(w[i, p[i]] for i in range(m)) for p in permutations(range(m))) for w in matrices]
    assert bottlenecks(matrices).tolist() == best
    for w, value in zip(matrices, best, strict=True):
        found, columns = bottleneck(w)
        assert found == value == w[np.arange(m), columns].max()
        assert sorted(columns) == list(range(m))


def test_large_matchings_agree_with_small_ones():
    random = np.random.default_rng(1)
    matrix = random.uniform(size=(1, 11, 11))
    assert bottlenecks(matrix)[0] == bottleneck(matrix[0])[0]
    large = random.uniform(size=(2, 20, 20))
    assert bottlenecks(large).tolist() == [bottleneck(w)[0] for w in large]


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(2, 6))
def test_replacements_are_bottlenecks_without_a_row_and_a_column(seed, m):
    matrices = np.random.default_rng(seed).uniform(size=(2, m, m))
    table = replacements(matrices)
    for r in range(m):
        for c in range(m):
            rest = np.delete(np.delete(matrices, r, axis=1), c, axis=2)
            assert table[:, r, c].tolist() == bottlenecks(rest).tolist()


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(1, 6))
def test_tours_are_the_shortest(seed, n):
    table = np.random.default_rng(seed).uniform(size=(n, n))
    table += table.T
    seconds, order = open_tour(table)
    assert sorted(order) == list(range(n))
    assert seconds == pytest.approx(min(tour_seconds(table, np.array(p)) for p in permutations(range(n))))


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(2, 12))
def test_the_heuristic_for_long_tours_is_a_tour_and_locally_best(seed, n):
    table = np.random.default_rng(seed).uniform(size=(n, n))
    table += table.T
    order = _improved(table)
    assert sorted(order) == list(range(n))
    now = tour_seconds(table, order)
    for i in range(n):
        for j in range(i + 1, n):
            other = np.concatenate([order[:i], order[i : j + 1][::-1], order[j + 1 :]])
            assert tour_seconds(table, other) >= now - 1e-9


@settings(deadline=None, max_examples=25)
@given(SEEDS, st.sampled_from([(2, 2), (3, 2), (2, 3), (4, 3), (1, 4), (3, 4), (5, 1)]))
def test_every_swap_is_priced_as_if_it_were_made(seed, shape):
    dp, pp = shape
    n = dp * pp
    problem = problem_of(lognormal(n, seed), dp, pp)
    swaps, random = Swaps(problem), np.random.default_rng(seed)
    flat = random.permutation(n)
    near = swaps.neighbourhood(flat)
    bound = near.cost.copy()
    swaps.exact(flat, near, np.ones((n, n), dtype=bool))
    assert near.base == pytest.approx(cost(problem, flat.reshape(pp, dp)))
    assert np.allclose(near.cost, near.cost.T)
    assert (bound <= near.cost + 1e-12).all()
    for i in range(n):
        for j in range(n):
            if i // dp == j // dp:
                assert near.cost[i, j] == np.inf
                continue
            other = flat.copy()
            other[[i, j]] = flat[[j, i]]
            rows = other.reshape(pp, dp)
            assert near.cost[i, j] == pytest.approx(cost(problem, rows))
            assert near.mean[i, j] == pytest.approx(data_parallel_seconds(problem, counts_of(problem, rows)).mean())


@settings(deadline=None, max_examples=25)
@given(SEEDS, st.sampled_from([(2, 2), (3, 2), (2, 3), (4, 2)]))
def test_costs_are_those_of_the_equations(seed, shape):
    dp, pp = shape
    topology = lognormal(dp * pp, seed)
    problem = problem_of(topology, dp, pp)
    rows = np.random.default_rng(seed).permutation(dp * pp).reshape(pp, dp)
    expected = plain_cost(topology, rows.tolist())
    assert cost(problem, rows) == pytest.approx(expected)
    placed = aligned(problem, rows)
    assert [sorted(stage) for stage in placed.tolist()] == [sorted(stage) for stage in rows.tolist()]
    hops = problem.hop[problem.group[placed[:-1]], problem.group[placed[1:]]].max(axis=1)
    assert hops == pytest.approx(pipeline_seconds(problem, rows))


@settings(deadline=None, max_examples=25)
@given(SEEDS, st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_counts_of_regions_cost_what_their_devices_cost(seed, sizes):
    if sum(sizes) % 2:
        sizes = [*sizes, 1]
    problem = problem_of(regions(sizes, seed), sum(sizes) // 2, 2)
    model, random = Counts(problem), np.random.default_rng(seed)
    rows = random.permutation(sum(sizes)).reshape(2, -1)
    counts = counts_of(problem, rows)
    assert model.cost(counts) == pytest.approx(cost(problem, rows))
    assert model.cost(counts, cost(problem, rows) - 1e-6) == np.inf
    assert np.array_equal(counts_of(problem, rows_of(problem, counts)), counts)


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.lists(st.integers(3, 40), min_size=2, max_size=6), st.sampled_from([2, 3, 5, 8]))
def test_exchanges_and_constructions_keep_devices_and_stages_whole(seed, sizes, pp):
    sizes = [*sizes[:-1], sizes[-1] + (-sum(sizes)) % pp]
    problem = problem_of(regions(sizes, seed), sum(sizes) // pp, pp)
    random = np.random.default_rng(seed)
    tables = [*profiles(problem), *(counts_of(problem, rows) for rows in starts(problem))]
    assert tables
    for rows in starts(problem):
        assert sorted(rows.ravel()) == list(range(sum(sizes)))
    for table in tables:
        now = table
        for _ in range(20):
            other = _exchanged(now, random)
            now = now if other is None else other
            assert (now >= 0).all()
            assert now.sum(axis=1).tolist() == [problem.dp] * pp
            assert now.sum(axis=0).tolist() == problem.sizes.tolist()


def test_remainders_cross_one_edge_only():
    problem = problem_of(regions([21, 30, 29], 3), 10, 8)
    table = profiles(problem)[0]
    assert (table[1:] == table[1]).all()


@settings(deadline=None, max_examples=25)
@given(SEEDS, st.booleans())
def test_offspring_and_local_search_stay_balanced(seed, classical):
    random = np.random.default_rng(seed)
    problem = problem_of(lognormal(12, seed), 3, 4)
    first, second = (np.argsort(random.permutation(12)) // 3 for _ in range(2))
    child = _crossover(first, second, problem, random)
    assert np.bincount(child).tolist() == [3] * 4
    assert (child == second).sum() >= 12 - 2 * 5
    links = Swaps(problem).hop.copy()
    np.fill_diagonal(links, 0.0)
    better = _circular(child, (_kernighan_lin if classical else fastest_link)(links), 4)
    assert np.bincount(better).tolist() == [3] * 4


def test_the_papers_gain_is_mean_outside_minus_fastest_inside():
    random = np.random.default_rng(0)
    links = random.uniform(1, 2, (6, 6))
    links += links.T
    np.fill_diagonal(links, 0.0)
    links[0, 1] = links[1, 0] = 0.5
    label, free = np.array([0, 0, 0, 1, 1, 1]), np.ones(6, dtype=np.int64)
    gain = fastest_link(links)(label, free, 2)
    assert gain[0, 1] == pytest.approx(links[0, 3:].mean() - 0.5)
    assert gain[1, 1] == pytest.approx(links[1, 3:].mean() - 0.5)
    assert gain[2, 1] == -np.inf
    assert gain[0, 0] == -np.inf
    gain = _kernighan_lin(links)(label, free, 2)
    assert gain[2, 1] == pytest.approx(links[2, 3:].sum() - links[2, :3].sum())


def test_a_budget_ends_by_evaluations_or_by_the_clock():
    now = [0.0]
    budget = Budget(3, 10.0, lambda: now[0])
    assert budget.left()
    budget.spend(3)
    assert not budget.left()
    budget = Budget(None, 10.0, lambda: now[0])
    now[0] = 9.9
    assert budget.left()
    now[0] = 10.0
    assert not budget.left()
