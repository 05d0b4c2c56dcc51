"""Difference coding by sample: both ends hold the same, and what comes again costs no more and errs less."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.codecs import read_codec
from farflung.codecs.samples import SampleCoder, SampleTable, sample_ids
from farflung.errors import CodecError, MemoryExceeded
from farflung.memory_budget import MemoryBudget

LARGE = 1 << 30
SIGN = read_codec("quantized:bits=1,block=64,rotate=true")


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def test_a_value_that_comes_again_errs_less_with_each_visit_and_never_costs_more() -> None:
    value = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    coder, here, there = SampleCoder(codec=SIGN), SampleTable(limit=LARGE), SampleTable(limit=LARGE)
    errors, sizes = [], []
    for visit in range(6):
        payloads = coder.encode(value, ids(1, 2, 3, 4), here, visit)
        arrived = coder.decode(payloads, ids(1, 2, 3, 4), there, 64)
        errors.append(float(np.linalg.norm(arrived - value) / np.linalg.norm(value)))
        sizes.append(sum(len(section) for payload in payloads for section in payload.sections))
    assert all(after < 0.75 * before for before, after in pairwise(errors))
    assert len(set(sizes)) == 1


def test_first_visits_may_go_by_a_finer_codec() -> None:
    value = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    coder, here, there = SampleCoder(codec=SIGN, first=read_codec("fp16")), SampleTable(limit=LARGE), SampleTable(limit=LARGE)
    for visit, wanted in (((1, 2, 3), 1), ((1, 4, 3), 2), ((4, 1, 2), 1)):
        rows = value[list(visit)]
        payloads = coder.encode(rows, ids(*visit), here, "v")
        assert len(payloads) == wanted
        np.testing.assert_allclose(coder.decode(payloads, ids(*visit), there, 64), rows, atol=0.01)
    with pytest.raises(CodecError, match="a value of known samples needs 2 payloads, got 1: the two ends disagree"):
        coder.decode(payloads, ids(1, 9, 2), there, 64)


@given(
    visits=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=12),
    limit=st.sampled_from([0, 100, 300, LARGE]),
    first=st.sampled_from([None, "fp16"]),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_both_ends_always_hold_the_same_bits(visits: list[list[int]], limit: int, first: str | None, seed: int) -> None:
    """Also where a sample comes twice in a message, where memory is over, and where values are not finite."""
    generator = np.random.default_rng(seed)
    coder = SampleCoder(codec=SIGN, first=None if first is None else read_codec(first))
    here, there = SampleTable(limit=limit), SampleTable(limit=limit)
    for step, visit in enumerate(visits):
        value = generator.standard_normal((len(visit), 4, 4)).astype(np.float32)
        if generator.random() < 0.2:
            value[0, 0, 0] = np.nan
        payloads = coder.encode(value, ids(*visit), here, step)
        assert coder.decode(payloads, ids(*visit), there, 16).shape == (len(visit), 16)
        assert here.held.keys() == there.held.keys()
        assert all(here.held[key].tobytes() == there.held[key].tobytes() for key in here.held)
        assert all(np.isfinite(row).all() for row in here.held.values())
        assert here.nbytes == there.nbytes == sum(row.nbytes for row in here.held.values()) <= limit
        assert (here.messages, there.messages) == (step + 1, step + 1)


def test_samples_are_known_by_what_they_hold() -> None:
    tokens = np.array([[1, 2], [3, 4], [1, 2]])
    found = sample_ids([tokens, np.zeros(())], 3)
    assert found[0] == found[2] != found[1]
    assert sample_ids([tokens, np.array([0, 0, 1])], 3)[0] != sample_ids([tokens, np.array([0, 0, 1])], 3)[2]


def test_elements_that_are_not_those_of_the_samples_are_refused() -> None:
    with pytest.raises(CodecError, match="10 elements are not those of 3 samples"):
        SampleCoder(codec=SIGN).encode(np.zeros(10, np.float32), ids(1, 2, 3), SampleTable(limit=1))


def test_samples_count_in_the_budget_while_they_are_held() -> None:
    budget = MemoryBudget(1000)
    table = SampleTable(limit=LARGE, budget=budget)
    rows = np.ones((3, 64), np.float32)
    table.put(ids(1, 2, 3), rows)
    table.put(ids(1, 2, 3), 2 * rows)  # what is known takes no more
    assert (budget.used, table.nbytes, table.bases(ids(2), 64)[0, 0]) == (768, 768, 2)
    with pytest.raises(
        MemoryExceeded, match=r"a sample of a link's cache \(codec.memory_bytes bounds it\) needs 256 B, .*--memory"
    ):
        table.put(ids(4), rows[:1])
    del table
    assert budget.used == 0
