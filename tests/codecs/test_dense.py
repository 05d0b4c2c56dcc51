"""Identity, casts and block quantization: what comes back, to the bit or within the stated error."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.codecs import Payload, get_codec
from farflung.errors import CodecError, InputError


def through(name: str, array: np.ndarray, **params: object) -> np.ndarray:
    codec = get_codec(name, **params)
    return codec.decode(Payload.from_bytes(codec.encode(array).to_bytes()))


def test_fp16_is_a_plain_cast_where_that_is_exact_enough() -> None:
    array = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    array[np.abs(array) < 2**-12] = 1.0  # below 2^-14 a plain cast loses bits
    assert through("fp16", array).tobytes() == array.astype(np.float16).astype(np.float32).tobytes()


@pytest.mark.parametrize("largest", [0x0001, 0x03FF, 0x3C00, 0x7BFF])
def test_fp16_gives_back_every_value_of_float16(largest: int) -> None:
    magnitudes = np.arange(largest + 1, dtype=np.uint16).view(np.float16)
    array = np.concatenate([magnitudes, -magnitudes, [np.inf, -np.inf, np.nan]]).astype(np.float32)
    np.testing.assert_array_equal(through("fp16", array), array)


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e-9, 1e6, 1e38])
def test_fp16_keeps_its_precision_at_any_scale(scale: float) -> None:
    array = np.array([1.0, -0.7, 0.3, 0.01], np.float64) * scale
    np.testing.assert_allclose(through("fp16", array), array, rtol=2**-11)
    single = array.astype(np.float32)
    np.testing.assert_allclose(through("fp16", single), single, rtol=2**-11)


def test_fp16_with_infinities_and_nan() -> None:
    array = np.array([np.inf, -np.inf, np.nan, 1e10, -3.0, 0.0], np.float32)
    result = through("fp16", array)
    assert (result[0], result[1]) == (np.inf, -np.inf)
    assert np.isnan(result[2])
    assert result[3] == pytest.approx(1e10, rel=2**-11)


def test_bf16_rounds_to_nearest_and_stays_finite() -> None:
    top = float(np.finfo(np.float32).max)
    array = np.array([1.0, 1.00390625, -top, top, np.inf, np.nan, 1e-40], np.float32)
    result = through("bf16", array)
    assert result[:2].tolist() == [1.0, 1.0]
    assert result[2:4].tolist() == [-(2.0**128 - 2.0**120), 2.0**128 - 2.0**120]
    assert result[4] == np.inf
    assert np.isnan(result[5])
    assert through("bf16", np.array([1e300, -1e300])).tolist() == [2.0**128 - 2.0**120, -(2.0**128 - 2.0**120)]


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_casts_leave_narrow_and_whole_numbers_alone(name: str) -> None:
    for array in (np.arange(9), np.array([1.5, 70000.0], ml_dtypes.bfloat16), np.array([True, False])):
        assert through(name, array).tobytes() == array.tobytes()


@pytest.mark.parametrize(("name", "levels", "block"), [("int8", 127, 256), ("int4", 7, 128), ("int8", 127, 32), ("int4", 7, 6)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_quantization_is_within_half_a_step(name: str, levels: int, block: int, dtype: type) -> None:
    array = np.random.default_rng(0).standard_cauchy(10_001).astype(dtype)
    result = through(name, array, block=block)
    for start in range(0, array.size, block):
        part = array[start : start + block]
        step = np.abs(part).max() / levels
        assert np.abs(result[start : start + block] - part).max() <= 0.5001 * step


def test_quantized_extremes() -> None:
    top = float(np.finfo(np.float32).max)
    array = np.zeros(1024, np.float32)
    array[0], array[256], array[512] = top, 1e-45, np.nan
    array[513] = 5.0
    result = through("int8", array)
    assert result[0] == pytest.approx(top, rel=1e-6)
    assert not result[1:256].any()
    assert np.isfinite(result[256:512]).all()
    assert np.isnan(result[512:768]).all()
    assert not result[768:].any()


@given(st.integers(0, 2**32 - 1), st.floats(2.0**-149, 2.0**127))
@settings(deadline=None, max_examples=50)
def test_finite_stays_finite(seed: int, scale: float) -> None:
    bits = np.random.default_rng(seed).integers(0, 2**32, 200, np.uint32)
    array = bits.view(np.float32)
    array = np.concatenate([array[np.isfinite(array)], np.float32([scale, -scale])])
    for name in ("fp16", "bf16", "int8", "int4"):
        assert np.isfinite(through(name, array)).all()
    assert np.isfinite(through("fp16", np.full(100, 3.4019e38, np.float32))).all()  # rounds up to 2^128 on the way


@pytest.mark.parametrize(
    ("name", "params", "text"),
    [
        ("cast", {"dtype": "int8"}, "codec 'cast' needs dtype float16 or bfloat16, got 'int8'"),
        ("quantized", {"bits": 6}, "codec 'quantized' needs bits 1, 2, 3, 4 or 8, got 6"),
        ("int8", {"block": 3}, "needs 'row' or an even block from 2 to 1048576, got 3"),
        ("int8", {"block": 2.0}, "got 2.0"),
        ("fp16", {"dtype": "float16"}, "codec 'fp16' has no parameter 'dtype': known are none"),
        (
            "topk",
            {"rato": 3},
            "codec 'topk' has no parameter 'rato': did you mean 'ratio'? known are ratio, values, format, selection",
        ),
        (
            "topkk",
            {},
            "unknown codec 'topkk': did you mean 'topk'? known are bf16, cast, fp16, identity, int2, int4, int8, lowrank",
        ),
    ],
)
def test_errors_of_get_codec(name: str, params: dict[str, object], text: str) -> None:
    with pytest.raises(InputError) as caught:
        get_codec(name, **params)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (
            Payload(codec="cast", dtype="int64", shape=(1,), fields={"to": "float16", "exponent": 0}, sections=(b"12",)),
            "never narrowed",
        ),
        (Payload(codec="quantized", dtype="int64", shape=(1,)), "int64 elements are never quantized"),
        (
            Payload(codec="quantized", dtype="float32", shape=(1,), fields={"bits": 5, "block": 2}, sections=(b"", b"")),
            "bits must be 1, 2, 3, 4 or 8, got 5",
        ),
        (Payload(codec="identity", dtype="bool", shape=(2,), sections=(b"\x00\x07",)), "a bool must be 0 or 1"),
        (Payload(codec="identity", dtype="int8", shape=(2,), sections=(b"1",)), "2 x int8 need 2 bytes, got 1"),
        (Payload(codec="identity", dtype="int8", shape=(2,)), "needs 1 sections, got 0"),
    ],
)
def test_errors_of_hostile_payloads(payload: Payload, text: str) -> None:
    with pytest.raises(CodecError) as caught:
        get_codec(payload.codec).decode(payload)
    assert text in str(caught.value)
