"""Ranks of what is exchanged at once: together they take one share of the bytes, and no direction more would fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.codecs import decode_payload, read_codec
from farflung.codecs.exchanged import Remembered, coded_bytes
from farflung.codecs.low_rank.apportion import apportioned
from farflung.codecs.low_rank.lowrank import LowRank, matrix_shape
from farflung.sync.commands import Exchange

GENERATOR = np.random.default_rng(0)
CODEC = "lowrank:rank=16,values=int4,ratio=100"


def drawn(*shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {str(number): GENERATOR.standard_normal(shape).astype(np.float32) for number, shape in enumerate(shapes)}


def sent(arrays: dict[str, np.ndarray], codec: str = CODEC) -> int:
    exchange = Exchange(tag="0", source="gradient", layers=(), group=(0, 1), codec=codec, memory="error_feedback")
    payloads = Remembered().encode(exchange, arrays)
    for payload, array in zip(payloads, arrays.values(), strict=True):
        assert decode_payload(payload).shape == array.shape
    return sum(len(section) for payload in payloads for section in payload.sections)


def test_small_matrices_and_large_ones_take_one_share_together() -> None:
    """Groups of a narrow residual network: at one rank for all, small ones cost most."""
    shapes = [(width, width, 3, 3) for width in (8, 16, 32, 64) for _ in range(3)] + [(width,) for width in (8, 16, 32, 64)]
    arrays = drawn(*shapes)
    dense = sum(array.nbytes for array in arrays.values())
    assert 0.97 < 100 * sent(arrays) / dense <= 1.0
    ranks = [codec.rank for codec in apportioned(read_codec(CODEC), arrays).values() if isinstance(codec, LowRank)]
    assert ranks[:3] == [1] * 3
    assert min(ranks[-3:]) >= 3, "they pay for what small ones take beyond their share, and keep most of theirs"
    assert len(ranks) == 12, "vectors go at a bit for each element"


@given(
    st.lists(st.lists(st.integers(1, 80), min_size=1, max_size=3).map(tuple), min_size=1, max_size=8),
    st.sampled_from([2, 10, 50, 100]),
    st.sampled_from(["int4", "int8", "float32"]),
)
@settings(deadline=None, max_examples=60)
def test_the_share_is_given_out_and_not_exceeded(shapes: list[tuple[int, ...]], ratio: int, values: str) -> None:
    codec = LowRank(rank=6, values=values, ratio=ratio)
    arrays = {str(number): np.zeros(shape, np.float32) for number, shape in enumerate(shapes)}
    found = apportioned(codec, arrays)
    matrices = [matrix_shape(shape) for shape in shapes]
    ranks = [one.rank if isinstance(one, LowRank) else 0 for one in found.values()]
    least = [codec.least_rank(*matrix, 4) for matrix in matrices]
    share = sum(4 * rows * columns for rows, columns in matrices) / ratio

    def taken(of: list[int]) -> float:
        return sum(codec.factor_bytes(*matrix, 4, rank) for matrix, rank in zip(matrices, of, strict=True))

    assert taken(ranks) <= max(share, taken(least)) + 1e-6
    for number, (matrix, rank) in enumerate(zip(matrices, ranks, strict=True)):
        assert rank >= least[number]
        if codec.rank_of(*matrix, 4) and rank < min(codec.rank, *matrix):
            assert taken([*ranks[:number], rank + 1, *ranks[number + 1 :]]) > share
        assert rank <= codec.rank * codec.rank_of(*matrix, 4)


def test_other_codecs_and_kinds_stay_as_they_are() -> None:
    arrays = drawn((60, 60), (3,)) | {"whole": np.arange(40), "none": np.zeros((0, 4), np.float32)}
    plain = read_codec("lowrank:rank=2")
    assert set(map(id, apportioned(plain, arrays).values())) == {id(plain)}
    found = {name: codec.encode(arrays[name]) for name, codec in apportioned(read_codec("lowrank:ratio=20"), arrays).items()}
    assert [payload.codec for payload in found.values()] == ["lowrank", "identity", "identity", "identity"]
    np.testing.assert_array_equal(decode_payload(found["whole"]), arrays["whole"])


@pytest.mark.parametrize("codec", ["lowrank:rank=3,values=int4", "lowrank:rank=3", "lowrank", "int8"])
def test_plans_count_what_replicas_of_a_small_model_send(codec: str) -> None:
    """Many arrays, so heads that are counted though a frame has them once would be most of it."""
    block = [(32,), (32,), (96, 32), (96,), (32, 32), (32,), (128, 32), (128,), (32, 128), (32,)]
    shapes = [(256, 32), (32, 32), *block, *block, (32,), (8, 8, 3, 3)]
    assert coded_bytes(codec, shapes) == pytest.approx(sent(drawn(*shapes), codec), rel=0.02)


def test_a_matrix_alone_takes_its_own_share() -> None:
    codec = LowRank(rank=64, values="int4", ratio=100)
    assert codec.rank_of(64, 256, 4) == 4 - 1, "scales count, too"
    assert codec.rank_of(8, 72, 4) == 1, "fewer bytes than a bit for each element"
    assert codec.rank_of(8, 8, 4) == 0
    assert codec.rank_of(4096, 4096, 4) == 64
    payload = codec.encode(GENERATOR.standard_normal((512, 512)).astype(np.float32))
    assert 0.9 < 100 * sum(map(len, payload.sections)) / (4 << 18) <= 1.0


def test_what_plans_count() -> None:
    assert coded_bytes(CODEC, [(250_000,), (1000, 1000), (0, 3)]) == pytest.approx(5e4)
