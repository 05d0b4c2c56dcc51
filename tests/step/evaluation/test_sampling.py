"""Which tokens are drawn: the likeliest in order, of equal ones the first, without sorting a whole vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.step.evaluation.sampling import draw_token, likeliest, log_probabilities

VOCABULARY = 50_000


@given(scores=st.lists(st.integers(-3, 3), min_size=1, max_size=30), count=st.integers(0, 40))
def test_the_likeliest_are_the_first_of_a_stable_sort(scores: list[int], count: int) -> None:
    given_scores = np.asarray(scores, np.float64)
    assert likeliest(given_scores, count).tolist() == np.argsort(-given_scores, kind="stable")[:count].tolist()


def test_only_tokens_that_are_wanted_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = np.argsort, list[int]()

    def argsort(values: Any, **settings: Any) -> Any:
        seen.append(len(values))
        return real(values, **settings)

    monkeypatch.setattr(np, "argsort", argsort)
    logits = np.random.default_rng(0).normal(size=VOCABULARY)
    draw_token(logits, np.random.default_rng(1), temperature=0.0)
    likeliest(logits, 0)
    assert seen == []
    draw_token(logits, np.random.default_rng(1), temperature=1.0, top_k=40)
    likeliest(logits, 20)
    assert seen == [40, 20]


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (40, 1.0), (0, 0.9), (40, 0.5), (1, 1.0)])
def test_a_seed_gives_the_same_token_as_with_a_whole_sort(top_k: int, top_p: float) -> None:
    logits = np.round(np.random.default_rng(0).normal(size=2000), 1)  # with many equal ones
    for seed in range(50):
        order = np.argsort(-logits, kind="stable")[: top_k or None]
        chances = np.exp((logits[order] - logits[order[0]]) / 0.8)
        chances /= chances.sum()
        kept = int(np.searchsorted(np.cumsum(chances), top_p - 1e-12)) + 1
        chances = chances[:kept] / chances[:kept].sum()
        expected = order[np.random.default_rng(seed).choice(len(chances), p=chances)]
        found = draw_token(logits, np.random.default_rng(seed), temperature=0.8, top_k=top_k, top_p=top_p)
        assert found == int(expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_probabilities_are_those_of_the_whole_vocabulary(dtype: type[Any]) -> None:
    logits = (10 * np.random.default_rng(0).normal(size=VOCABULARY)).astype(dtype)
    chances = np.exp(logits.astype(np.float64) - float(logits.max()))
    expected = np.log(chances / chances.sum())
    found = log_probabilities(logits, range(0, VOCABULARY, 997))
    np.testing.assert_allclose(found, expected[::997], rtol=0, atol=1e-6 if dtype is np.float32 else 1e-12)
