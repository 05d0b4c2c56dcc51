"""Codes and scales stand for a weight within the error that their bits allow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.errors import CheckpointError
from farflung.graph.quantized_weights import METHODS, NF4, PARTS, group_size, part_shape, quantized_part

#: The largest error of an element over its scale.
ERRORS = {"int8": 0.5, "int4": 0.5, "nf4": float(np.diff(NF4).max() / 2)}


@given(st.sampled_from(METHODS), st.integers(1, 9), st.integers(1, 80), st.integers(0, 1000))
def test_the_rounded_weight_is_near(method: str, rows: int, half: int, seed: int) -> None:
    weight = np.random.default_rng(seed).normal(size=(rows, 2 * half)).astype(np.float32)
    codes, scales, rounded = (quantized_part(f"{method}_{part}", weight) for part in ("codes", "scales", "rounded"))
    for part, found in (("codes", codes), ("scales", scales), ("rounded", rounded)):
        assert found.shape == part_shape(f"{method}_{part}", weight.shape)
    whole = np.repeat(scales, weight.shape[1] // scales.shape[1], axis=1)
    assert np.all(np.abs(rounded - weight) <= ERRORS[method] * whole * (1 + 1e-5))
    assert np.array_equal(rounded, decoded(method, codes) * whole)


def decoded(method: str, codes: np.ndarray) -> np.ndarray:
    """The values behind the codes, written independently."""
    if method == "int8":
        return codes.astype(np.float32)
    both = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)
    return NF4[both] if method == "nf4" else both.astype(np.float32) - 8


def test_bytes_for_each_weight() -> None:
    weight = np.random.default_rng(0).normal(size=(256, 512)).astype(np.float32)
    sizes = {m: sum(quantized_part(f"{m}_{part}", weight).nbytes for part in ("codes", "scales")) for m in METHODS}
    assert {m: size * 8 / weight.size for m, size in sizes.items()} == {"int8": 8.0625, "int4": 4.5, "nf4": 4.5}


def test_zeros_and_chunks() -> None:
    weight = np.zeros((3, 64), np.float32)
    for part in PARTS:
        assert np.isfinite(quantized_part(part, weight)).all()
    assert not quantized_part("nf4_rounded", weight).any()
    large = np.random.default_rng(0).normal(size=(5, 1 << 19)).astype(np.float32)  # more than a chunk
    assert np.array_equal(quantized_part("int8_codes", large)[3:], quantized_part("int8_codes", large[3:]))


def test_groups() -> None:
    assert [group_size(columns) for columns in (64, 96, 4096, 10)] == [64, 32, 64, 2]
    with pytest.raises(CheckpointError, match=r"a weight of shape \[4, 7\] can't be stored in nf4: leave it out"):
        part_shape("nf4_codes", (4, 7))
    with pytest.raises(CheckpointError, match="can't be stored in int8"):
        part_shape("int8_scales", (4,))
