"""Top-k keeps exactly the largest magnitudes, by rules that leave nothing to chance."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.codecs import Payload, get_codec
from farflung.codecs.sparse.selection import select
from farflung.errors import CodecError, InputError

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]


def reference(flat: np.ndarray, count: int) -> np.ndarray:
    """The ``count`` largest by a full sort: NaN first, then magnitude, then the lowest index; zeros never."""
    wide = np.abs(flat.astype(np.float64))
    order = np.lexsort((np.arange(flat.size), np.where(np.isnan(wide), 0.0, -wide), ~np.isnan(wide)))[:count]
    return np.sort(order[wide[order] != 0])


@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 3.5, -7.0, np.inf, -np.inf, np.nan, 1e-30]), min_size=1, max_size=60),
    st.integers(1, 60),
    st.sampled_from(DTYPES),
)
@settings(deadline=None, max_examples=100)
def test_selection_is_that_of_a_full_sort(values: list[float], count: int, dtype: type) -> None:
    flat = np.array(values).astype(dtype)
    assert select(flat, min(count, flat.size)).tolist() == reference(flat, min(count, flat.size)).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["normal", "heavy", "few values", "sorted", "mostly zero", "periodic", "spike"])
def test_selection_of_large_arrays_is_exact(kind: str, dtype: type) -> None:
    generator = np.random.default_rng(3)
    size = 200_000
    flat = {
        "normal": lambda: generator.standard_normal(size),
        "heavy": lambda: generator.standard_cauchy(size).clip(-6e4, 6e4),
        "few values": lambda: generator.integers(-3, 4, size),
        "sorted": lambda: np.linspace(-5, 5, size),
        "mostly zero": lambda: generator.standard_normal(size) * (generator.random(size) < 0.005),
        "periodic": lambda: np.tile([9.0, *([1.0] * 11)], size // 12 + 1)[:size],  # the strided sample sees only some phases
        "spike": lambda: np.concatenate([np.full(size - 3, 0.5), [np.nan, -8.0, 8.0]]),
    }[kind]()
    flat = np.asarray(flat).astype(dtype)
    for count in (1, 200, 2000, 60_000):
        np.testing.assert_array_equal(select(flat, count), reference(flat, count))


def test_the_largest_tenth_comes_back_and_the_rest_is_zero() -> None:
    array = np.arange(-500, 500, dtype=np.float32).reshape(10, 100)
    codec = get_codec("topk", ratio=10)
    result = codec.decode(codec.encode(array))
    # of the two 450s, the negative one stands first
    np.testing.assert_array_equal(result, np.where((np.abs(array) > 450) | (array == -450), array, 0))
    assert np.count_nonzero(result) == 100


@pytest.mark.parametrize(("size", "ratio", "kept"), [(1000, 10, 100), (10, 1000, 1), (1000, 3, 333), (7, 1, 7), (15, 10, 2)])
def test_the_number_kept(size: int, ratio: float, kept: int) -> None:
    assert get_codec("topk", ratio=ratio).kept(size) == kept  # type: ignore[attr-defined]


def test_ratio_one_is_lossless_and_dense() -> None:
    array = np.random.default_rng(0).standard_normal(999).astype(np.float32)
    payload = get_codec("topk", ratio=1).encode(array)
    assert payload.codec == "identity"
    assert get_codec("topk", ratio=1).decode(payload).tobytes() == array.tobytes()


@pytest.mark.parametrize("values", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("fmt", ["compact", "paper"])
def test_never_larger_than_dense(values: str, fmt: str) -> None:
    generator = np.random.default_rng(1)
    dense = get_codec("identity" if values == "float32" else "cast", **({} if values == "float32" else {"dtype": values}))
    for size in (1, 2, 10, 50, 100, 200, 1000, 30_000):
        array = generator.standard_normal(size).astype(np.float32)
        for ratio in (1, 1.1, 1.5, 2, 2.9, 3, 3.1, 10, 100):
            payload = get_codec("topk", ratio=ratio, values=values, format=fmt).encode(array)
            assert payload.nbytes <= dense.encode(array).nbytes


def test_below_its_overhead_the_text_s_format_sends_dense() -> None:
    array = np.random.default_rng(1).standard_normal(30_000).astype(np.float32)
    assert get_codec("topk", ratio=2.9, format="paper").encode(array).codec == "identity"
    payload = get_codec("topk", ratio=3.2, format="paper").encode(array)
    assert payload.codec == "topk"
    assert [len(section) for section in payload.sections] == [8 * 9375, 4 * 9375]
    assert get_codec("topk", ratio=1.2).encode(array).codec == "topk"


def test_both_formats_give_the_same_array() -> None:
    array = np.random.default_rng(2).standard_cauchy(50_000).astype(np.float32)
    compact, paper = get_codec("topk", ratio=50), get_codec("topk", ratio=50, format="paper")
    assert compact.decode(paper.encode(array)).tobytes() == paper.decode(compact.encode(array)).tobytes()


def test_a_nan_outlives_any_ratio() -> None:
    array = np.full(100_000, 1e9, np.float32)
    array[77_777] = np.nan
    result = get_codec("topk", ratio=1e5).decode(get_codec("topk", ratio=1e5).encode(array))
    assert np.flatnonzero(result != 0).tolist() == [77_777]
    assert np.isnan(result[77_777])


def test_narrow_values_keep_small_gradients() -> None:
    array = (np.random.default_rng(4).standard_normal(10_000) * 1e-9).astype(np.float32)
    codec = get_codec("topk", ratio=10, values="float16")
    result = codec.decode(codec.encode(array))
    kept = result != 0
    assert np.count_nonzero(kept) == 1000
    np.testing.assert_allclose(result[kept], array[kept], rtol=2**-11)


def test_values_that_are_narrow_already_travel_as_they_are() -> None:
    array = np.random.default_rng(4).standard_normal(10_000).astype(ml_dtypes.bfloat16)
    payload = get_codec("topk", ratio=10, values="float16").encode(array)
    assert payload.fields["values"] == "bfloat16"
    result = get_codec("topk").decode(payload)
    assert (result[result != 0] == array[result != 0]).all()


def test_integers_travel_whole() -> None:
    array = np.arange(1000)
    assert get_codec("topk").encode(array).codec == "identity"
    assert get_codec("topk").decode(get_codec("topk").encode(array)).tolist() == array.tolist()


def test_a_payload_of_zeros_holds_nothing() -> None:
    payload = get_codec("topk", ratio=10).encode(np.zeros(5000, np.float32))
    assert payload.fields["count"] == 0
    assert not get_codec("topk").decode(payload).any()


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"ratio": 0.5}, "codec 'topk' needs a ratio of at least 1, got 0.5"),
        ({"ratio": float("nan")}, "ratio of at least 1, got nan"),
        ({"ratio": True}, "ratio of at least 1, got True"),
        ({"ratio": "ten"}, "ratio of at least 1, got 'ten'"),
        ({"values": "int9"}, "needs values as float32, float16, bfloat16, int8, int4, got 'int9'"),
        ({"selection": "best"}, "knows the selections exact, blocks, sampled, got 'best'"),
        ({"format": "zip"}, "knows the formats compact, paper, got 'zip'"),
    ],
)
def test_parameters_are_checked(params: dict[str, object], text: str) -> None:
    with pytest.raises(InputError) as caught:
        get_codec("topk", **params)
    assert text in str(caught.value)


def hostile(**changes: object) -> Payload:
    payload = get_codec("topk", ratio=50, format="paper").encode(np.arange(1, 1001, dtype=np.float32))
    fields = {**payload.fields, **{key: value for key, value in changes.items() if key != "indices"}}
    indices = np.array(changes.get("indices", np.arange(20)), np.int64)
    return Payload(codec="topk", dtype="float32", shape=(1000,), fields=fields, sections=(indices.tobytes(), payload.sections[1]))


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (hostile(count=1001), "count must be an integer from 0 to 1000, got 1001"),
        (hostile(count=19), "19 x int64 need 152 bytes, got 160"),
        (hostile(values="int64"), "values must be one of bfloat16, float16, float32, float64, quantized, got 'int64'"),
        (hostile(exponent=5000), "exponent must be an integer from -1100 to 1100"),
        (hostile(indices=[*range(19), 1000]), "indices must ascend from 0 to below 1000"),
        (hostile(indices=[0, 0, *range(18)]), "indices must ascend"),
        (hostile(indices=[-1, *range(19)]), "indices must ascend"),
        (hostile(shift=3), "needs 3 sections, got 2"),
    ],
)
def test_errors_of_hostile_payloads(payload: Payload, text: str) -> None:
    with pytest.raises(CodecError) as caught:
        get_codec("topk").decode(payload)
    assert text in str(caught.value)
