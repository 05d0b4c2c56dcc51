"""Each layer through its own codec: programs, and settings that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farflung.errors import InputError
from farflung.sync import get_strategy
from tests.support.models.small_nets import world


def test_each_layer_goes_through_its_codec() -> None:
    strategy = get_strategy("lgreco", codec="int8")
    assert {exchange.codec for exchange in strategy.step(0, world()).exchanges} == {"int8"}
    chosen = replace(world(), codecs=("int2", "identity", "topk:ratio=4"))
    found = {exchange.layers: exchange.codec for exchange in strategy.step(0, chosen).exchanges}
    assert found == {(0,): "int2", (1,): "identity", (2,): "topk:ratio=4"}
    shared = strategy.step(0, replace(chosen, shared=(0,)))
    assert {exchange.layers: exchange.codec for exchange in shared.exchanges}[0,] == "identity"


def test_the_plain_codec_comes_first_and_the_first_one_second() -> None:
    rule = get_strategy("lgreco", codec="int4", options="int8 int4").traits.layer_codecs
    assert rule is not None
    assert rule.options == ("identity", "int4", "int8")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"every": 1}, "every = 1: must be a whole number, 2 or more"),
        ({"error": 1.0}, "error = 1.0: must be a number, at least 0 and below 1"),
        ({"options": " "}, "write codecs with spaces between them"),
        ({"options": 8}, "write codecs with spaces between them"),
        ({"memory": "all"}, "known are none, error_feedback"),
    ],
)
def test_settings(settings: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        get_strategy("lgreco", **settings)
