"""Merged gradients: the fit of an exchange's cost, and that no division of the layers ends earlier."""

from __future__ import annotations

from itertools import accumulate, combinations, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.sync import LayerInfo, World, get_strategy
from farflung.sync.layer_sets import fitted_exchange, merged_layers
from farflung.units import Bytes, Seconds


def layers_of(sizes: list[float], bp: list[float], startup: float, per_byte: float) -> tuple[LayerInfo, ...]:
    return tuple(
        LayerInfo(nbytes=Bytes(size), bp_seconds=Seconds(b), comm_seconds=Seconds(per_byte * size), latency=Seconds(startup))
        for size, b in zip(sizes, bp, strict=True)
    )


def end_of(layers: tuple[LayerInfo, ...], messages: Any, startup: float, per_byte: float) -> float:
    ready = list(accumulate(float(layer.bp_seconds) for layer in reversed(layers)))[::-1]
    end = 0.0
    for message in messages:
        end = max(end, ready[min(message)]) + startup + per_byte * sum(float(layers[layer].nbytes) for layer in message)
    return end


def divisions(count: int) -> Any:
    order = list(range(count - 1, -1, -1))
    for cuts in (cuts for number in range(count) for cuts in combinations(range(1, count), number)):
        ends = [0, *cuts, count]
        yield [order[a:b] for a, b in pairwise(ends)]


def test_the_fit_finds_start_up_and_rate() -> None:
    startup, per_byte = fitted_exchange(layers_of([10.0, 30.0, 500.0], [1.0] * 3, 0.25, 0.01))
    assert startup == pytest.approx(0.25)
    assert per_byte == pytest.approx(0.01)


def test_layers_of_one_size_take_the_latency_as_start_up() -> None:
    assert fitted_exchange(layers_of([50.0] * 3, [1.0] * 3, 0.25, 0.01)) == pytest.approx((0.25, 0.01))


def test_measured_times_that_fall_with_the_size_give_no_negative_cost() -> None:
    falling = [LayerInfo(nbytes=Bytes(n), bp_seconds=Seconds(1), comm_seconds=Seconds(100 - n)) for n in (10, 50)]
    startup, per_byte = fitted_exchange(falling)
    assert startup == 0.0
    assert per_byte == pytest.approx(140 / 60)


some = st.floats(0.0625, 8, width=16)


@given(st.lists(st.tuples(some, some), min_size=2, max_size=7), some, some, st.integers(1, 3))
@settings(deadline=None, max_examples=80)
def test_no_division_ends_earlier(rows: list[tuple[float, float]], startup: float, per_byte: float, at_once: int) -> None:
    layers = layers_of([size for size, _ in rows], [bp for _, bp in rows], startup, per_byte)
    found = merged_layers(layers, at_once)
    assert [layer for message in found for layer in message] == list(range(len(layers) - 1, -1, -1))
    cost, rate = fitted_exchange(layers)
    ends = [end_of(layers, messages, cost / at_once, rate) for messages in divisions(len(layers))]
    assert end_of(layers, found, cost / at_once, rate) == pytest.approx(min(ends))


def test_a_long_start_up_merges_and_a_short_one_does_not() -> None:
    slow, fast = (layers_of([8.0, 16.0, 24.0, 32.0], [1.0] * 4, startup, 0.001) for startup in (50.0, 0.001))
    assert merged_layers(slow) == ((3, 2, 1, 0),)
    assert merged_layers(fast) == ((3,), (2,), (1,), (0,))


def test_the_strategy_sends_what_the_model_merges() -> None:
    world = World(rank=0, members=2, layers=layers_of([8.0, 16.0, 24.0, 32.0], [1.0] * 4, 1.5, 0.001))
    strategy = get_strategy("asc_wfbp", fitted=True, simultaneous=1)
    assert [exchange.layers for exchange in strategy.step(0, world).exchanges] == list(merged_layers(world.layers))
    assert get_strategy("asc_wfbp", simultaneous=1).step(0, world).exchanges[0].layers == (3, 2, 1, 0)
