"""NumPy gives the numbers of PyTorch's CPU generator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from farflung.engines.host.random_bits import Stream

SEEDS = (3, (1 << 40) + 17)
COUNTS = (1, 5, 16, 100, 4096)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", COUNTS)
def test_uniform_numbers_and_masks_have_the_same_bits(seed: int, count: int) -> None:
    for dtype in ("float32", "float64"):
        expected = torch.empty(count, dtype=getattr(torch, dtype)).uniform_(generator=seeded(seed)).numpy()
        assert np.array_equal(Stream(seed).uniform((count,), dtype), expected)
    for probability in (0.1, 0.5, 0.9):
        mask = torch.empty(count).bernoulli_(probability, generator=seeded(seed)).numpy() != 0
        assert np.array_equal(Stream(seed).kept((count,), probability), mask)
    rates = torch.rand(count, generator=seeded(0))
    drawn = torch.bernoulli(rates, generator=seeded(seed)).numpy() != 0
    assert np.array_equal(Stream(seed).uniform((count,)) < rates.numpy(), drawn)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", COUNTS)
def test_normal_numbers_differ_in_the_last_bit_at_most(seed: int, count: int) -> None:
    expected = torch.empty(count).normal_(0.5, 0.02, generator=seeded(seed)).numpy()
    found = Stream(seed).normal((count,), 0.5, 0.02)
    assert np.abs(found - expected).max() <= np.spacing(np.float32(1)) / 2
    assert np.mean(found != expected) < 0.1
    wide = torch.empty(count, dtype=torch.float64).normal_(0.5, 0.02, generator=seeded(seed)).numpy()
    assert np.allclose(Stream(seed).normal((count,), 0.5, 0.02, dtype="float64"), wide, rtol=1e-12)
