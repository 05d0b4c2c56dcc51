"""Several arrays in one message: what was packed is found again, and what does not fit is refused before anything is decoded."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.codecs import get_codec
from farflung.engines.base import Array
from farflung.errors import CodecError, MemoryExceeded, WireError
from farflung.graph.ir import TensorSpec
from farflung.memory_budget import MemoryBudget
from farflung.messages.array_headers import ArrayHeader, ArrayItem
from farflung.messages.arrays import PackedArray, all_arrays, decode_array, decode_exact, encode_array, pack_arrays, packed_arrays
from farflung.messages.data import LayerExchange
from tests.support.network.sent_messages import sent

HEAD = partial(LayerExchange, run="r", stage=3, tag="t")
ITEM = ArrayItem(array=ArrayHeader(dtype="float32", shape=(1,), strides=None), sections=2)
SPECS = (TensorSpec(dtype="float32", shape=(2,)), TensorSpec(dtype="int64", shape=()))


@given(st.lists(st.none() | st.integers(0, 40), max_size=5), st.sampled_from([None, "identity", "topk", "int8"]))
def test_they_come_back_through_bytes(sizes: list[int | None], codec: str | None) -> None:
    arrays = [None if size is None else np.arange(size, dtype=np.float32) for size in sizes]
    message = sent(pack_arrays(HEAD, arrays, None if codec is None else get_codec(codec)))
    assert message.stage == 3
    found = packed_arrays(message, len(arrays))
    assert [one is None for one in found] == [array is None for array in arrays]
    for array, one in zip(arrays, found, strict=True):
        if array is not None and one is not None:
            back = decode_array(one, limit=4 * 40)
            assert (back.shape, back.dtype) == (array.shape, array.dtype)
            assert codec not in (None, "identity") or np.array_equal(back, array)


@pytest.mark.parametrize("codec", ["identity", "int8", "topk"])
def test_what_a_codec_decodes_counts_until_nobody_has_it(codec: str) -> None:
    array, budget = np.ones((5, 40), np.float32), MemoryBudget(1000)
    one = encode_array(array, get_codec(codec))
    back = decode_array(one, 800, budget)
    view = back[1:]
    del back
    assert budget.used == 800, "a view has it"
    with pytest.raises(
        MemoryExceeded, match=r"^a decoded value needs 800 B, and 0 B of the 700 B that this process may use are in"
    ):
        decode_array(one, 800, MemoryBudget(700))
    del view
    assert budget.used == 0


def test_a_payload_that_can_not_be_decoded_leaves_the_budget_as_it_was() -> None:
    budget = MemoryBudget(1000)
    one = encode_array(np.ones(100, np.float32), get_codec("int8"))
    with pytest.raises(CodecError):
        decode_array(PackedArray(one.array, one.payload, one.sections[:-1]), 800, budget)
    assert budget.used == 0


def test_an_array_too_many_is_refused() -> None:
    with pytest.raises(WireError, match="a 'sync' message has at most 2 arrays here, 3 came"):
        packed_arrays(HEAD(arrays=(None, None, None)), 2)


def test_a_section_that_is_missing_is_noticed() -> None:
    with pytest.raises(WireError, match="the arrays of a 'sync' message need 2 sections, it has 1"):
        packed_arrays(HEAD(arrays=(ITEM,), sections=(b"abcd",)), 2)


def test_an_array_too_few_is_refused() -> None:
    with pytest.raises(WireError, match="a 'sync' message has 2 arrays here, 1 came"):
        all_arrays(HEAD(arrays=(None,)), 2)


def test_arrays_of_exactly_their_specs_are_decoded() -> None:
    packed = all_arrays(pack_arrays(HEAD, [np.ones(2, np.float32), None], None), 2)
    first, second = decode_exact(packed, SPECS, ("w", "n"))
    assert first is not None
    assert (first.tolist(), second) == ([1.0, 1.0], None)


@pytest.mark.parametrize(
    ("array", "came"), [(np.ones(3, np.float32), r"float32\[3\]"), (np.ones(2, np.float64), r"float64\[2\]")]
)
def test_other_shapes_and_types_are_refused_by_name(array: Array, came: str) -> None:
    packed = all_arrays(pack_arrays(HEAD, [array, None], None), 2)
    with pytest.raises(WireError, match=rf"'w' is float32\[2\], {came} came"):
        decode_exact(packed, SPECS, ("w", "n"))
