"""Block-local and sampled selection, quantized values, random-k."""

from __future__ import annotations

import numpy as np
import pytest

from farflung.codecs import Payload, get_codec, keyed
from farflung.codecs.sparse.randomk import strata
from farflung.codecs.sparse.selection import select, select_blocks, select_sampled
from farflung.errors import CodecError, InputError

HEAVY = np.random.default_rng(1).standard_t(3, 300_000).astype(np.float32)


def test_blocks_keep_the_largest_of_each_in_equal_numbers() -> None:
    flat = HEAVY[: 10 * 4096 + 1000]
    found = select_blocks(flat, 400)
    assert found.size == 400
    assert (np.diff(found) > 0).all()
    for start in range(0, flat.size, 4096):
        part = flat[start : start + 4096]
        inside = found[(found >= start) & (found < start + part.size)] - start
        assert abs(inside.size - 400 * part.size / flat.size) < 1.01
        np.testing.assert_array_equal(inside, select(part, inside.size))


@pytest.mark.parametrize("kind", ["ties", "zeros", "few", "nan"])
def test_blocks_of_awkward_arrays(kind: str) -> None:
    flat = np.ones(5 * 4096, np.float32)
    count = 3 if kind == "few" else 100
    if kind == "zeros":
        flat[4096:] = 0
    if kind == "nan":
        flat[9000] = np.nan
    found = select_blocks(flat, count)
    assert found.size == (20 if kind == "zeros" else count)
    if kind == "nan":
        assert 9000 in found
    if kind == "ties":
        assert found[:20].tolist() == list(range(20))  # the lowest of each block


def test_blocks_lose_little_energy() -> None:
    exact, local = (HEAVY[pick(HEAVY, 3000)] for pick in (select, select_blocks))
    assert 0.95 < np.square(local).sum() / np.square(exact).sum() < 1.0


@pytest.mark.parametrize("count", [3000, 30_000, 300])
def test_a_sampled_threshold_keeps_about_as_many(count: int) -> None:
    found = select_sampled(HEAVY, count)
    assert abs(found.size - count) <= 0.05 * count
    kept, dropped = np.abs(HEAVY[found]), np.abs(np.delete(HEAVY, found))
    assert kept.min() >= dropped.max()


def test_a_sample_that_misleads_gives_way_to_the_exact_selection() -> None:
    flat = np.where(np.arange(400_000) % 3 == 0, 5.0, 1.0).astype(np.float32)  # the stride of the sample is a multiple of 3
    np.testing.assert_array_equal(select_sampled(flat, 4000), select(flat, 4000))
    np.testing.assert_array_equal(select_sampled(flat[:1000], 10), select(flat[:1000], 10))


@pytest.mark.parametrize(("values", "error", "size"), [("int8", 0.01, 2.2), ("int4", 0.2, 1.7), ("float16", 0.001, 3.1)])
def test_values_in_few_bits(values: str, error: float, size: float) -> None:
    codec = get_codec("topk", ratio=100, values=values)
    payload = codec.encode(HEAVY)
    result = codec.decode(Payload.from_bytes(payload.to_bytes()))
    exact = get_codec("topk", ratio=100)
    truth = exact.decode(exact.encode(HEAVY))
    assert np.linalg.norm(result - truth) < error * np.linalg.norm(truth)
    assert payload.nbytes < size * 3000 + 200


def test_values_in_few_bits_fall_back_to_half_precision() -> None:
    array = HEAVY[:1000]
    assert get_codec("topk", ratio=1, values="int8").encode(array).fields["to"] == "float16"


def test_strata_cover_the_array_evenly() -> None:
    places, sizes = strata(1000, 7, 3)
    assert int(sizes.sum()) == 1000
    assert set(sizes.tolist()) == {142, 143}
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    assert ((places >= starts) & (places < starts + sizes)).all()
    hits = np.zeros(20)
    for seed in range(4000):
        np.add.at(hits, strata(20, 4, seed)[0], 1)
    assert np.abs(hits / 4000 - 1 / 5).max() < 5 * (0.16 / 4000) ** 0.5


def test_random_k_has_no_bias_and_the_stated_error() -> None:
    array = HEAVY[:2000].astype(np.float64)
    codec = get_codec("randomk", ratio=10)
    results = np.stack([codec.decode(keyed(codec, number).encode(array)) for number in range(1500)])
    error = np.square(results - array).sum(axis=1).mean()
    assert error == pytest.approx(9 * np.square(array).sum(), rel=0.1)
    deviation = np.abs(results.mean(axis=0) - array) / (3 * np.abs(array) / 1500**0.5)
    assert deviation.max() < 5


def test_random_k_sends_no_indices() -> None:
    payload = get_codec("randomk", ratio=100, values="float16", seed=11).encode(HEAVY)
    assert payload.nbytes < 2 * 3000 + 200
    assert get_codec("randomk").decode(payload).tobytes() == get_codec("randomk", seed=5).decode(payload).tobytes()


def test_random_k_unscaled_gives_elements_as_they_are() -> None:
    codec = get_codec("randomk", ratio=10, scaled=False)
    result = codec.decode(codec.encode(HEAVY))
    kept = result != 0
    assert 29_000 < np.count_nonzero(kept) <= 30_000
    np.testing.assert_array_equal(result[kept], HEAVY[kept])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_random_k_hides_neither_nan_nor_infinity(bad: float) -> None:
    array = HEAVY[:5000].copy()
    array[4321] = bad
    codec = get_codec("randomk", ratio=100)
    assert np.isnan(codec.decode(codec.encode(array))).any()


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"ratio": 0}, "codec 'randomk' needs a ratio of at least 1, got 0"),
        ({"seed": 1.5}, "codec 'randomk' needs a seed from 0 to 2^63 - 1, got 1.5"),
        ({"values": "text"}, "needs values as float32, float16, bfloat16, int8, int4, got 'text'"),
        ({"scaled": "yes"}, "needs scaled true or false, got 'yes'"),
    ],
)
def test_parameters_are_checked(params: dict[str, object], text: str) -> None:
    with pytest.raises(InputError) as caught:
        get_codec("randomk", **params)
    assert text in str(caught.value)


def changed(name: str, shape: tuple[int, ...] = (5000,), **fields: object) -> Payload:
    payload = get_codec(name, ratio=10, values="int8").encode(HEAVY[:5000])
    return Payload(codec=name, dtype="float32", shape=shape, fields={**payload.fields, **fields}, sections=payload.sections)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (changed("randomk", count=0), "count must be an integer from 1 to 5000, got 0"),
        (changed("randomk", seed=-1), "seed must be an integer from 0"),
        (changed("randomk", scaled=2), "scaled must be an integer from 0 to 1, got 2"),
        (changed("randomk", shape=(0,)), "0 elements, from 1 to 2147483647 are possible"),
        (changed("randomk", values="float32"), "needs 1 sections, got 2"),
        (changed("topk", values="float32"), "needs 3 sections, got 4"),
        (changed("topk", block=128), "4 x float32 need 16 bytes, got 32"),
        (changed("topk", bits=4), "250 x uint8 need 250 bytes, got 500"),
        (Payload(codec="topk", dtype="float32", shape=(9,), fields={"count": 1}), "it needs 2 sections, got 0"),
    ],
)
def test_errors_of_hostile_payloads(payload: Payload, text: str) -> None:
    with pytest.raises(CodecError) as caught:
        get_codec(payload.codec).decode(payload)
    assert text in str(caught.value)
