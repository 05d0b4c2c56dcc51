"""The paper's equations by hand, against each other, and Algorithm 2 against its depth-first search."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest

from farflung.sync import equations as eq
from farflung.sync import partial_sync_schedule
from farflung.sync.layer_sets.contiguous import without_empty
from farflung.sync.layer_sets.dreamddp import assigned
from farflung.sync.layer_sets.layers import Layers
from tests.support.plans.layer_time_instances import period, random_times

BP, COMM = [1.0, 2.0, 3.0], [4.0, 1.0, 2.0]


def test_equations_2_and_5_say_what_is_averaged_when() -> None:
    assert [eq.synchronizes(step, 3) for step in range(6)] == [False, False, True, False, False, True]
    assert [eq.set_of_step(step, 3) for step in range(5)] == [0, 1, 2, 0, 1]


def test_equations_3_and_4() -> None:
    assert eq.ssgd_seconds(10, 0.5, BP, COMM) == 10 * (0.5 + 6 + 7)
    assert eq.local_sgd_seconds(10, 0.5, BP, COMM, 5) == 10 * 6.5 + 2 * 7
    assert eq.local_sgd_seconds(10, 0.5, BP, COMM, 1) == eq.ssgd_seconds(10, 0.5, BP, COMM)


def test_equation_7_start_times() -> None:
    assert eq.backward_ends(BP) == [6.0, 5.0, 3.0]
    assert eq.start_times(BP, COMM, [0, 1, 2]) == {2: 3.0, 1: 5.0, 0: 6.0}
    assert eq.timeline_comm_seconds(BP, COMM, [0, 1, 2]) == 7.0
    assert eq.timeline_comm_seconds(BP, COMM, [0, 2]) == 7.0, "the link waits for layer 0's backward"
    assert eq.summed_comm_seconds(COMM, [0, 2]) == 6.0
    assert eq.timeline_comm_seconds(BP, COMM, []) == 0.0


def test_equation_7_total() -> None:
    sets = [[2, 1], [0]]
    assert eq.partial_local_sgd_seconds(4, 0.5, BP, COMM, sets) == 4 * 0.5 + 2 * (6.0 + 10.0)
    assert eq.partial_local_sgd_seconds(2, 0.0, BP, COMM, [[0, 1, 2], []]) == 10.0 + 6.0


def test_problem_8_is_the_period_of_runs_and_its_sums_differ() -> None:
    random = np.random.default_rng(0)
    seen = False
    for _ in range(50):
        bp, comm = random_times(random, 9, 2.0)
        for method in ("optimal", "dreamddp", "equal_number"):
            found = partial_sync_schedule(bp, comm, 4, method)
            assert eq.period_objective(bp, comm, found.sets) == pytest.approx(found.period_seconds)
            assert eq.partial_local_sgd_seconds(4, 0.0, bp, comm, found.sets) == pytest.approx(found.period_seconds)
            summed = eq.period_objective(bp, comm, found.sets, summed=True)
            assert summed <= found.period_seconds * (1 + 1e-9)
            seen |= summed < found.period_seconds * 0.999
    assert seen
    assert eq.period_objective(BP, COMM, [[2, 1, 0], []]) == 10.0 + 6.0


def fills_bubble(bp: list[float], comm: list[float], chosen: Collection[int], last: int) -> bool:
    """Equation (12): whether a step's time stays when layers L-1, ..., ``last`` join the set (start times of (7))."""
    both = {*chosen, *range(last, len(bp))}
    before = eq.partial_local_sgd_seconds(1, 0.0, bp, comm, [chosen])
    return eq.partial_local_sgd_seconds(1, 0.0, bp, comm, [both]) <= before * (1 + 1e-12)


def test_equation_12_agrees_with_what_filling_adds() -> None:
    random = np.random.default_rng(4)
    for _ in range(30):
        bp, comm = random_times(random, 8, 1.0)
        found = partial_sync_schedule(bp, comm, 3, "dreamddp")
        for chosen, both in zip(found.sets, found.filled(), strict=True):
            fitting = [last for last in range(8) if fills_bubble(bp, comm, chosen, last)]
            assert set(both) == {*chosen, *range(min(fitting, default=8), 8)}


def depth_first(bp: list[float], comm: list[float], sync_every: int) -> float:
    """Algorithm 2 as printed with its errata corrected: the best complete assignment by the sums of (10), which it plans with."""
    count, total = len(bp), sum(bp)
    found: list[list[list[int]]] = []

    def solve(sets: list[list[int]], layer: int, index: int) -> None:
        if layer < 0:
            found.append(sets)
            return
        here = sets[index]
        with_it = [*sets[:index], [*here, layer], *sets[index + 1 :]]
        if index == sync_every - 1:
            solve(with_it, layer - 1, index)
            return
        left = total - sum(bp[i] for chosen in sets[:index] for i in chosen) - (bp[here[0]] if here else 0.0)
        if not here or left >= sum(comm[i] for i in (*here, layer)) - 1e-12:
            solve(with_it, layer - 1, index)
        elif left < sum(comm[i] for i in here) - 1e-12:
            solve(sets, layer, index + 1)
        else:
            solve(with_it, layer - 1, index)
            solve(sets, layer, index + 1)

    solve([[] for _ in range(sync_every)], count - 1, 0)
    return min(float(eq.period_objective(bp, comm, sets, summed=True)) for sets in found)


def test_algorithm_2_is_its_depth_first_search_and_can_lose_the_optimum() -> None:
    random = np.random.default_rng(11)
    lost = 0
    for _ in range(150):
        bp, comm = random_times(random, int(random.integers(4, 13)), float(random.choice([0.5, 1, 2, 4])))
        sync_every = int(random.integers(1, 5))
        count = len(bp)
        printed = [[count - 1 - unit for unit in chosen] for chosen in assigned(Layers.make(bp, comm), sync_every)]
        summed = eq.period_objective(bp, comm, printed, summed=True)
        assert summed == pytest.approx(depth_first(bp, comm, sync_every))
        found = partial_sync_schedule(bp, comm, sync_every, "dreamddp")
        assert found.period_seconds <= period(bp, comm, printed) * (1 + 1e-9)
        best = partial_sync_schedule(bp, comm, sync_every, "optimal").period_seconds
        lost += found.period_seconds > best * (1 + 1e-9)
    assert lost >= 5


def test_empty_sets_get_a_layer_at_no_cost() -> None:
    random = np.random.default_rng(9)
    for _ in range(50):
        bp, comm = random_times(random, 9, 3.0)
        whole = [tuple(range(6)), tuple(range(6, 9))]
        split = without_empty(whole, 5)
        assert sorted(unit for chosen in split for unit in chosen) == list(range(9))
        assert all(split)
        assert len(split) == 5
        named = [[8 - unit for unit in chosen] for chosen in split]
        before = [[8 - unit for unit in chosen] for chosen in whole] + [[]] * 3
        assert period(bp, comm, named) <= period(bp, comm, before) * (1 + 1e-9)
