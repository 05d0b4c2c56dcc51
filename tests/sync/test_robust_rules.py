"""The subspace of the Flag Aggregator: how many directions it has, and what liars can do in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farflung.errors import InputError
from farflung.sync import get_strategy
from farflung.sync.commands import Aggregate
from farflung.sync.robust_rules import flag, geometric_median, merged
from tests.support.models.small_nets import world
from tests.support.steps.executor_threads import other, run_threads
from tests.support.steps.strategy_cases import case_of, close, straight


def rows(members: int, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    truth = random.standard_normal(400)
    return truth, truth + 0.5 * random.standard_normal((members, 400))


def test_a_subspace_that_holds_all_members_gives_their_geometric_median() -> None:
    """One direction loses what members say across it."""
    random = np.random.default_rng(1)
    plane = random.standard_normal((5, 2)) @ random.standard_normal((2, 60))
    np.testing.assert_allclose(flag(plane, 1, 2), geometric_median(plane, 1), atol=1e-5)
    assert np.linalg.norm(flag(plane, 1, 1) - geometric_median(plane, 1)) > 1e-2 * np.linalg.norm(plane.mean(axis=0))


def test_none_given_means_half_as_many_as_members() -> None:
    for members, half in ((5, 3), (6, 3), (7, 4)):
        _, found = rows(members)
        np.testing.assert_array_equal(flag(found, 1, 0), flag(found, 1, half))
        assert not np.array_equal(flag(found, 1, 0), flag(found, 1, half - 1))


def test_more_directions_than_members_are_all_that_members_say() -> None:
    _, found = rows(4)
    np.testing.assert_allclose(flag(found, 1, 9), geometric_median(found, 1), atol=1e-4)
    equal = np.stack([found[0]] * 5)
    np.testing.assert_allclose(flag(equal, 1, 3), found[0], rtol=1e-9)
    assert not flag(np.zeros((5, 3)), 1, 0).any()


@pytest.mark.parametrize("directions", [0, 2, 3])
@pytest.mark.parametrize("lie", [1e6, -3.0, float("nan"), float("inf")])
def test_a_minority_of_liars_moves_it_little(directions: int, lie: float) -> None:
    truth, found = rows(7)
    found[:2] = lie * truth if abs(lie) < 10 else lie
    off = np.linalg.norm(merged("flag", found, 2, directions)[0] - truth) / np.linalg.norm(truth)
    assert off < 0.55


@pytest.mark.parametrize("directions", [0, 2])
def test_strategies_pass_it_on(directions: int) -> None:
    strategy = get_strategy("robust", rule="flag", directions=directions)
    (merge,) = (command for command in strategy.step(0, world()).commands if isinstance(command, Aggregate))
    assert merge.directions == directions
    with pytest.raises(InputError, match="directions = 2 with rule = 'trimmed_mean': set rule = 'flag', or remove directions"):
        get_strategy("robust", directions=2)
    with pytest.raises(InputError, match="directions = -1: must be a whole number, 0 or more"):
        get_strategy("robust", rule="flag", directions=-1)


def test_workers_use_the_subspace() -> None:
    """In all directions of three members it is the geometric median of their gradients."""
    replicas = {0: [("a", range(1)), ("b", range(1, 2)), ("c", range(2, 4))]}

    def ran(**settings: Any) -> Any:
        case = case_of("robust", {"faulty": 1} | settings, grid=False, steps=4, optimizer={"name": "sgd", "lr": 0.02})
        return run_threads(other(case, replicas=replicas, make=straight))

    close(ran(rule="flag", directions=3), ran(rule="geometric_median"))
    with pytest.raises(AssertionError):
        close(ran(rule="flag"), ran(rule="geometric_median"))
