"""What a worker reads out of its job: after which steps the run evaluates."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.steps.small_runs import ROWS, small_setup


def evaluated(steps: int, **changes: Any) -> list[int]:
    setup = small_setup("a", steps=steps, **changes)
    return [step for step in range(steps + 2) if setup.evaluates(step)]


def test_evaluations_at_multiples_of_steps_leave_out_the_last_step() -> None:
    assert evaluated(9, evaluate={"every": 3, "batches": 1}) == [3, 6]
    assert evaluated(9, evaluate={"batches": 1}) == []


@pytest.mark.parametrize("accumulate", range(1, 6))
@pytest.mark.parametrize("epoch", range(1, 12))
def test_each_epoch_ends_in_the_step_before_its_evaluation(epoch: int, accumulate: int) -> None:
    sizes = [ROWS] * accumulate
    found = evaluated(40, micro_batch_sizes=sizes, evaluate={"every_batches": epoch, "batches": 1})
    ends = {-(-number * epoch // accumulate) for number in range(1, 1000)}
    assert found == sorted(step for step in ends if step < 40)
