"""Packing: every token has one place, no sample is too long, whole documents stay whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.data.tables.packing import Packing, pack

LENGTHS = st.lists(st.integers(0, 40), max_size=60)


def offsets(lengths: list[int]) -> np.ndarray:
    return np.cumsum([0, *lengths], dtype=np.int64)


def samples(packing: Packing) -> list[list[tuple[int, int]]]:
    return [packing.pieces(sample) for sample in range(packing.size)]


@given(lengths=LENGTHS, sequence=st.integers(1, 16), how=st.sampled_from(["whole", "none"]))
def test_each_token_has_one_place(lengths: list[int], sequence: int, how: str) -> None:
    found = samples(pack(offsets(lengths), sequence, how))
    tokens = [token for pieces in found for start, length in pieces for token in range(start, start + length)]
    assert sorted(tokens) == list(range(sum(lengths)))
    assert all(sum(length for _, length in pieces) <= sequence for pieces in found)


@given(lengths=LENGTHS, sequence=st.integers(1, 16))
def test_whole_documents_that_fit_are_not_cut(lengths: list[int], sequence: int) -> None:
    found = samples(pack(offsets(lengths), sequence, "whole"))
    pieces = {piece for one in found for piece in one}
    begins = offsets(lengths)
    assert all((int(begins[i]), length) in pieces for i, length in enumerate(lengths) if 0 < length <= sequence)
    assert len(found) <= 11 / 9 * sum(-(-length // sequence) for length in lengths) + 6


@given(lengths=LENGTHS, sequence=st.integers(1, 16))
def test_what_is_cut_loses_its_end(lengths: list[int], sequence: int) -> None:
    found = samples(pack(offsets(lengths), sequence, "none", cut=True))
    begins = offsets(lengths)
    assert found == [[(int(begins[i]), min(length, sequence))] for i, length in enumerate(lengths) if length]


def test_a_stream_is_cut_into_samples() -> None:
    assert samples(pack(offsets([5, 4]), 4, "split")) == [[(0, 4)], [(4, 4)]]
    assert samples(pack(offsets([5, 3]), 4, "split")) == [[(0, 4)]], "the last token has no target"


@pytest.mark.parametrize("lengths", [[3, 5, 2, 6], [6, 2, 5, 3]])
def test_pieces_fill_the_smallest_room(lengths: list[int]) -> None:
    found = samples(pack(offsets(lengths), 8, "whole"))
    assert sorted(sorted(length for _, length in pieces) for pieces in found) == [[2, 6], [3, 5]]
