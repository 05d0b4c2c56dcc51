"""Learning-rate schedules against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from farflung.job import make_job, rates
from farflung.job.rates import factor


def job(**schedule: object):
    return make_job({"steps": 10, "optimizer": {"lr": 2.0}, "schedule": schedule})


def test_constant() -> None:
    assert [rates(job(), step) for step in (0, 5, 99)] == [(2.0,), (2.0,), (2.0,)]


def test_warmup_reaches_the_rate_and_stays() -> None:
    assert [factor(job(warmup=4), step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_decay() -> None:
    values = [factor(job(name="linear", warmup=2, final=0.2), step) for step in range(12)]
    assert values[:3] == [0.5, 1.0, 1.0]
    assert values[6] == pytest.approx(1 - 0.8 * 0.5)
    assert values[10] == values[11] == pytest.approx(0.2)


def test_cosine_decay() -> None:
    values = [factor(job(name="cosine"), step) for step in range(11)]
    assert values[0] == 1.0
    assert values[5] == pytest.approx(0.5)
    assert values[2] == pytest.approx((1 + math.cos(0.2 * math.pi)) / 2)
    assert values[10] == pytest.approx(0.0)


def test_warmup_over_all_steps_does_not_divide_by_zero() -> None:
    assert factor(job(name="cosine", warmup=10), 9) == 1.0


def test_groups_come_first_then_the_default() -> None:
    spec = {
        "steps": 10,
        "optimizer": {
            "lr": 1.0,
            "groups": [{"match": "a", "lr": 0.5}, {"match": "b", "frozen": True}, {"match": "c", "weight_decay": 0.1}],
        },
        "schedule": {"warmup": 2},
    }
    assert rates(make_job(spec), 0) == (0.25, 0.0, 0.5, 0.5)


def test_negative_step_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="count from 0"):
        factor(job(), -1)


def test_wsd_is_constant_and_decays_at_the_end() -> None:
    values = [factor(job(name="wsd", warmup=2, decay=4, final=0.5), step) for step in range(12)]
    assert values == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.5]
    assert factor(job(name="wsd"), 9) == 1.0, "without decay: the last tenth"


def test_inverse_square_root() -> None:
    values = [factor(job(name="inverse_sqrt", warmup=4), step) for step in (0, 3, 15, 99)]
    assert values == [0.25, 1.0, 0.5, 0.2]


def test_one_cycle() -> None:
    values = [factor(job(name="one_cycle", warmup=4), step) for step in range(11)]
    assert values[0] == pytest.approx(1 / 25)
    assert values[3] == max(values) == 1.0
    assert values[9] == values[10] == pytest.approx(0.0)
    assert values == pytest.approx([0.04, 0.28, 0.76, 1.0, 0.9330127, 0.75, 0.5, 0.25, 0.0669873, 0.0, 0.0])
