"""assign_grid: DT-FM's cases, tiny instances against all assignments, and what holds for every method."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.cluster import Topology
from farflung.errors import InputError, PlanError
from farflung.planners import assign_grid
from farflung.planners.grid.genetic import fastest_link
from tests.support.plans.grid_cases import lognormal, plain_cost, regions

METHODS = ("search", "dtfm", "kernighan_lin", "random")
#: What the authors' scheduler uses: 1.3 * 4 * 3 / 24 GB, and 2024 * 2048 * 2 * 61.035 bytes in GiB.
DT_FM = {"dp": 8, "pp": 8, "dp_bytes": 0.65e9, "pp_bytes": 506e6 / 2**30 * 1e9}
OPTIMA = {"dtfm-case3": 16.0868, "dtfm-case4": 34.8020, "dtfm-case5": 49.2184}


def small(topology, dp, pp, **options):
    defaults = {"dp_bytes": 6e8, "pp_bytes": 4e8, "seconds": None, "evaluations": 120, "seed": 0}
    return assign_grid(topology, dp=dp, pp=pp, **(defaults | options))


@pytest.mark.parametrize("name", sorted(OPTIMA))
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_search_reaches_the_proven_optima(name, seed):
    found = assign_grid(Topology.preset(name), **DT_FM, seconds=None, evaluations=2000, seed=seed)
    assert found.cost_seconds == pytest.approx(OPTIMA[name], abs=1e-4)
    assert found.lower_bound_seconds <= found.cost_seconds


@pytest.mark.parametrize(("name", "mean"), [("dtfm-case3", 54.7), ("dtfm-case4", 61.0), ("dtfm-case5", 171.8)])
def test_random_assignments_cost_what_the_authors_measured(name, mean):
    topology = Topology.preset(name)
    costs = [assign_grid(topology, **DT_FM, method="random", seed=seed).cost_seconds for seed in range(60)]
    assert np.mean(costs) == pytest.approx(mean, rel=0.04)


def test_the_papers_search_reaches_an_optimum_and_beats_the_classical_gain():
    topology = Topology.preset("dtfm-case5")
    costs = {
        method: assign_grid(topology, **DT_FM, method=method, seconds=None, evaluations=300).cost_seconds
        for method in ("dtfm", "kernighan_lin")
    }
    assert OPTIMA["dtfm-case5"] - 1e-4 <= costs["dtfm"] < costs["kernighan_lin"] < 90
    third = assign_grid(Topology.preset("dtfm-case3"), **DT_FM, method="dtfm", seconds=None, evaluations=300)
    assert third.cost_seconds == pytest.approx(OPTIMA["dtfm-case3"], abs=1e-4)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_papers_search_finds_the_optimum_as_soon_as_the_authors_program_does(seed):
    """The authors' program, run with seeds, finds it between evaluation 196 and 400."""
    found = assign_grid(Topology.preset("dtfm-case5"), **DT_FM, method="dtfm", seconds=None, evaluations=400, seed=seed)
    assert found.cost_seconds == pytest.approx(OPTIMA["dtfm-case5"], abs=1e-4)


def test_candidates_of_a_stage_are_the_two_ends_of_one_link():
    """Also where all links of a stage are equally fast, as inside a region."""
    gains = fastest_link(np.ones((6, 6)) - np.eye(6))
    table = gains(np.array([0, 0, 0, 1, 1, 1]), np.ones(6, dtype=np.int64), 2)
    assert np.isfinite(table).any(axis=1).tolist() == [True, True, False, True, True, False]


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 10**6), st.sampled_from([(2, 2), (2, 3), (3, 2), (4, 1), (1, 4)]), st.sampled_from(METHODS))
def test_what_holds_for_every_method(seed, shape, method):
    dp, pp = shape
    topology = lognormal(dp * pp, seed)
    found = small(topology, dp, pp, method=method, seed=seed)
    assert [len(stage) for stage in found.devices] == [dp] * pp
    assert sorted(device for stage in found.devices for device in stage) == list(range(dp * pp))
    assert found.lower_bound_seconds <= found.cost_seconds + 1e-9
    assert found.cost_seconds == pytest.approx(found.data_parallel_seconds + found.pipeline_seconds)
    assert found == small(topology, dp, pp, method=method, seed=seed)
    expected = plain_cost(topology, found.devices)
    if method == "random":
        assert found.cost_seconds >= expected - 1e-9
    else:
        assert found.cost_seconds == pytest.approx(expected)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10**6), st.sampled_from([(2, 2), (2, 3), (3, 2)]), st.booleans())
def test_search_finds_the_best_of_all_assignments_of_few_devices(seed, shape, grouped):
    dp, pp = shape
    n = dp * pp
    topology = regions([n - n // 3, n // 3], seed) if grouped else lognormal(n, seed)
    found = small(topology, dp, pp, evaluations=400)
    best = np.inf
    for order in permutations(range(n)):
        rows = [order[j * dp : (j + 1) * dp] for j in range(pp)]
        if all(list(stage) == sorted(stage) for stage in rows) and rows[0] < rows[-1]:
            best = min(best, plain_cost(topology, rows))
    assert found.cost_seconds == pytest.approx(best)
    assert found.lower_bound_seconds <= best + 1e-9


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10**6))
def test_relabelling_devices_does_not_change_the_cost(seed):
    topology = lognormal(6, seed)
    order = np.random.default_rng(seed).permutation(6)
    other = topology.select([topology.names[i] for i in order])
    first, second = small(topology, 3, 2, evaluations=400), small(other, 3, 2, evaluations=400)
    assert first.cost_seconds == pytest.approx(second.cost_seconds)
    moved = [[int(order[device]) for device in stage] for stage in second.devices]
    assert plain_cost(topology, moved) == pytest.approx(second.cost_seconds)
    assert first.lower_bound_seconds == pytest.approx(second.lower_bound_seconds)


def test_search_beats_the_papers_search_on_irregular_networks():
    for seed in range(2):
        topology = lognormal(64, seed)
        ours = assign_grid(topology, **DT_FM, seconds=None, evaluations=300)
        theirs = assign_grid(topology, **DT_FM, method="dtfm", seconds=None, evaluations=300)
        assert ours.cost_seconds < 0.9 * theirs.cost_seconds


def test_thousands_of_devices_in_uneven_regions_are_assigned():
    sizes = [700, 1400, 333, 1021, 1600, 900, 1111, 1000, 1200, 975]
    topology = regions(sizes, 5)
    found = assign_grid(topology, dp=160, pp=64, dp_bytes=6e8, pp_bytes=4e8, seconds=None, evaluations=200)
    assert sorted(device for stage in found.devices for device in stage) == list(range(10_240))
    assert found.lower_bound_seconds <= found.cost_seconds
    chance = assign_grid(topology, dp=160, pp=64, dp_bytes=6e8, pp_bytes=4e8, method="random")
    assert found.cost_seconds < 0.7 * chance.cost_seconds


def test_many_groups_and_wide_stages_are_climbed():
    topology = lognormal(28, 0)
    found = small(topology, 14, 2, evaluations=60)
    assert sorted(device for stage in found.devices for device in stage) == list(range(28))
    assert found.cost_seconds < small(topology, 14, 2, method="random").cost_seconds


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dp": 0}, "dp must be a whole number of at least 1, got 0"),
        ({"pp": 2.0}, "pp must be a whole number of at least 1, got 2.0"),
        ({"dp_bytes": -1.0}, "dp_bytes must be finite and not negative"),
        ({"method": "magic"}, "unknown grid method 'magic': known are search, dtfm, kernighan_lin, random"),
        ({"seconds": 0}, "seconds must be more than 0, got 0"),
        ({"seconds": None}, "seconds=None needs a number of evaluations"),
        ({"evaluations": 0}, "evaluations must be at least 1, got 0"),
        ({"second": 1}, "assign_grid has no option 'second'; known are dp, pp, pp_bytes"),
    ],
)
def test_wrong_options_are_named(options, text):
    given_options = {"dp": 2, "pp": 1, "pp_bytes": 1.0, "dp_bytes": 1.0} | options
    with pytest.raises(InputError, match=text):
        assign_grid(Topology.preset("two-laptops"), **given_options)


def test_a_grid_that_does_not_fit_and_a_missing_option_are_named():
    with pytest.raises(PlanError, match=r"a grid of dp=2 x pp=2 has 4 places for the 2 devices of 'two-laptops'; choose"):
        assign_grid(Topology.preset("two-laptops"), dp=2, pp=2, pp_bytes=1.0, dp_bytes=1.0)
    with pytest.raises(InputError, match="assign_grid needs dp_bytes; write"):
        assign_grid(Topology.preset("two-laptops"), dp=2, pp=1, pp_bytes=1.0)


def test_a_genetic_search_ends_when_it_finds_nothing_better():
    topology = regions([4, 4], 0)
    found = small(topology, 2, 4, method="dtfm", evaluations=3000, patience=150)
    assert 150 <= found.evaluations < 3000
    assert found.cost_seconds == small(topology, 2, 4, method="dtfm", evaluations=3000).cost_seconds
    with pytest.raises(InputError, match=r"patience must be at least 1, got 0; write e\.g\. patience=1000"):
        small(topology, 2, 4, method="dtfm", patience=0)
