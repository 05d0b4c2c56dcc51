"""Golomb-Rice indices: exact, near the entropy, readable by other languages, closed to hostile bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.codecs.sparse.indices import CodedIndices, decode_indices, encode_indices, expected_bits
from farflung.errors import CodecError


def by_hand(coded: CodedIndices) -> list[int]:
    """The format read bit by bit, as docs/wire-format.md describes it."""
    indices, previous, quotient, plane = [], -1, 0, (coded.count + 7) // 8
    for bit in range(8 * coded.unary.size):
        if not coded.unary[bit // 8] >> bit % 8 & 1:
            quotient += 1
            continue
        i = len(indices)
        rest = sum(int(coded.planes[p * plane + i // 8] >> i % 8 & 1) << p for p in range(coded.shift))
        previous += 1 + (quotient << coded.shift) + rest
        indices.append(previous)
        quotient = 0
    return indices


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
@settings(deadline=None, max_examples=80)
def test_any_set_survives(case: tuple[int, set[int]]) -> None:
    numel, chosen = case
    indices = np.array(sorted(chosen), np.int64)
    coded = encode_indices(indices)
    assert decode_indices(coded, numel).tolist() == indices.tolist()
    assert by_hand(coded) == indices.tolist()
    assert coded.nbytes <= numel // 8 + 1 + coded.shift  # never more than a bitmap, but for padding


@pytest.mark.parametrize("indices", [[0], [2**31 - 2], [0, 2**31 - 2], [5, 6, 7, 2**30]])
def test_far_indices_survive(indices: list[int]) -> None:
    coded = encode_indices(np.array(indices))
    assert decode_indices(coded, 2**31 - 1).tolist() == indices
    assert coded.nbytes < 100


@pytest.mark.parametrize("ratio", [1.5, 2, 3, 5, 10, 30, 100, 300, 1000, 10_000])
def test_close_to_the_entropy(ratio: float) -> None:
    size, p = 2_000_000, 1 / ratio
    indices = np.flatnonzero(np.random.default_rng(0).random(size) < p)
    coded = encode_indices(indices)
    entropy = (-p * np.log2(p) - (1 - p) * np.log2(1 - p)) / p
    bits = 8 * coded.nbytes / indices.size
    assert entropy * 0.97 < bits < entropy * 1.10  # at 1.5 the bitmap takes 1.5 bits where 1.38 are needed
    assert bits == pytest.approx(expected_bits(p), rel=0.03)
    np.testing.assert_array_equal(decode_indices(coded, size), indices)


def test_golden_bytes() -> None:
    coded = encode_indices(np.array([3, 4, 10, 30, 31, 60]))
    # gaps 3 0 5 19 0 28, shift 3: quotients 0 0 0 2 0 3, remainders 3 0 5 3 0 4
    assert (coded.count, coded.shift) == (6, 3)
    assert coded.unary.tobytes().hex() == "6704"  # 1 1 1 001 1 0001 from the lowest bit
    assert coded.planes.tobytes().hex() == "0d" + "09" + "24"  # bit 0: 1 0 1 1 0 0, bit 1: 1 0 0 1 0 0, bit 2: 0 0 1 0 0 1


def test_clusters_cost_little() -> None:
    indices = np.concatenate([np.arange(start, start + 1000) for start in range(0, 10**6, 10**5)])
    assert 8 * encode_indices(indices).nbytes / indices.size < 13


CODED = encode_indices(np.arange(0, 1000, 10))


@pytest.mark.parametrize(
    ("coded", "numel", "text"),
    [
        (replace(CODED, count=99), 1000, "100 indices instead of 99"),
        (replace(CODED, count=1001), 1000, "1001 indices with shift"),
        (replace(CODED, count=-1), 1000, "-1 indices with shift"),
        (replace(CODED, shift=60), 1000, "with shift 60"),
        (replace(CODED, planes=CODED.planes[1:]), 1000, "planes of 100 bits can't be"),
        (replace(CODED, unary=np.zeros(10**6, np.uint8)), 1000, "in 1000000 bytes, of 1000 elements"),
        (CODED, 990, "an index lies beyond the 990 elements"),
        (CODED, 1 << 40, "of 1099511627776 elements"),
    ],
)
def test_errors(coded: CodedIndices, numel: int, text: str) -> None:
    with pytest.raises(CodecError) as caught:
        decode_indices(coded, numel)
    assert text in str(caught.value)


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(-2, 300), st.integers(-1, 40), st.integers(0, 3000))
@settings(deadline=None, max_examples=150)
def test_random_bytes_give_ascending_indices_or_an_error(unary: bytes, planes: bytes, count: int, shift: int, numel: int) -> None:
    parts = (np.frombuffer(unary, np.uint8), np.frombuffer(planes, np.uint8))
    try:
        indices = decode_indices(CodedIndices(count=count, shift=shift, unary=parts[0], planes=parts[1]), numel)
    except CodecError:
        return
    assert indices.size == count
    assert not count or (indices[0] >= 0 and indices[-1] < numel and (np.diff(indices) > 0).all())
