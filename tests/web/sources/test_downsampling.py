"""A long column in few points keeps its ends, its extremes and leaves out what is no number."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from farflung.web.sources.downsampling import chosen_rows


def test_a_short_column_stays_whole() -> None:
    assert chosen_rows([5.0, 6.0, 7.0], 10) == [0, 1, 2]


def test_a_single_peak_survives() -> None:
    ys = [0.0] * 10_000
    ys[6_543] = 1.0
    rows = chosen_rows(ys, 500)
    assert 6_543 in rows
    assert len(rows) <= 502


def test_a_column_with_few_numbers_keeps_all_of_them() -> None:
    ys = [math.nan] * 5_000
    ys[100] = ys[4_000] = 1.0
    assert {100, 4_000} <= set(chosen_rows(ys, 300))


@given(st.lists(st.floats(allow_nan=True, width=32), min_size=1, max_size=400), st.integers(3, 50))
def test_rows_are_ascending_few_and_have_both_ends(ys: list[float], most: int) -> None:
    rows = chosen_rows(ys, most)
    assert rows == sorted(set(rows))
    assert {0, len(ys) - 1} <= set(rows)
    assert len(rows) <= max(most, min(len(ys), most)) + 2
