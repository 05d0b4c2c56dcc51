"""Sets of layers: what holds for every method, the optimum against brute force, free sets, bubble filling, ties, errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import InputError
from farflung.sync import METHODS, PartialSchedule, partial_sync_schedule
from farflung.sync.layer_sets.bounds import exposed_bound
from farflung.sync.layer_sets.free_sets import free, list_schedules
from farflung.sync.layer_sets.layers import Layers, exposed_seconds
from tests.support.plans.layer_time_instances import assignments, period, problems, random_times, splits

Problem = tuple[list[float], list[float], int]


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("method", METHODS)
@given(problem=problems())
def test_every_method_gives_each_layer_one_step_and_scores_it_by_equation_7(method: str, problem: Problem) -> None:
    bp, comm, sync_every = problem
    found = partial_sync_schedule(bp, comm, sync_every, method)
    assert sorted(layer for chosen in found.sets for layer in chosen) == list(range(len(bp)))
    assert len(found.sets) == found.sync_every == sync_every
    assert all(list(chosen) == sorted(chosen, reverse=True) and chosen for chosen in found.sets)
    assert found.period_seconds == close(period(bp, comm, found.sets)) == close(sum(found.step_seconds))
    assert found.exposed_seconds == close(found.period_seconds - sync_every * sum(bp))
    assert found.lower_bound_seconds <= found.period_seconds * (1 + 1e-9) + 1e-12


@given(problem=problems())
def test_methods_keep_their_order(problem: Problem) -> None:
    found = {method: partial_sync_schedule(*problem, method) for method in METHODS}
    best = found["optimal"].period_seconds
    assert found["free"].period_seconds <= best
    assert best <= min(found["dreamddp"].period_seconds, found["equal_number"].period_seconds) * (1 + 1e-9)
    for method in ("optimal", "dreamddp", "equal_number"):
        runs = [sorted(chosen) for chosen in found[method].sets]
        assert all(run == list(range(run[0], run[-1] + 1)) for run in runs)
        assert runs == sorted(runs, reverse=True), "set 0 holds the output, the last one the input"


def test_the_optimum_is_that_of_brute_force() -> None:
    random = np.random.default_rng(7)
    for _ in range(60):
        count = int(random.integers(1, 11))
        sync_every = int(random.integers(1, min(count, 5) + 1))
        bp, comm = random_times(random, count, float(random.choice([0.3, 1, 3, 8])))
        best = min(period(bp, comm, sets) for sets in splits(count, sync_every))
        assert partial_sync_schedule(bp, comm, sync_every, "optimal").period_seconds == close(best)


def test_the_bound_holds_for_all_sets_and_free_sets_come_near() -> None:
    random = np.random.default_rng(3)
    gaps = []
    for _ in range(25):
        sync_every = int(random.integers(1, 4))
        count = int(random.integers(sync_every, 8 if sync_every < 3 else 7))
        bp, comm = random_times(random, count, float(random.choice([0.5, 1, 2, 4])))
        best = min(period(bp, comm, sets) for sets in assignments(count, sync_every))
        found = partial_sync_schedule(bp, comm, sync_every)
        assert found.lower_bound_seconds <= best * (1 + 1e-9)
        gaps.append(found.period_seconds / best - 1)
    assert max(gaps) < 0.02
    assert np.median(gaps) < 1e-9


def test_the_bound_is_above_the_simple_one() -> None:
    """Two sets can not both begin with the same layer: the simple bound C - H d sees 2 of the 3 exposed seconds."""
    layers = Layers.make([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [])
    simple = max(2.0 * (layer + 1) - 2 * layer for layer in range(3))
    assert exposed_bound(layers, 2) == 3.0 > simple == 2.0
    assert period([1.0] * 3, [2.0] * 3, [{2}, {1, 0}]) - 6.0 == 3.0


def test_one_set_is_full_synchronization_and_as_many_sets_as_layers_are_single() -> None:
    bp, comm = [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]
    for method in METHODS:
        assert partial_sync_schedule(bp, comm, 1, method).sets == ((2, 1, 0),)
        assert sorted(partial_sync_schedule(bp, comm, 3, method).sets) == [(0,), (1,), (2,)]


def test_equal_numbers_differ_by_one_at_most() -> None:
    found = partial_sync_schedule([1.0] * 7, [1.0] * 7, 3, "equal_number")
    assert found.sets == ((6, 5, 4), (3, 2), (1, 0))


def test_free_sets_beat_runs_where_the_input_has_no_slack() -> None:
    bp, comm = [1.0] * 6, [3.0] * 6
    runs, any_sets = partial_sync_schedule(bp, comm, 3, "optimal"), partial_sync_schedule(bp, comm, 3)
    assert any_sets.period_seconds < 0.97 * runs.period_seconds
    assert any_sets.period_seconds == close(any_sets.lower_bound_seconds)


def test_annealing_improves_on_the_list_schedules() -> None:
    random = np.random.default_rng(5)
    better = 0
    for _ in range(12):
        layers = Layers.make(*random_times(random, 18, 4.0))
        start = min(exposed_seconds(layers, sets) for sets in [*list_schedules(layers, 4), free(layers, 4, proposals=0)])
        found = exposed_seconds(layers, free(layers, 4))
        assert found <= start + 1e-12
        better += found < start - 1e-6
    assert better >= 2


@given(problem=problems(), random=st.randoms(use_true_random=False))
def test_a_period_can_begin_with_any_set(problem: Problem, random: Any) -> None:
    bp, comm, sync_every = problem
    found = partial_sync_schedule(bp, comm, sync_every)
    layer = random.randrange(len(bp))
    turned = found.beginning_with([layer])
    assert layer in turned.sets[0]
    assert sorted(turned.sets) == sorted(found.sets)
    assert turned.period_seconds == found.period_seconds
    assert sum(turned.step_seconds) == pytest.approx(sum(found.step_seconds))
    assert not any(layer in added for added in turned.extra)
    assert all(layer not in chosen for chosen in turned.filled()[1:])
    assert found.beginning_with([]) is found


def test_schedules_are_reproducible() -> None:
    bp, comm = random_times(np.random.default_rng(2), 30, 5.0)
    assert partial_sync_schedule(bp, comm, 5) == partial_sync_schedule(tuple(bp), np.asarray(comm), 5)


@pytest.mark.parametrize("method", METHODS)
@given(problem=problems())
def test_filling_adds_all_late_layers_that_take_no_time(method: str, problem: Problem) -> None:
    bp, comm, sync_every = problem
    found = partial_sync_schedule(bp, comm, sync_every, method)
    for chosen, extra, both, seconds in zip(found.sets, found.extra, found.filled(), found.step_seconds, strict=True):
        assert not set(chosen) & set(extra)
        assert list(both) == sorted({*chosen, *extra}, reverse=True)
        assert period(bp, comm, [both]) == close(seconds)
        left = [layer for layer in range(len(bp)) if layer not in both]
        assert not left or all(layer > left[-1] for layer in extra)
        if left:
            assert period(bp, comm, [{*both, left[-1]}]) > seconds * (1 - 1e-9)
            if comm[left[-1]] > 1e-6:
                assert period(bp, comm, [{*both, left[-1]}]) > seconds


def test_filling_at_work() -> None:
    found = partial_sync_schedule([1.0] * 4, [0.5] * 4, 2, "equal_number")
    assert found.sets == ((3, 2), (1, 0))
    assert found.extra == ((1,), (3, 2)), "layer 0 can't be hidden in step 0"


def test_tied_layers_are_one_unit_ready_with_the_earliest() -> None:
    bp, comm = [1.0] * 4, [2.0, 0.5, 0.5, 1.0]
    for method in METHODS:
        found = partial_sync_schedule(bp, comm, 2, method, tied=[(0, 3)])
        assert sum({0, 3} <= set(chosen) for chosen in found.sets) == 1
        merged = [3.0, 0.5, 0.5, 0.0]
        assert found.period_seconds == close(period(bp, merged, found.sets))
    assert partial_sync_schedule(bp, comm, 3, tied=[(0, 3)]).exposed_seconds == 3.0


@pytest.mark.parametrize(
    ("sync_every", "text"),
    [
        (0, "sync_every = 0: a period has at least one step, set it to 1 or more"),
        (-2, "sync_every = -2: a period has at least one step, set it to 1 or more"),
        (
            4,
            "sync_every = 4 with 3 layers: each step averages at least one layer (tied layers count once), set it to at most 3",
        ),
        (1.5, "sync_every = 1.5: it counts steps, write a whole number from 1 to 3"),
        (True, "sync_every = True: it counts steps, write a whole number from 1 to 3"),
    ],
)
def test_a_wrong_period_is_refused(sync_every: int, text: str) -> None:
    with pytest.raises(InputError) as caught:
        partial_sync_schedule([1.0] * 3, [1.0] * 3, sync_every)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("bp", "comm", "text"),
    [
        ([1.0], [1.0, 2.0], "bp_seconds has 1 layers, comm_seconds has 2: give one value of each per layer"),
        ([], [], "bp_seconds and comm_seconds are empty: give at least one layer"),
        ([1.0, -1.0], [1.0, 1.0], "bp_seconds[1] = -1.0: seconds must be finite and not negative; measure the layer again"),
        ([1.0], [float("nan")], "comm_seconds[0] = nan: seconds must be finite and not negative; measure the layer again"),
        ([1.0], [float("inf")], "comm_seconds[0] = inf: seconds must be finite and not negative; measure the layer again"),
        (["x"], [1.0], "bp_seconds must be a sequence of seconds, one number per layer"),
    ],
)
def test_wrong_times_are_refused(bp: Sequence[float], comm: Sequence[float], text: str) -> None:
    with pytest.raises(InputError) as caught:
        partial_sync_schedule(bp, comm, 1)
    assert str(caught.value) == text


def test_a_wrong_method_lists_the_known() -> None:
    with pytest.raises(InputError, match="unknown method 'best': known are free, optimal, dreamddp, equal_number"):
        partial_sync_schedule([1.0], [1.0], 1, "best")


@pytest.mark.parametrize(
    ("tied", "text"),
    [
        ([(0, 7)], "tied group [0, 7]: name at least two layers from 0 to 2"),
        ([(1,)], "tied group [1]: name at least two layers from 0 to 2"),
        ([(0, 1), (1, 2)], "tied group [1, 2] shares layer 1 with another group: join the two"),
    ],
)
def test_wrong_ties_are_refused(tied: list[tuple[int, ...]], text: str) -> None:
    with pytest.raises(InputError) as caught:
        partial_sync_schedule([1.0] * 3, [1.0] * 3, 1, tied=tied)
    assert str(caught.value) == text


def test_ties_count_once_when_sets_are_counted() -> None:
    with pytest.raises(InputError, match="sync_every = 3 with 2 layers"):
        partial_sync_schedule([1.0] * 3, [1.0] * 3, 3, tied=[(0, 2)])


def test_a_schedule_without_any_time() -> None:
    found = partial_sync_schedule([0.0] * 3, [0.0] * 3, 2)
    assert isinstance(found, PartialSchedule)
    assert found.period_seconds == found.lower_bound_seconds == 0.0


def test_a_latency_delays_the_mean_of_a_step_once() -> None:
    bp, comm = [1.0] * 6, [0.5] * 6
    near = partial_sync_schedule(bp, comm, 2, "equal_number")
    far = partial_sync_schedule(bp, comm, 2, "equal_number", latency_seconds=4.0)
    assert near.sets == far.sets
    # the set that ends early hides 4 s less; the set with the last backward waits for all of them
    assert [b - a for a, b in zip(near.step_seconds, far.step_seconds, strict=True)] == pytest.approx([1.5, 4.0])
    with pytest.raises(InputError, match="latency_seconds = -1"):
        partial_sync_schedule(bp, comm, 2, latency_seconds=-1.0)


@pytest.mark.parametrize("method", ["free", "optimal", "dreamddp", "equal_number"])
@given(data=st.data())
@settings(deadline=None, max_examples=25)
def test_no_period_with_a_latency_is_below_the_bound(method: str, data: st.DataObject) -> None:
    seconds = st.floats(0.0, 3.0)
    bp = data.draw(st.lists(seconds, min_size=2, max_size=9))
    comm = [data.draw(seconds) for _ in bp]
    latency = data.draw(st.floats(0.0, 5.0))
    found = partial_sync_schedule(bp, comm, data.draw(st.integers(1, len(bp))), method, latency_seconds=latency)
    assert sorted(layer for chosen in found.sets for layer in chosen) == list(range(len(bp)))
    assert found.lower_bound_seconds <= found.period_seconds * (1 + 1e-9)


def test_the_latency_changes_what_is_chosen() -> None:
    """Without it, all sets hide; with it, layers whose backward ends late would wait, so one set takes all of them."""
    bp, comm = [1.0] * 4, [0.1] * 4
    assert partial_sync_schedule(bp, comm, 2, "optimal", latency_seconds=0.9).exposed_seconds < 2 * 0.9
    near, far = (
        partial_sync_schedule([0.1, 0.1, 5.0, 5.0], [1.0, 1.0, 4.0, 4.0], 2, "free", latency_seconds=x) for x in (0, 4.0)
    )
    assert near.sets != far.sets


@given(problem=problems())
@settings(deadline=None, max_examples=60)
def test_the_papers_references_agree_with_the_fast_methods(problem: Problem) -> None:
    """Brute force is the exact optimum of contiguous sets, and the printed search gives what its dynamic program gives."""
    bp, comm, sync_every = problem
    plans = {
        method: partial_sync_schedule(bp, comm, sync_every, method)
        for method in ("brute_force", "optimal", "depth_first", "dreamddp")
    }
    assert plans["brute_force"].period_seconds == close(float(plans["optimal"].period_seconds))
    layers = Layers.make(bp, comm)

    def hidden(chosen: Sequence[Sequence[int]]) -> float:
        """What problem (8) with plain sums minimizes."""
        count = len(bp)
        units = [[count - 1 - layer for layer in one] for one in chosen]
        return sum(max(0.0, sum(layers.comm[u] for u in one) - float(layers.slack()[min(one)])) for one in units)

    assert hidden(plans["depth_first"].sets) == close(hidden(plans["dreamddp"].sets))


def test_references_refuse_what_takes_too_long() -> None:
    with pytest.raises(InputError, match=r"method = 'brute_force' would look at \d+ assignments, and 500000 are the limit: take"):
        partial_sync_schedule([1.0] * 60, [1.0] * 60, 10, "brute_force")
    with pytest.raises(InputError, match="method = 'depth_first' would look at"):
        partial_sync_schedule([1.0] * 60, [1.0] * 60, 25, "depth_first")
