"""Tensors and files in pieces: what was cut is joined again, and streams that do not fit together are refused."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.errors import MemoryExceeded, WireError
from farflung.memory_budget import MemoryBudget
from farflung.messages.array_headers import ArrayHeader
from farflung.messages.array_stream import join_pieces, tensor_pieces, upload_frames
from farflung.messages.calls import TensorPiece, WeightsUpload


def test_tensors_come_back_bit_for_bit() -> None:
    arrays = {
        "a": np.random.default_rng(2).standard_normal((3, 5)),
        "none": np.zeros((0, 3), np.float32),
        "one": np.array(7, np.int64),
        "large": np.arange(3 << 20, dtype=np.int32),
    }
    pieces = list(tensor_pieces(arrays.items()))
    assert len(pieces) == 3 + 3
    back = join_pieces(pieces)
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert (back[name].shape, back[name].tobytes()) == (array.shape, array.tobytes())


def test_cut_or_mixed_streams_are_refused() -> None:
    first, second, third = tensor_pieces([("large", np.zeros(3 << 20, np.int32))])
    with pytest.raises(WireError, match="tensor 'large' was cut in transfer"):
        join_pieces([first, second])
    with pytest.raises(WireError, match="needs 12582912 bytes, got 8388608"):
        join_pieces([first, third])
    with pytest.raises(WireError, match="larger than it says"):
        join_pieces([first, second, replace(third, sections=(bytes(5 << 20),))])
    (other,) = tensor_pieces([("b", np.zeros(1))])
    with pytest.raises(WireError, match="tensor 'b' begins before the one before it has ended"):
        join_pieces([first, other])


@settings(deadline=None, max_examples=80)
@given(
    pieces=st.lists(
        st.builds(
            TensorPiece,
            name=st.sampled_from(["a", "b"]),
            array=st.builds(
                ArrayHeader,
                dtype=st.sampled_from(["float32", "bool"]),
                shape=st.lists(st.integers(0, 2**47), max_size=3).map(tuple),
                strides=st.none(),
            ),
            last=st.booleans(),
            sections=st.tuples(st.binary(max_size=9)),
        ),
        max_size=3,
    )
)
def test_any_stream_is_read_or_refused(pieces: list[TensorPiece]) -> None:
    with suppress(WireError):
        join_pieces(pieces)


def test_a_byte_stream_is_cut_into_pieces() -> None:
    head, *pieces, end = upload_frames(WeightsUpload(run="r"), [bytes(5 << 20), b"abc"])
    assert (head.kind, end.kind) == ("weights", "end")
    assert [memoryview(piece.sections[0]).nbytes for piece in pieces] == [4 << 20, 1 << 20, 3]


def test_gaps_between_elements_are_no_way_to_take_memory() -> None:
    wide = ArrayHeader(dtype="float32", shape=(1 << 18,), strides=(1 << 10,))
    with pytest.raises(WireError, match=r"tensor 'w' takes 107\d+ bytes with its gaps, and 1048576 travel: send it without"):
        join_pieces([TensorPiece(name="w", array=wide, last=True, sections=(bytes(1 << 20),))])


def test_a_size_that_is_only_claimed_takes_no_memory() -> None:
    huge = ArrayHeader(dtype="float32", shape=(1 << 33,), strides=None)
    with pytest.raises(WireError, match="begins with 8: it was cut in transfer"):
        join_pieces([TensorPiece(name="w", array=huge, last=False, sections=(bytes(8),))])
    with pytest.raises(WireError, match="oversized array"):
        join_pieces([TensorPiece(name="w", array=huge, last=False, sections=(bytes(4 << 20),))], limit=1 << 30)


def test_tensors_count_in_the_budget_while_they_live() -> None:
    pieces, budget = list(tensor_pieces([("w", np.zeros(1000, np.float32)), ("v", np.ones(2, np.int64))])), MemoryBudget(1 << 13)
    found = join_pieces(pieces, budget)
    assert budget.used == 4016
    del found
    assert budget.used == 0
    with pytest.raises(MemoryExceeded, match=r"tensor 'w' needs 4 kB, and 0 B of the 4 kB .*offer more memory \(--memory\)"):
        join_pieces(pieces, MemoryBudget(3999))
