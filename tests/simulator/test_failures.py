"""Injected deaths against the formulas, by seed; stories that can be told by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import InputError
from farflung.plan.fault_tolerance.faults import FaultModel
from farflung.simulator import simulate_failures


def model(**changes: object) -> FaultModel:
    given_ = {
        "rates": {f"d{i}": 1 / 4000 for i in range(4)},
        "step_seconds": 2.0,
        "samples": 16,
        "interval": 30,
        "checkpoint": 1.0,
        "recovery": 20.0,
    }
    return FaultModel(**given_ | changes)


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    mtbf=st.sampled_from([300.0, 2000.0, 50_000.0]),
    interval=st.integers(1, 100),
    recovery=st.floats(0.0, 60.0),
    spared=st.sampled_from([(), ("a",), ("a", "b")]),
)
def test_injected_deaths_agree_with_the_formula(
    seed: int, mtbf: float, interval: int, recovery: float, spared: tuple[str, ...]
) -> None:
    rates = {"a": 0.7 / mtbf, "b": 0.3 / mtbf}
    found = model(rates=rates, interval=interval, recovery=recovery, spared=frozenset(spared))
    played = simulate_failures(found, deaths=4000, seed=seed)
    # the standard error of the rate of deaths is 1.6 %, and what deaths cost is in proportion to it
    cost = 1 - found.share
    assert played.samples_per_second / found.undisturbed == pytest.approx(found.share, abs=0.12 * cost + 1e-4)
    assert played.deaths == 4000


@pytest.mark.parametrize("away", [50.0, 200.0])
def test_machines_that_stay_away_agree_with_the_formula(away: float) -> None:
    rates = {f"d{i}": 1 / 20_000 for i in range(4)}
    found = model(rates=rates, away=away, without=dict.fromkeys(rates, 3.0))
    played = simulate_failures(found, deaths=6000, seed=1)
    assert played.samples_per_second == pytest.approx(found.samples_per_second, rel=0.01)
    assert found.samples_per_second < model(rates=rates).samples_per_second
    none = simulate_failures(model(rates=rates, away=away), deaths=3000, seed=1)
    assert none.waited > 0
    assert none.samples_per_second < played.samples_per_second


@given(seed=st.integers(0, 10**6), checkpoint=st.floats(0.0, 500.0), spared=st.booleans())
@settings(deadline=None, max_examples=20)
def test_a_death_repeats_no_more_steps_than_there_are_between_checkpoints(seed: int, checkpoint: float, spared: bool) -> None:
    found = model(
        rates={"a": 1 / 50},
        step_seconds=1.0,
        interval=3,
        checkpoint=checkpoint,
        recovery=0.0,
        spared=frozenset("a" if spared else ""),
    )
    played = simulate_failures(found, deaths=200, seed=seed)
    assert played.again <= (1 if spared else 3) * 200


def test_the_same_seed_tells_the_same_story() -> None:
    assert simulate_failures(model(), seed=3) == simulate_failures(model(), seed=3)
    assert simulate_failures(model(), seed=3) != simulate_failures(model(), seed=4)


def test_time_is_accounted_for() -> None:
    found = simulate_failures(model(checkpoint=0.0), deaths=500, seed=2)
    assert found.seconds == pytest.approx(2.0 * (found.steps + found.again) + found.paused + found.waited)
    assert found.steps % 30 == 0


def test_pauses_longer_than_lives_let_nothing_be_made() -> None:
    found = simulate_failures(model(rates={"a": 1.0}, recovery=50.0), deaths=200)
    assert found.steps == 0
    assert found.seconds - found.paused < 20  # the life before the first pause
    assert model(rates={"a": 1.0}, recovery=1000.0).samples_per_second == 0.0


def test_a_plan_for_any_set_of_machines_may_be_given() -> None:
    asked: set[frozenset[str]] = set()

    def without(missing: frozenset[str]) -> float:
        asked.add(missing)
        return 2.0 + len(missing)

    found = simulate_failures(model(away=2000.0), deaths=300, seed=5, without=without)
    assert found.waited == 0
    assert max(len(missing) for missing in asked) > 1


def test_without_deaths_there_is_nothing_to_inject() -> None:
    for bad in (model(rates={}), model(rates={"a": 0.0})):
        with pytest.raises(InputError, match="injecting 1000 deaths needs machines with a failure rate"):
            simulate_failures(bad)
    with pytest.raises(InputError, match="injecting 0 deaths"):
        simulate_failures(model(), deaths=0)
    assert math.isfinite(model(rates={}).samples_per_second)
