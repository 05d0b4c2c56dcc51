"""The certificate: DT-FM's cases are proven optimal, small grids agree with brute force; without OR-tools an error says so."""

from __future__ import annotations

import sys
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning.grid import DP_BYTES, OPTIMA, PP_BYTES
from farflung.cluster import Device, Topology
from farflung.errors import InputError
from farflung.planners.grid import prove_grid
from farflung.planners.grid.model import aligned, finished, make_problem
from farflung.units import Bytes, FlopsPerSecond

CASE = {"dp": 8, "pp": 8, "dp_bytes": DP_BYTES, "pp_bytes": PP_BYTES}


@pytest.fixture
def _solver() -> None:
    pytest.importorskip("ortools")


@pytest.mark.usefixtures("_solver")
@pytest.mark.parametrize("name", ["dtfm-case3", "dtfm-case4"])
def test_the_cases_of_the_paper_are_proven_optimal(name: str) -> None:
    proof = prove_grid(Topology.preset(name), seconds=None, evaluations=4000, seed=0, **CASE)
    assert proof.optimal
    assert proof.lower_bound_seconds == pytest.approx(OPTIMA[name], abs=1e-4)
    assert proof.assignment.cost_seconds == pytest.approx(OPTIMA[name], abs=1e-4)
    assert proof.assignment.lower_bound_seconds < proof.lower_bound_seconds <= proof.assignment.cost_seconds


@pytest.mark.slow
@pytest.mark.usefixtures("_solver")
def test_case_five_is_proven_optimal() -> None:
    proof = prove_grid(Topology.preset("dtfm-case5"), proof_seconds=100, seconds=None, evaluations=40_000, seed=0, **CASE)
    assert proof.optimal
    assert proof.lower_bound_seconds == pytest.approx(OPTIMA["dtfm-case5"], abs=1e-4)


def network(seed: int, sizes: list[int]) -> Topology:
    draw = np.random.default_rng(seed)
    k = len(sizes)
    group = np.repeat(np.arange(k), sizes)
    devices = [
        Device(name=f"d{i}", memory=Bytes(1e9), speed=FlopsPerSecond(1e9), region=f"r{g}") for i, g in enumerate(group.tolist())
    ]
    return Topology.from_groups(devices, group, draw.uniform(0.001, 0.2, (k, k)), draw.uniform(1e6, 1e8, (k, k)))


@pytest.mark.usefixtures("_solver")
@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 10**6), sizes=st.sampled_from([[2, 4], [3, 3], [1, 2, 3], [6]]), dp=st.sampled_from([2, 3]))
def test_small_grids_are_proven_as_brute_force_finds_them(seed: int, sizes: list[int], dp: int) -> None:
    topology = network(seed, sizes)
    options = {"dp": dp, "pp": 6 // dp, "dp_bytes": 4e6, "pp_bytes": 1e6}
    problem = make_problem(topology, **options)
    every = {tuple(problem.group[list(order)].tolist()): order for order in permutations(range(6))}
    best = min(
        finished(problem, aligned(problem, np.array(order).reshape(6 // dp, dp)), "all", 0.0, 0).cost_seconds
        for order in every.values()
    )
    proof = prove_grid(topology, seconds=None, evaluations=3000, seed=1, **options)
    assert proof.lower_bound_seconds <= best + 1e-9
    assert proof.lower_bound_seconds == pytest.approx(best, abs=2e-5)
    assert proof.optimal == (proof.assignment.cost_seconds <= best + 2e-5)


@pytest.mark.usefixtures("_solver")
def test_a_search_that_missed_the_optimum_gets_no_certificate() -> None:
    proof = prove_grid(Topology.preset("dtfm-case4"), method="random", seed=3, **CASE)
    assert not proof.optimal
    assert proof.lower_bound_seconds == pytest.approx(OPTIMA["dtfm-case4"], abs=1e-4)


def test_without_the_solver_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(InputError, match=r"a certificate needs OR-tools, which is not installed: pip install 'farflung\[cert"):
        prove_grid(Topology.preset("dtfm-case3"), **CASE)


@pytest.mark.usefixtures("_solver")
def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(InputError, match="a proof needs seconds and workers, got 0 and 1"):
        prove_grid(Topology.preset("dtfm-case3"), proof_seconds=0, **CASE)
    draw = np.random.default_rng(0)
    irregular = Topology.from_matrices(draw.uniform(0, 1, (20, 20)), draw.uniform(1e6, 1e7, (20, 20)))
    with pytest.raises(InputError, match="up to 16 groups of interchangeable devices, 'matrices' has 20"):
        prove_grid(irregular, dp=4, pp=5, dp_bytes=1e6, pp_bytes=1e6, seconds=None, evaluations=10)
