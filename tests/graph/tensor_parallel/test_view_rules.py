"""A rank's part of a tensor, reshaped, is its part of the reshaped tensor."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.engines.site.parts import part_of
from farflung.graph.tensor_parallel.split import ComputedWhole, Split, SplitBySections
from farflung.graph.tensor_parallel.view_rules import pieces_of, reshaped


def product(sizes: list[int]) -> int:
    return int(np.prod(sizes))


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[list[int], list[int], Split]:
    factors = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=6))

    def grouped() -> list[int]:
        ends = sorted(draw(st.sets(st.integers(0, len(factors)), max_size=len(factors))) | {0, len(factors)})
        return [product(factors[start:stop]) for start, stop in pairwise(ends)]

    before = grouped()
    dim = draw(st.integers(0, len(before) - 1))
    count = draw(st.sampled_from([n for n in (1, 2, 3) if before[dim] % n == 0]))
    return before, grouped(), Split(dim, (before[dim] // count,) * count)


@given(reshapes(), st.sampled_from([2, 3]))
def test_parts_of_reshaped_tensors(case: tuple[list[int], list[int], Split], ranks: int) -> None:
    before, after, split = case
    if any(section % ranks for section in split.sections):
        return
    try:
        found = reshaped(before, after, split, ranks)
    except (ComputedWhole, SplitBySections):
        return
    whole = np.arange(product(before)).reshape(before)
    shape = [size // ranks if dim == found.dim else size for dim, size in enumerate(after)]
    for rank in range(ranks):
        local = part_of(whole, split, rank, ranks).reshape(shape)
        assert np.array_equal(local, part_of(whole.reshape(after), found, rank, ranks))


@pytest.mark.parametrize(
    ("before", "after", "split", "found"),
    [
        ((2, 12, 96), (24, 96), Split(2, (96,)), Split(1, (96,))),
        ((2, 12, 32), (2, 12, 2, 16), Split(2, (32,)), Split(2, (2,))),
        ((2, 12, 2, 16), (2, 12, 32), Split(2, (2,)), Split(2, (32,))),
        ((2, 12, 96), (2, 12, 3, 4, 8), Split(2, (32, 32, 32)), Split(3, (4,))),
        ((2, 12, 96), (2, 12, 12, 8), Split(2, (32, 32, 32)), Split(2, (4, 4, 4))),
        ((4, 6), (1, 4, 1, 6), Split(1, (6,)), Split(3, (6,))),
    ],
)
def test_known_views(before: tuple[int, ...], after: tuple[int, ...], split: Split, found: Split) -> None:
    assert reshaped(before, after, split, 2) == found


def test_queries_keys_and_values_that_are_cut_ask_for_sections() -> None:
    with pytest.raises(SplitBySections) as asked:
        reshaped((2, 12, 96), (2, 12, 3, 4, 8), Split(2, (96,)), 2)
    assert asked.value.parts == (32, 32, 32)
    with pytest.raises(SplitBySections) as asked:
        pieces_of(Split(0, (64,)), [32, 16, 16])
    assert asked.value.parts == (32, 16, 16)
    assert pieces_of(Split(0, (32, 16, 16)), [32, 32]) == [(32,), (16, 16)]
    with pytest.raises(SplitBySections) as asked:
        pieces_of(Split(0, (16, 48)), [32, 32])
    assert asked.value.parts == (16, 16, 32)
    with pytest.raises(ComputedWhole):
        pieces_of(Split(0, (64,)), [4] * 16)
    with pytest.raises(ComputedWhole):
        reshaped((3, 4), (12,), Split(1, (4,)), 2)
