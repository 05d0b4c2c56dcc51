"""Arrays keep element type, shape and exact strides; hostile descriptions are refused before memory is taken."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import WireError
from farflung.graph.ir import DTYPES as GRAPH_DTYPES
from farflung.wire.arrays import DTYPES, ArrayMeta, compact, describe, pack, restore, unpack

LIMIT = 1 << 24


def rebuilt(array: np.ndarray) -> np.ndarray:
    meta, data = pack(array)
    assert data.nbytes == meta.packed_nbytes
    return unpack(ArrayMeta.from_header(meta.to_header()), bytes(data), LIMIT)


def assert_same(array: np.ndarray, other: np.ndarray) -> None:
    assert (other.dtype, other.shape, other.strides) == (array.dtype, array.shape, array.strides)
    assert other.tobytes() == array.tobytes()


def test_the_table_is_that_of_the_graph() -> None:
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == dict(GRAPH_DTYPES)
    assert [dtype.name for dtype in DTYPES.values()] == list(DTYPES)


@pytest.mark.parametrize("name", list(DTYPES))
def test_every_element_type_survives(name: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(DTYPES[name])
    assert_same(array, rebuilt(array))
    assert_same(array.transpose(2, 0, 1), rebuilt(array.transpose(2, 0, 1)))
    assert_same(array[:, :, 1:3], rebuilt(array[:, :, 1:3]))
    assert_same(array[0, 0, 0:1].reshape(()), rebuilt(array[0, 0, 0:1].reshape(())))


def test_dense_arrays_in_any_order_of_dims_travel_without_a_copy() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for view in (array, array.transpose(1, 2, 0), array.transpose(2, 1, 0)):
        meta, data = pack(view)
        assert np.shares_memory(np.frombuffer(data, np.uint8), array)
        assert np.shares_memory(unpack(meta, data, LIMIT), array)


def test_a_part_of_a_split_sends_only_its_own_elements() -> None:
    whole = np.arange(24, dtype=np.float32).reshape(2, 12)
    part = whole[:, 4:8]
    meta, data = pack(part)
    assert (meta.strides, meta.numel, meta.packed_numel, data.nbytes) == ((12, 1), 8, 8, 32)
    result = unpack(meta, data, LIMIT)
    assert_same(part, result)
    assert np.lib.stride_tricks.as_strided(result, (8,), (4,))[4:].tolist() == [0.0] * 4  # the gap


def test_an_expanded_dim_is_sent_once() -> None:
    view = np.broadcast_to(np.arange(4, dtype=np.float32)[:, None, None], (4, 5, 2))
    meta, data = pack(view)
    assert (meta.strides, data.nbytes) == ((1, 0, 0), 16)
    result = unpack(meta, data, LIMIT)
    assert_same(view, result)
    assert not result.flags.writeable


def test_overlapping_windows_send_their_span() -> None:
    view = np.lib.stride_tricks.sliding_window_view(np.arange(100, dtype=np.int64), 10)
    meta, data = pack(view)
    assert data.nbytes == 800
    assert_same(view, unpack(meta, data, LIMIT))


def test_overlap_with_wide_gaps_sends_the_elements_of_the_view() -> None:
    view = np.lib.stride_tricks.as_strided(np.arange(5000, dtype=np.int32), (2, 3), (4000, 3996))
    meta, data = pack(view)
    assert data.nbytes == 24
    assert_same(view, unpack(meta, data, LIMIT))


def test_strides_of_dims_of_size_one_survive() -> None:
    view = np.ndarray((1, 3), np.float32, np.zeros(100, np.float32), strides=(80, 4))
    assert describe(view).strides == (20, 1)
    assert rebuilt(view).strides == (80, 4)


def test_strides_that_only_numpy_knows_travel_in_c_order() -> None:
    view = np.arange(6, dtype=np.float32)[::-1]
    assert describe(view).strides is None
    assert rebuilt(view).tolist() == view.tolist()
    field = np.zeros(3, np.dtype([("a", "<f4"), ("b", "i1")]))["a"]
    assert rebuilt(field).tolist() == [0.0] * 3


def test_other_byte_orders_are_converted() -> None:
    assert rebuilt(np.arange(4, dtype=">i4")).tolist() == [0, 1, 2, 3]


def test_compact_and_restore_serve_codecs() -> None:
    view = np.arange(24, dtype=ml_dtypes.bfloat16).reshape(2, 12)[:, ::3].T
    meta, flat = compact(view)
    assert flat.tolist() == [0, 3, 6, 9, 12, 15, 18, 21]
    assert_same(view, restore(meta, flat, LIMIT))
    assert_same(view, restore(meta, np.repeat(flat, 2)[::2], LIMIT))


@st.composite
def strided(draw: st.DrawFn) -> np.ndarray:
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    strides = tuple(draw(st.lists(st.integers(0, 12), min_size=len(shape), max_size=len(shape))))
    base = np.arange(200, dtype=np.int16)
    return np.lib.stride_tricks.as_strided(base, shape, tuple(2 * stride for stride in strides))


@given(strided())
@settings(deadline=None, max_examples=100)
def test_any_strides_survive(array: np.ndarray) -> None:
    meta, data = pack(array)
    assert len(data) <= max(array.nbytes, 0)
    assert_same(array, unpack(meta, data, LIMIT))


hostile = st.one_of(st.integers(), st.integers(0, 9), st.integers(0, 9), st.none(), st.text(), st.floats(), st.booleans())


@given(st.sampled_from(list(DTYPES)), st.lists(hostile, max_size=5), st.lists(hostile, max_size=5), st.binary(max_size=64))
@settings(deadline=None, max_examples=150)
def test_hostile_descriptions_never_do_harm(dtype: str, shape: list[object], strides: list[object], data: bytes) -> None:
    try:
        array = unpack(ArrayMeta.from_header([dtype, shape, strides or None]), data, 4096)
    except WireError:
        return
    assert list(array.shape) == shape
    assert array.nbytes <= 4096
    array.copy()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "must be [dtype, shape, strides]"),
        (["object", [1], None], "unknown element type 'object': known are float64, float32"),
        (["float32", [-1], None], "integers from 0 to 2^48 - 1, got -1"),
        (["float32", [True], None], "got True"),
        (["float32", [1 << 50], None], "got 1125899906842624"),
        (["float32", 3, None], "shape must be a list of at most 32 integers, got 3"),
        (["float32", [1] * 33, None], "at most 32 integers"),
        (["float32", [1, 2], [1]], "2 sizes but 1 strides"),
    ],
)
def test_errors_of_descriptions(value: object, text: str) -> None:
    with pytest.raises(WireError) as caught:
        ArrayMeta.from_header(value)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("meta", "data", "text"),
    [
        (ArrayMeta("float32", (3,)), b"1234", "needs 12 bytes, got 4"),
        (
            ArrayMeta("float32", (1 << 40,)),
            b"",
            "float32 (1099511627776,) needs 4398046511104 bytes, the limit is 4096",
        ),
        (ArrayMeta("uint8", (1 << 40,), (0,)), b"1", "oversized array"),
        (ArrayMeta("uint8", (2,), (1 << 40,)), b"12", "oversized array"),
        (ArrayMeta("uint8", (0, 1 << 40, 1 << 40)), b"", "too large, even for an empty array"),
        (ArrayMeta("bool", (2,)), b"\x01\x02", "a bool must be 0 or 1"),
    ],
)
def test_errors_of_unpacking(meta: ArrayMeta, data: bytes, text: str) -> None:
    with pytest.raises(WireError) as caught:
        unpack(meta, data, 4096)
    assert text in str(caught.value)


def test_errors_of_packing() -> None:
    with pytest.raises(WireError, match="cannot send elements of type uint64: known are float64"):
        pack(np.zeros(2, np.uint64))
    with pytest.raises(WireError, match="33 dims"):
        pack(np.zeros((1,) * 33, np.float32))
    with pytest.raises(WireError, match="needs 3 elements, got float64"):
        restore(ArrayMeta("float32", (3,)), np.zeros(3), LIMIT)


def test_refusing_takes_no_memory() -> None:
    tracemalloc.start()
    with pytest.raises(WireError):
        unpack(ArrayMeta("uint8", (2,), (1 << 30,)), b"12", LIMIT)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
