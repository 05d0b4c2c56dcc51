"""Low rank: what one step of power iteration finds, cold and warm, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from farflung.codecs import Payload, decode_payload, foretold_bytes, get_codec
from farflung.codecs.low_rank.lowrank import LowRank, left_factor, matrix_shape, orthonormal, right_factor, start_factor
from farflung.codecs.memory import Forgetful
from farflung.errors import CodecError, InputError

GENERATOR = np.random.default_rng(0)


def relative(array: np.ndarray, result: np.ndarray) -> float:
    return float(np.linalg.norm(array - result) / np.linalg.norm(array))


def decaying(rows: int, columns: int) -> np.ndarray:
    """A matrix with singular values 1, 1/2, 1/4 ..."""
    count = min(rows, columns)
    left, _ = np.linalg.qr(GENERATOR.standard_normal((rows, count)))
    right, _ = np.linalg.qr(GENERATOR.standard_normal((columns, count)))
    return ((left * 0.5 ** np.arange(count)) @ right.T).astype(np.float32)


def test_a_matrix_of_low_rank_comes_back() -> None:
    matrix = (GENERATOR.standard_normal((60, 3)) @ GENERATOR.standard_normal((3, 80))).astype(np.float32)
    codec = get_codec("lowrank", rank=3)
    payload = codec.encode(matrix.reshape(60, 8, 10))
    result = codec.decode(Payload.from_bytes(payload.to_bytes()))
    assert relative(matrix, result.reshape(60, 80)) < 1e-5
    assert payload.nbytes < 3 * 140 * 4 + 200


@pytest.mark.parametrize(("values", "share", "error"), [("int8", 0.27, 0.02), ("int4", 0.15, 0.25)])
def test_factors_in_few_bits(values: str, share: float, error: float) -> None:
    matrix = (GENERATOR.standard_normal((120, 3)) @ GENERATOR.standard_normal((3, 160))).astype(np.float32)
    codec, plain = get_codec("lowrank", rank=3, values=values), get_codec("lowrank", rank=3)
    payload = codec.encode(matrix)
    assert relative(matrix, codec.decode(Payload.from_bytes(payload.to_bytes()))) < error
    sent, whole = (sum(len(section) for section in one.sections) for one in (payload, plain.encode(matrix)))
    assert sent < share * whole
    assert payload.nbytes == pytest.approx(codec.wire_bytes(matrix.size, 4), rel=0.1)
    assert codec.encode(matrix[:2]).codec == "quantized", "too few rows for factors"


def test_warm_start_reaches_the_best_approximation() -> None:
    matrix = decaying(100, 70)
    best = float(np.linalg.norm(0.5 ** np.arange(4, 70)) / np.linalg.norm(0.5 ** np.arange(70)))
    memory, state, errors = Forgetful(codec=LowRank(rank=4)), {}, []
    for _ in range(8):
        payload, state = memory.encode(matrix, state)
        errors.append(relative(matrix, memory.decode(payload, {})[0]))
    assert errors[0] > 1.05 * best
    assert errors[-1] == pytest.approx(best, rel=1e-2)
    assert state["right"].shape == (70, 4)
    cold = Forgetful(codec=LowRank(rank=4)).encode(matrix, {})[0]
    assert relative(matrix, LowRank().decode(cold)) == pytest.approx(errors[0])


def test_columns_become_orthonormal_and_dependent_ones_vanish() -> None:
    factor = GENERATOR.standard_normal((50, 4)).astype(np.float32)
    factor[:, 2] = 3 * factor[:, 0]
    factor[:, 3] *= 1e-20
    basis = orthonormal(factor).astype(np.float64)
    np.testing.assert_allclose(basis.T @ basis, np.diag([1, 1, 0, 1]), atol=1e-6)


def test_factors_may_be_reduced_between_the_two_halves() -> None:
    """Two replicas reduce P, then Q, and have the low-rank form of their mean (the paper's lines 5 and 7)."""
    first, second = decaying(30, 20), decaying(30, 20)
    start = start_factor(20, 3, 1)
    left = orthonormal((left_factor(first, start) + left_factor(second, start)) / 2)
    right = (right_factor(first, left) + right_factor(second, left)) / 2
    whole = LowRank(rank=3, seed=1)
    np.testing.assert_allclose(left @ right.T, whole.decode(whole.encode((first + second) / 2)), atol=1e-6)


@pytest.mark.parametrize("shape", [(1000,), (1023,), (40, 30), (7, 3, 50), (5000,)])
def test_any_shape_is_a_matrix(shape: tuple[int, ...]) -> None:
    rows, columns = matrix_shape(shape)
    assert 0 <= rows * columns - int(np.prod(shape)) < rows
    array = GENERATOR.standard_normal(shape)
    codec = get_codec("lowrank", rank=2)
    payload = codec.encode(array)
    assert payload.codec == "lowrank"
    assert relative(array, codec.decode(payload)) <= 1.0


@pytest.mark.parametrize(
    ("shape", "split"),
    [
        ((4, 32, 32), (128, 32)),
        ((8, 128, 512), (1024, 512)),
        ((2, 3, 4, 50), (24, 50)),
        ((64, 64, 3, 3), (64, 576)),
        ((8, 8, 3, 3), (8, 72)),
        ((512, 4, 2), (512, 8)),
        ((30, 40), (30, 40)),
        ((7,), (2, 4)),
    ],
)
def test_dims_are_split_where_factors_are_smallest(shape: tuple[int, ...], split: tuple[int, int]) -> None:
    """One dim is rows unless another split takes a quarter less, as of activations: few samples, then positions."""
    assert matrix_shape(shape) == split


@pytest.mark.parametrize("shape", [(4, 32, 32), (8, 128, 512), (128, 32), (2, 3, 500), (64, 16, 3, 3)])
@pytest.mark.parametrize("values", ["float32", "int8", "int4"])
def test_activations_of_few_samples_have_factors(shape: tuple[int, ...], values: str) -> None:
    array = GENERATOR.standard_normal(shape).astype(np.float32)
    codec = get_codec("lowrank", values=values)
    payload = codec.encode(array)
    assert payload.codec == "lowrank"
    assert payload.nbytes == pytest.approx(foretold_bytes(codec, shape, 4), abs=64)
    assert relative(array, decode_payload(payload)) < 1.0


@pytest.mark.parametrize(
    "array", [np.arange(40), np.ones(5, np.float32), np.array([[1.0, np.nan] * 50] * 90), np.full((60, 60), np.inf, np.float32)]
)
def test_what_has_no_factors_travels_as_it_is(array: np.ndarray) -> None:
    codec = get_codec("lowrank")
    payload = codec.encode(array)
    assert payload.codec == "identity"
    np.testing.assert_array_equal(codec.decode(payload), array)


def test_the_ends_of_the_range() -> None:
    codec = get_codec("lowrank", rank=1)
    for value in (3e38, 1e-30, 0.0):
        array = np.full((50, 60), value, np.float32)
        np.testing.assert_allclose(codec.decode(codec.encode(array)), array, rtol=1e-5)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"rank": 0}, "codec 'lowrank' needs a rank from 1 to 1024, got 0"),
        ({"rank": 2.0}, "got 2.0"),
        ({"values": "int3"}, "codec 'lowrank' needs values as float32, int8, int4, got 'int3'"),
        ({"ratio": 0.5}, "codec 'lowrank' needs a ratio of at least 1, got 0.5"),
        ({"seed": "x"}, "codec 'lowrank' needs a seed from 0 to 2^63 - 1, got 'x'"),
    ],
)
def test_parameters_are_checked(params: dict[str, object], text: str) -> None:
    with pytest.raises(InputError) as caught:
        get_codec("lowrank", **params)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rank": 5}, "250 x float32 need 1000 bytes, got 800"),
        ({"rank": 1 << 20}, "rank must be an integer from 1 to 1024"),
        ({"rows": 1, "columns": 9}, "1 x 9 doesn't hold 3000 elements"),
        ({"rows": 3000, "columns": 3000}, "3000 x 3000 doesn't hold 3000 elements"),
    ],
)
def test_errors_of_hostile_payloads(changes: dict[str, object], text: str) -> None:
    good = get_codec("lowrank").encode(GENERATOR.standard_normal((50, 60)).astype(np.float32))
    payload = Payload(codec="lowrank", dtype="float32", shape=(50, 60), fields={**good.fields, **changes}, sections=good.sections)
    with pytest.raises(CodecError) as caught:
        get_codec("lowrank").decode(payload)
    assert text in str(caught.value)
    with pytest.raises(CodecError, match="int64 elements have no factors"):
        get_codec("lowrank").decode(Payload(codec="lowrank", dtype="int64", shape=(1,)))
    with pytest.raises(CodecError, match="lowrank can't decode a payload of 'topk'"):
        get_codec("lowrank").decode(Payload(codec="topk", dtype="float32", shape=(1,)))
