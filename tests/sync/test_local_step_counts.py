"""Fewer local steps for slower replicas: how many, which, and what they weigh."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import InputError
from farflung.job.spec import OptimizerSpec
from farflung.sync import LayerInfo, World, get_strategy
from farflung.sync.local_step_counts import adapted_steps, local_steps, takes
from farflung.sync.timeline import timeline
from farflung.testing.replicas import Group, Task
from farflung.units import Bytes, Seconds


def world(steps: tuple[int, ...], shares: tuple[float, ...] = ()) -> World:
    layer = LayerInfo(nbytes=Bytes(4), bp_seconds=Seconds(1.0), comm_seconds=Seconds(0.5))
    return World(rank=0, members=len(steps), layers=(layer, layer), shares=shares, local_steps=steps)


def test_steps_by_speed() -> None:
    assert local_steps([1.0, 2.0, 1.1, 30.0], 10) == (10, 5, 9, 1)
    assert local_steps([3.0, 3.0], 4) == (4, 4)
    with pytest.raises(InputError, match="a local step of replica 1 takes 0 seconds: must be more than 0 and finite"):
        local_steps([1.0, 0], 4)


def test_measured_times_are_followed_where_they_bring_samples() -> None:
    assert adapted_steps((4, 4), [1.0, 2.0], (), 4, 0.1) == (4, 2), "3 samples a second instead of 2"
    assert adapted_steps((4, 2), [1.0, 1.0], (), 4, 0.1) == (4, 4), "who has become faster takes more"
    assert adapted_steps((4, 4), [1.0, 2.0], (0.95, 0.05), 4, 0.1) == (4, 2)
    assert adapted_steps((10, 10), [1.0, 1.02], (), 10, 0.1) == (10, 10), "a little slower changes nothing"
    for unknown in ([1.0, 0.0], [1.0, float("nan")], [1.0, float("inf")], [1.0]):
        assert adapted_steps((4, 3), unknown, (), 4, 0.1) == (4, 3)


times = st.lists(st.floats(0.01, 100), min_size=1, max_size=6)


@settings(deadline=None)
@given(times, st.integers(1, 40), st.floats(0, 0.9), st.randoms(use_true_random=False))
def test_what_is_followed_is_by_speed_and_brings_more(seconds: list[float], period: int, adapt: float, random: Any) -> None:
    now = [random.randint(1, period) for _ in seconds]
    now[random.randrange(len(now))] = period
    found = adapted_steps(now, seconds, (), period, adapt)
    if found != tuple(now):
        assert found == local_steps(seconds, period)
        rates = [sum(steps) / max(map(operator.mul, steps, seconds)) for steps in (now, found)]
        assert rates[1] > rates[0]
    assert adapted_steps(found, seconds, (), period, adapt) == found, "it stays, once followed"


@settings(deadline=None)
@given(st.integers(1, 60).flatmap(lambda period: st.tuples(st.integers(1, period), st.just(period))), st.integers(0, 5))
def test_steps_are_spread_evenly_and_begin_with_the_period(pair: tuple[int, int], periods: int) -> None:
    steps, period = pair
    taken = [r for r in range(period) if takes(periods * period + r, steps, period)]
    assert len(taken) == steps
    assert taken[0] == 0
    gaps = np.diff([*taken, period])
    assert gaps.max() - gaps.min() <= 1


def test_weights_are_samples_used() -> None:
    assert world((4, 2)).weights == pytest.approx((2 / 3, 1 / 3))
    assert world((4, 1, 2), (0.5, 0.25, 0.25)).weights == pytest.approx((2 / 2.75, 0.25 / 2.75, 0.5 / 2.75))
    for steps in ((4,), (4, 0)):
        with pytest.raises(InputError, match="each takes at least one in a period"):
            replace(world((4, 2)), local_steps=steps).check()


STRATEGIES = {
    "local_sgd": {"sync_every": 4},
    "diloco": {"sync_every": 4, "outer_lr": 0.7, "outer_momentum": 0.5},
    "co2": {"sync_every": 4, "outer_momentum": 0.0, "penalty": False},
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_unequal_steps_are_the_loop_written_out(name: str) -> None:
    """Members take 4, 2 and 1 of 4 steps of SGD; between periods their parameters are the mean by samples, or an outer step."""
    given, periods = STRATEGIES[name], 3
    steps, rate, shares = (4, 2, 1), 0.1, (0.5, 0.25, 0.25)

    def slope(value: np.ndarray, step: int, member: int) -> np.ndarray:
        return value * (1 + member) - np.cos(step + np.arange(3))

    task = Task(
        start=[np.ones(3), np.zeros(3)],
        gradient=lambda layers, step, member: (float(step), [slope(layer, step, member) for layer in layers]),
        optimizer=OptimizerSpec(name="sgd", lr=rate),
    )
    group = Group(get_strategy(name, by_speed=True, **given), world(steps, shares), task)
    group.run(4 * periods)
    parts = np.array(shares) * steps / np.dot(shares, steps)
    for layer, start in enumerate(task.start):
        anchor, momentum, before = np.array(start), np.zeros(3), np.zeros(3)
        for period in range(periods):
            ends = []
            for member, count in enumerate(steps):
                value = anchor.copy()
                for r in [r for r in range(4) if takes(r, count, 4)]:
                    value -= rate * slope(value, 4 * period + r, member)
                ends.append(value)
            moved = sum(part * (anchor - end) for part, end in zip(parts, ends, strict=True))
            if name == "local_sgd":
                anchor = anchor - moved
            elif name == "diloco":
                momentum = 0.5 * momentum + moved
                anchor = anchor - 0.7 * (moved + 0.5 * momentum)
            else:
                anchor, before = anchor - before, moved
        for replica in group.replicas:
            np.testing.assert_allclose(replica.parameters[layer], anchor, rtol=1e-12, atol=1e-12)


def test_who_rests_does_nothing() -> None:
    slow = replace(world((4, 2)), rank=1)
    strategy = get_strategy("local_sgd", sync_every=4, by_speed=True)
    programs = [strategy.step(step, slow) for step in range(4)]
    assert [program.rests for program in programs] == [False, True, False, True]
    assert [len(program.commands) for program in programs] == [1, 0, 1, 2]
    spans = timeline(strategy, slow, 4, forward_seconds=1.0)
    assert [float(span.seconds) for span in spans] == [3.0, 0.0, 3.0, 1.0]
    assert all(not strategy.step(step, world((4, 2))).rests for step in range(8))


def test_strategies_that_exchange_in_every_step_have_no_such_setting() -> None:
    with pytest.raises(InputError, match="strategy 'dreamddp' has no setting 'by_speed'"):
        get_strategy("dreamddp", by_speed=True)
