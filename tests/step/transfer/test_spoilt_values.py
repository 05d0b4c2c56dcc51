"""Which peer sent the first value of a step that is not finite."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from farflung.step.transfer.spoilt_values import SpoiltValues, finite


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 0.0, 60000.0])
def test_whether_an_array_is_finite(dtype: type, value: float) -> None:
    array = np.zeros((3, 4), dtype)
    array[1, 2] = value
    assert finite(array) == finite(array.T[::2]) == np.isfinite(value)


def test_integers_and_empty_arrays_are_finite() -> None:
    assert finite(np.array([1 << 62]))
    assert finite(np.empty(0, np.float32))


def test_the_first_one_of_a_step_counts() -> None:
    values = SpoiltValues()
    values.check(1, "a", np.ones(3))
    for step, peer in [(1, "b"), (1, "c"), (2, "c")]:
        values.check(step, peer, np.array([np.nan]))
    assert [values.source(step) for step in range(4)] == ["", "b", "c", ""]


def test_old_steps_are_forgotten() -> None:
    values = SpoiltValues()
    for step in range(100):
        values.check(step, "b", np.array([np.nan]))
    assert [step for step in range(100) if values.source(step)] == [96, 97, 98, 99]
