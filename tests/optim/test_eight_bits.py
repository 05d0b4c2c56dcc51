"""States in 8 bits: near the values, the same bits on both engines, and stable when they are packed again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from farflung.engines.torch.optimizers.packed_states import packed, unpacked
from farflung.errors import CheckpointError
from farflung.optim.eight_bits import (
    SIGNED,
    UNSIGNED,
    check_stored,
    packed_states,
    packs,
    stored_shapes,
    unpacked_states,
)
from farflung.optim.program import StateSlot

RANDOM = np.random.default_rng(3)
VALUES = {
    "signed": RANDOM.standard_normal((100, 77)).astype(np.float32) * np.float32(1e-3),
    "squares": np.square(RANDOM.standard_normal((4, 1, 1500))).astype(np.float32),
    "zeros": np.zeros((64, 64), np.float32),
    "several chunks": RANDOM.standard_normal(600_001).astype(np.float32),
}
MOMENT, COUNT = StateSlot(name="exp_avg", kind="float32", shape=None), StateSlot(name="step", kind="float32", shape=())


def test_the_levels_are_those_of_a_dynamic_tree() -> None:
    assert len(SIGNED) == len(UNSIGNED) == 256
    assert (np.diff(SIGNED) > 0).all()
    assert (np.diff(UNSIGNED) > 0).all()
    assert SIGNED[127] == UNSIGNED[0] == 0
    assert SIGNED[-1] == UNSIGNED[-1] == 1
    # no leading zero: 64 fractions with a sign, 128 without
    assert np.sum(SIGNED > 0.1) == 65
    assert np.sum(UNSIGNED > 0.1) == 129


@pytest.mark.parametrize("name", VALUES)
def test_values_come_back_nearly_and_both_engines_agree(name: str) -> None:
    values = VALUES[name]
    codes, scales = packed_states(values)
    found = unpacked_states(codes, scales)
    assert (codes.shape, codes.dtype, scales.shape) == (values.shape, np.uint8, (-(-values.size // 256),))
    assert np.abs(found - values).max() <= 0.0072 * np.abs(values).max()
    other = packed(torch.from_numpy(values))
    np.testing.assert_array_equal(other.codes.numpy(), codes)
    np.testing.assert_array_equal(other.scales.numpy(), scales)
    np.testing.assert_array_equal(unpacked(other).numpy(), found)


def test_small_tensors_and_numbers_stay_as_they_are() -> None:
    assert packs(MOMENT, (64, 64))
    assert not packs(MOMENT, (64, 63))
    assert not packs(COUNT, (64, 64))
    assert stored_shapes("8bit", [MOMENT, COUNT], (64, 65)) == {"exp_avg": (64, 65), "exp_avg.scale": (17,), "step": ()}
    assert stored_shapes("bf16", [MOMENT], (64, 65)) == {"exp_avg": (64, 65)}


def test_states_that_do_not_fit_are_refused() -> None:
    shapes = stored_shapes("8bit", [MOMENT], (64, 64))
    good = {"exp_avg": np.zeros((64, 64), np.uint8), "exp_avg.scale": np.zeros(16, np.float32)}
    check_stored("w", good, shapes)
    with pytest.raises(CheckpointError, match=r"optimizer state 'exp_avg.scale' of parameter 'w' is missing, or of another"):
        check_stored("w", {"exp_avg": good["exp_avg"]}, shapes)
    with pytest.raises(CheckpointError, match=r"optimizer state 'exp_avg.scale/w' has shape \(15,\), its rule \(16,\)"):
        check_stored("w", {**good, "exp_avg.scale": np.zeros(15, np.float32)}, shapes)
