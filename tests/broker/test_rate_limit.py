"""Rates for each key, in virtual time."""

from __future__ import annotations

import pytest

from farflung.broker import rate_limit
from farflung.broker.rate_limit import RateLimit


def test_a_burst_and_then_a_rate() -> None:
    limit = RateLimit(60)
    assert [limit.take("a", 0.0) for _ in range(60)] == [0.0] * 60
    assert limit.take("a", 0.0) == pytest.approx(1.0)
    assert limit.take("b", 0.0) == 0.0
    assert limit.take("a", 0.5) == pytest.approx(0.5)
    assert limit.take("a", 1.0) == 0.0
    assert limit.take("a", 1.0) > 0
    assert [limit.take("a", 1e6) for _ in range(61)].count(0.0) == 60


def test_the_clock_may_step_back() -> None:
    limit = RateLimit(1)
    assert limit.take("a", 100.0) == 0.0
    assert limit.take("a", 50.0) == pytest.approx(60.0)


def test_keys_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "_MOST_KEYS", 3)
    limit = RateLimit(1)
    for key in ("a", "b", "c", "a", "d"):
        limit.take(key, 0.0)
    assert limit.take("b", 0.0) == 0.0  # the least recent one was forgotten
    assert limit.take("d", 0.0) > 0.0
