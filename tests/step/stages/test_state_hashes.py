"""Hashes of states: each one covers the state, its optimizer slots, and how they are laid out."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from farflung.engines.base import Array
from farflung.step.stages.state_hashes import state_hashes

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)
STATES = {"layer.w": WEIGHT, "b": np.zeros(3, ml_dtypes.bfloat16), "optimizer/momentum/layer.w": WEIGHT + 1}


def test_equal_states_have_equal_hashes_in_any_order_and_layout() -> None:
    turned = {**dict(reversed(STATES.items())), "layer.w": np.asfortranarray(WEIGHT)}
    assert state_hashes(STATES) == state_hashes(turned)
    assert state_hashes(STATES).keys() == {"layer.w", "b"}


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("layer.w", WEIGHT + 1),
        ("layer.w", WEIGHT.reshape(3, 2)),
        ("layer.w", WEIGHT.view(np.int32)),
        ("optimizer/momentum/layer.w", WEIGHT),
        ("optimizer/other/layer.w", WEIGHT),
    ],
)
def test_whatever_differs_changes_the_hash_of_its_state_only(key: str, other: Array) -> None:
    found, changed = state_hashes(STATES), state_hashes({**STATES, key: other})
    assert found["layer.w"] != changed["layer.w"]
    assert found["b"] == changed["b"]
