"""Mixtures: proportions, epochs of each source, and an order that is a function of seed and position."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.data.mixture import BLOCK, MixtureSampler, shares
from farflung.errors import InputError


@given(weights=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=8))
def test_shares_are_proportional_and_fill_a_block(weights: list[float]) -> None:
    try:
        found = shares(weights)
    except InputError:
        assert min(weights) / sum(weights) < 1 / BLOCK
        return
    assert sum(found) == BLOCK
    assert all(abs(one - weight / sum(weights) * BLOCK) <= 1 for one, weight in zip(found, weights, strict=True))


@settings(deadline=None, max_examples=20)
@given(first=st.integers(0, 3 * BLOCK), count=st.integers(1, 50), seed=st.integers(0, 2**63 - 1))
def test_the_order_does_not_depend_on_where_one_begins(first: int, count: int, seed: int) -> None:
    whole = MixtureSampler([7, 100], [1.0, 3.0], seed).at(first, first + count)
    parts = [MixtureSampler([7, 100], [1.0, 3.0], seed).at(place, place + 1) for place in range(first, first + count)]
    assert np.array_equal(whole, np.concatenate(parts))


def test_proportions_and_epochs() -> None:
    sampler = MixtureSampler([8, 100], [1.0, 3.0], 5)
    found = sampler.at(0, BLOCK)
    counts = Counter(found.tolist())
    assert sum(counts[index] for index in range(8)) == BLOCK // 4
    assert {counts[index] for index in range(8)} == {BLOCK // 4 // 8}, "each source runs through whole epochs"
    assert set(counts) == set(range(108))
    early = sampler.at(0, 200)
    assert 20 < int((early < 8).sum()) < 80, "the sources are mixed, not one after the other"
    assert not np.array_equal(early, MixtureSampler([8, 100], [1.0, 3.0], 6).at(0, 200))


def test_a_weight_that_is_too_small() -> None:
    with pytest.raises(
        InputError, match=r"^data\.mixture\[1\]\.weight = 1e-06 is below 1/4096 of all weights: raise it, or remove it$"
    ):
        shares([1.0, 1e-6])
