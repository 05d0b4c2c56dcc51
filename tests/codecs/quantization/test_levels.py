"""Block quantization to few bits: what comes back, without bias where rounding is stochastic, and rotation."""

from __future__ import annotations

import numpy as np
import pytest

from farflung.codecs import Payload, get_codec, keyed
from farflung.codecs.keys import derive, fractions, words
from farflung.codecs.quantization.rotation import rotate, unrotate
from farflung.errors import CodecError, InputError


def through(name: str, array: np.ndarray, **params: object) -> np.ndarray:
    codec = get_codec(name, **params)
    return codec.decode(Payload.from_bytes(codec.encode(array).to_bytes()))


def relative(array: np.ndarray, result: np.ndarray) -> float:
    return float(np.linalg.norm(array - result) / np.linalg.norm(array))


NORMAL = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)


def test_words_are_those_of_splitmix64() -> None:
    assert [int(word) for word in words(0, 0, 3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    whole = words(2**63 - 1, 0, 40_000)
    np.testing.assert_array_equal(words(2**63 - 1, 16_380, 100), whole[16_380:16_480])
    assert abs(np.unpackbits(whole.view(np.uint8)).mean() - 0.5) < 2e-3


@pytest.mark.parametrize(("bits", "error"), [(3, 0.23), (4, 0.12), (8, 0.012)])
def test_scales_for_normal_numbers_err_less_than_those_of_the_peak(bits: int, error: float) -> None:
    normal = relative(NORMAL, through("quantized", NORMAL, bits=bits, scale="normal"))
    assert normal < error
    if bits < 8:
        assert normal < 0.97 * relative(NORMAL, through("quantized", NORMAL, bits=bits))
    outlier = np.zeros(256, np.float32)
    outlier[3] = 1e30
    assert np.isfinite(through("quantized", outlier, bits=bits, scale="normal")).all()
    with pytest.raises(InputError, match="codec 'quantized' knows the scales peak, normal, got 'mean'"):
        get_codec("quantized", scale="mean")


def test_fractions_do_not_depend_on_the_runs() -> None:
    one = np.concatenate(list(fractions(7, 1003, 1 << 16)))
    np.testing.assert_array_equal(one, np.concatenate(list(fractions(7, 1003, 8))))
    assert 0 <= one.min() < one.max() < 1


def test_each_message_has_its_own_seed_and_settings_stay() -> None:
    codec = get_codec("int4", rounding="stochastic", seed=3)
    first, second = keyed(codec, 1, 2, "a"), keyed(codec, 1, 2, "b")
    assert first != second
    assert first == keyed(codec, 1, 2, "a")
    assert first.encode(NORMAL).to_bytes() != second.encode(NORMAL).to_bytes()
    assert keyed(get_codec("topk"), 1) == get_codec("topk")
    assert derive(3, 1, "2") == derive(3, "1", 2)  # a key is text
    assert derive(3, "12") != derive(3, "1", "2")


@pytest.mark.parametrize(("bits", "error"), [(8, 0.0071), (4, 0.128), (3, 0.297), (2, 0.345), (1, 0.604)])
def test_errors_on_normal_numbers(bits: int, error: float) -> None:
    """One and two bits reach what the best quantizer of their kind does: 0.6028 and 0.3446 (Max 1960: uniform levels)."""
    assert relative(NORMAL, through("quantized", NORMAL, bits=bits, block=256)) == pytest.approx(error, rel=0.02)


def test_one_bit_is_sign_and_mean_magnitude() -> None:
    array = np.array([1.0, -2.0, 0.5, 4.5], np.float32).repeat(8)
    np.testing.assert_array_equal(through("sign", array), np.sign(array) * 2.0)


@pytest.mark.parametrize("bits", [1, 2])
def test_few_bits_at_the_ends_of_the_range(bits: int) -> None:
    top = float(np.finfo(np.float32).max)
    array = np.zeros(1024, np.float32)
    array[:256] = top
    array[256:512] = 2.0**-140
    array[700] = np.inf
    result = through("quantized", array, bits=bits, block=256)
    np.testing.assert_allclose(result[:512], array[:512], rtol=1e-6, atol=2e-45)
    assert np.isnan(result[512:768]).all()
    assert not result[768:].any()


@pytest.mark.parametrize("bits", [8, 4, 3, 2, 1])
@pytest.mark.parametrize("rotated", [False, True])
def test_stochastic_rounding_has_no_bias(bits: int, rotated: bool) -> None:
    array = NORMAL[:512]
    runs = 600
    total = np.zeros(512)
    codec = get_codec("quantized", bits=bits, block=64, rounding="stochastic", rotate=rotated)
    for number in range(runs):
        total += codec.decode(keyed(codec, number).encode(array))
    step = np.abs(array).max() / max(0.5, 2 ** (bits - 1) - 1)
    assert np.abs(total / runs - array).max() < 5 * step * 1.5 / runs**0.5
    assert abs((total / runs - array).mean()) < 5 * step / (runs * 512) ** 0.5


def test_nearest_rounding_would_be_seen_as_biased() -> None:
    array = np.full(512, 0.4, np.float32)
    array[0] = 7.0
    assert through("int4", array, block=512)[1] == 0.0
    codec = get_codec("int4", block=512, rounding="stochastic")
    mean = np.mean([codec.decode(keyed(codec, number).encode(array))[1:].mean() for number in range(20)])
    assert mean == pytest.approx(0.4, abs=0.03)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("chunk", [2, 64, 4096])
def test_rotation_is_orthogonal(chunk: int, dtype: type) -> None:
    array = NORMAL[: 4096 * 3 + 5].astype(dtype)
    turned = rotate(array, chunk, 9)
    assert np.linalg.norm(turned) == pytest.approx(np.linalg.norm(array), rel=1e-5)
    assert not np.allclose(turned[:chunk], array[:chunk])
    np.testing.assert_array_equal(turned[array.size // chunk * chunk :], array[array.size // chunk * chunk :])
    np.testing.assert_allclose(unrotate(turned.copy(), chunk, 9), array, atol=2e-6)


def test_rotation_is_the_hadamard_matrix_with_signs() -> None:
    matrix = np.array([[1.0]])
    while len(matrix) < 64:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    word = int(words(9, 0, 1)[0])
    signs = np.array([-1.0 if word >> bit & 1 else 1.0 for bit in range(64)])
    expected = (NORMAL[:640].astype(np.float64).reshape(-1, 64) * signs) @ matrix.T / 8
    np.testing.assert_allclose(rotate(NORMAL[:640].astype(np.float64), 64, 9), expected.reshape(-1), atol=1e-12)


def test_rotation_halves_the_error_of_outlier_channels() -> None:
    tokens = NORMAL.reshape(-1, 256).copy()
    tokens[:, 3] *= 60
    plain, turned = (through("int4", tokens, block="row", rotate=rotated) for rotated in (False, True))
    others = np.arange(256) != 3
    assert relative(tokens[:, others], plain[:, others]) > 0.85  # rows with a large outlier lose all the rest
    assert relative(tokens[:, others], turned[:, others]) < 0.6


def test_a_row_has_a_scale_of_its_own() -> None:
    tokens = NORMAL[:12_000].reshape(3, 40, 100) * (10.0 ** np.linspace(-10, 9, 40, dtype=np.float32))[:, None]
    payload = get_codec("int8", block="row").encode(tokens)
    assert payload.fields["block"] == 100
    assert len(payload.sections[1]) == 4 * 120
    result = get_codec("int8").decode(payload)
    assert max(relative(a, b) for a, b in zip(tokens.reshape(120, 100), result.reshape(120, 100), strict=True)) < 0.02


def test_what_would_overflow_is_not_rotated() -> None:
    array = np.full(1024, 3e38, np.float32)
    payload = get_codec("int4", rotate=True).encode(array)
    assert "rotation" not in payload.fields
    np.testing.assert_allclose(get_codec("int4").decode(payload), array, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "params", "text"),
    [
        ("quantized", {"rounding": "up"}, "codec 'quantized' rounds nearest or stochastic, got 'up'"),
        ("quantized", {"rotate": "yes"}, "needs rotate true or false, got 'yes'"),
        ("quantized", {"seed": -1}, "codec 'quantized' needs a seed from 0 to 2^63 - 1, got -1"),
        ("quantized", {"block": "column"}, "needs 'row' or an even block from 2 to 1048576, got 'column'"),
    ],
)
def test_parameters_are_checked(name: str, params: dict[str, object], text: str) -> None:
    with pytest.raises(InputError) as caught:
        get_codec(name, **params)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"rotation": 3, "seed": 0}, "rotation must be a power of two, got 3"),
        ({"rotation": 1 << 20, "seed": 0}, "rotation must be an integer from 2 to 4096"),
        ({"rotation": 64}, "seed must be an integer from 0"),
        ({"bits": 0}, "bits must be an integer from 1 to 8, got 0"),
        ({"block": 1}, "block must be an integer from 2"),
    ],
)
def test_errors_of_hostile_payloads(fields: dict[str, object], text: str) -> None:
    payload = get_codec("int4").encode(NORMAL[:1024])
    hostile = Payload(
        codec="quantized", dtype="float32", shape=(1024,), fields={**payload.fields, **fields}, sections=payload.sections
    )
    with pytest.raises(CodecError) as caught:
        get_codec("int4").decode(hostile)
    assert text in str(caught.value)
