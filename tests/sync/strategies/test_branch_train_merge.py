"""A seed model, experts that branch from it, and their mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farflung.errors import InputError
from farflung.sync import get_strategy
from tests.support.models.small_nets import flat, group
from tests.support.steps.executor_threads import differing, other, run_threads
from tests.support.steps.strategy_cases import case_of, straight


def test_replicas_are_equal_until_they_branch_and_after_they_merge() -> None:
    found, equal = group("branch_train_merge", branch_at=3, merge_every=4), []
    for _ in range(12):
        found.run(1)
        equal.append(bool(np.array_equal(flat(found, 0), flat(found, 1))))
    assert equal == [True] * 3 + [False, False, False, True] * 2 + [False]


def test_without_a_branch_it_is_local_sgd() -> None:
    found, local = group("branch_train_merge", branch_at=0, merge_every=4), group("local_sgd", sync_every=4)
    found.run(9)
    local.run(9)
    for rank in range(3):
        assert np.array_equal(flat(found, rank), flat(local, rank))


def test_a_branch_that_never_merges_sends_nothing() -> None:
    strategy = get_strategy("branch_train_merge", branch_at=2)
    found = group(strategy)
    assert [len(strategy.step(step, found.replicas[0].world).exchanges) for step in range(50)] == [1, 1] + [0] * 48
    assert strategy.traits.sync_every > 1000, "predictions count no exchange in each step"


def test_workers_send_nothing_after_the_branch_and_end_with_the_mean() -> None:
    def ran(strategy: str, settings: dict[str, Any], steps: int) -> Any:
        return run_threads(other(case_of(strategy, settings, grid=False, steps=steps), make=straight))

    found = ran("branch_train_merge", {"branch_at": 2}, 5)
    assert [report.divergence is None for report in found.reports] == [False, False, True, True, True]
    assert differing(found.held["a"], found.held["c"]) == []
    merged = ran("branch_train_merge", {"branch_at": 0, "merge_every": 5}, 5)
    assert differing(merged.held["a"], ran("local_sgd", {"sync_every": 5}, 5).held["a"]) == []


@pytest.mark.parametrize("settings", [{"branch_at": -1}, {"merge_every": 0.5}])
def test_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="must be a whole number, 0 or more"):
        get_strategy("branch_train_merge", **settings)
