"""Several arrays in one frame: what was packed is found again, and what is malformed is refused before anything is decoded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.codecs import get_codec
from farflung.errors import WireError
from farflung.messages.arrays import decode_array, pack_arrays, packed_arrays
from farflung.wire.frames import Frame, decode_frame, encode_frame


@given(st.lists(st.none() | st.integers(0, 40), max_size=5), st.sampled_from([None, "identity", "topk", "int8"]))
def test_they_come_back_through_bytes(sizes: list[int | None], codec: str | None) -> None:
    arrays = [None if size is None else np.arange(size, dtype=np.float32) for size in sizes]
    sent = pack_arrays("part", {"step": 3}, arrays, None if codec is None else get_codec(codec))
    frame = decode_frame(b"".join(bytes(part) for part in encode_frame(sent)))
    assert (frame.kind, frame.header["step"]) == ("part", 3)
    found = packed_arrays(frame, len(arrays))
    assert [one is None for one in found] == [array is None for array in arrays]
    for array, one in zip(arrays, found, strict=True):
        if array is not None and one is not None:
            back = decode_array(one, limit=4 * 40)
            assert (back.shape, back.dtype) == (array.shape, array.dtype)
            assert codec not in (None, "identity") or np.array_equal(back, array)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        (None, "a 'part' frame has a list of at most 2 arrays here"),
        ([None, None, None], "a 'part' frame has a list of at most 2 arrays here"),
        (["x"], "bad array of a 'part' frame: Expected `object`, got `str`"),
        ([{"array": ["float32", [1], None]}], "missing required field `sections`"),
        ([{"array": ["float32", [1], None], "sections": 2}], "the arrays of a 'part' frame need 2 sections, it has 1"),
    ],
)
def test_what_is_malformed_is_refused(arrays: Any, says: str) -> None:
    with pytest.raises(WireError, match=says):
        packed_arrays(Frame("part", {"arrays": arrays}, (b"abcd",)), 2)
