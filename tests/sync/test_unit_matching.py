"""Hidden units in one order: networks that compute the same, and what the search finds."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from farflung.errors import InputError
from farflung.sync.unit_matching import in_one_order, matched, read_units

UNITS = read_units("a.weight:0 a.bias:0 b.weight:1; b.weight:0 b.bias:0 c.weight:1")


def network(seed: int, hidden: int = 12) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    shapes = {
        "a.weight": (hidden, 5),
        "a.bias": (hidden,),
        "b.weight": (hidden, hidden),
        "b.bias": (hidden,),
        "c.weight": (3, hidden),
    }
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def output(net: dict[str, Any], x: Any) -> Any:
    first = np.tanh(x @ net["a.weight"].T + net["a.bias"])
    return np.tanh(first @ net["b.weight"].T + net["b.bias"]) @ net["c.weight"].T


def shuffled(net: dict[str, Any], seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    one, two = (random.permutation(len(net["a.bias"])) for _ in range(2))
    return {
        "a.weight": net["a.weight"][one],
        "a.bias": net["a.bias"][one],
        "b.weight": net["b.weight"][two][:, one],
        "b.bias": net["b.bias"][two],
        "c.weight": net["c.weight"][:, two],
    }


@pytest.mark.parametrize("seed", range(4))
def test_a_network_in_another_order_is_found_again_bit_for_bit(seed: int) -> None:
    net = network(seed)
    found = matched(net, shuffled(net, seed), UNITS)
    for name, value in net.items():
        assert np.array_equal(found[name], value), name


@pytest.mark.parametrize("seed", range(4))
def test_another_order_computes_the_same_and_is_no_worse(seed: int) -> None:
    own, other = network(seed), network(seed + 100)
    found = matched(own, other, UNITS)
    x = np.random.default_rng(9).standard_normal((7, 5)).astype(np.float32)
    np.testing.assert_allclose(output(found, x), output(other, x), rtol=1e-4, atol=1e-5)
    alike = [sum(float(np.vdot(own[name], net[name])) for name in own) for net in (other, found)]
    assert alike[1] > alike[0]


def test_one_group_is_matched_as_well_as_by_all_orders() -> None:
    random = np.random.default_rng(3)
    own, other = ({"w": random.standard_normal((5, 4)), "v": random.standard_normal((2, 5))} for _ in range(2))
    found = matched(own, other, read_units("w:0 v:1"))

    def alike(order: Any) -> float:
        return float(np.vdot(own["w"], other["w"][list(order)]) + np.vdot(own["v"], other["v"][:, list(order)]))

    best = max(permutations(range(5)), key=alike)
    assert np.array_equal(found["w"], other["w"][list(best)])
    assert np.array_equal(found["v"], other["v"][:, list(best)])


def test_members_take_the_order_of_the_reference_and_numbers_that_are_none_do_no_harm() -> None:
    nets = [network(0), shuffled(network(0), 1), shuffled(network(0), 2)]
    for place, values in enumerate(in_one_order(nets, UNITS, 1)):
        assert np.array_equal(values["b.weight"], nets[1]["b.weight"]), place
    half = [{name: net[name] for name in ("b.weight", "b.bias", "c.weight")} for net in nets]
    for some, only in zip(in_one_order(half, UNITS, 1), in_one_order(half, UNITS[1:], 1), strict=True):
        assert np.array_equal(some["b.bias"], only["b.bias"]), "the first group is in another stage"
    broken = network(0) | {"a.bias": np.full(12, np.nan, np.float32)}
    assert np.isnan(matched(network(0), broken, UNITS)["a.bias"]).all()


@pytest.mark.parametrize("text", ["a.weight", "a.weight:0; ", "a.weight:x", 3, "a:0 b"])
def test_what_names_no_units(text: object) -> None:
    with pytest.raises(InputError, match="write parameters with the axis of the units, and a semicolon between groups"):
        read_units(text)
