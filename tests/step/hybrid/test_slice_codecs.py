"""What goes between a server and a helper is encoded only where the codec loses nothing more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.codecs import get_codec, keyed
from farflung.graph.cut import Edge
from farflung.messages.arrays import PackedArray, decode_array, encode_array
from farflung.messages.schema import UNSET
from farflung.plan.model import CodecChoice
from farflung.protocol.pool.pool_events import Task, TaskKind
from farflung.step.hybrid.slice_codecs import SliceCodecs
from farflung.step.run_setup import RunSetup
from tests.support.steps.small_runs import ROWS, small_plan, small_setup

TASK = Task(step=2, kind=TaskKind.FORWARD, index=1)
CODECS: dict[str, dict[str, Any]] = {
    "fp16": {},
    "bf16": {},
    "int8": {},
    "int4": {"rounding": "stochastic"},
    "topk": {"ratio": 4.0},
    "lowrank": {"rank": 2},
}


def setup_of(name: str, devices: tuple[str, ...] = ("a", "b")) -> RunSetup:
    choice = CodecChoice(name=name, params=tuple(CODECS.get(name, {}).items()))
    return small_setup("a", small_plan(devices, choice))


def edges(setup: RunSetup) -> tuple[Edge, ...]:
    return setup.subgraphs[0].gives


def decoded(packed: PackedArray) -> np.ndarray[Any, Any]:
    return decode_array(packed, 1 << 20)


@pytest.mark.parametrize("name", CODECS)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-30, 1e-6, 1.0, 65504.0, 1e30]), gradient=st.booleans())
def test_helpers_change_no_bit(name: str, seed: int, scale: float, gradient: bool) -> None:
    """A value passes link, server and helper, and the helper's own value passes server and link, as without a helper."""
    setup = setup_of(name)
    codecs, (edge,) = SliceCodecs(setup), edges(setup)
    own = np.random.default_rng(seed).standard_normal((ROWS, 16)).astype(np.float32) * np.float32(scale)
    codec = keyed(get_codec(name, **CODECS[name]), setup.job.seed, 2, 1, str(edge.value), int(gradient))
    arrived = decoded(encode_array(own, codec))
    at_helper = decoded(codecs.for_helper(TASK, [edge], arrived, gradient=gradient))
    assert at_helper.tobytes() == arrived.tobytes()
    at_server = decoded(codecs.for_server(TASK, [edge], own, gradient=gradient))
    assert decoded(encode_array(at_server, codec)).tobytes() == arrived.tobytes()


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8", "topk"])
def test_helpers_get_and_send_no_more_bytes_than_stages(name: str) -> None:
    setup = setup_of(name)
    codecs, (edge,) = SliceCodecs(setup), edges(setup)
    own = np.random.default_rng(0).standard_normal((ROWS, 16)).astype(np.float32)
    link = encode_array(own, get_codec(name, **CODECS[name]))
    there = codecs.for_helper(TASK, [edge], decoded(link), gradient=False)
    for packed in (there, codecs.for_server(TASK, [edge], own, gradient=False)):
        assert packed.payload is not UNSET
        assert sum(map(len, packed.sections)) == sum(map(len, link.sections))


def test_what_a_codec_would_change_goes_as_it_is() -> None:
    setup = setup_of("fp16")
    value = np.array([1.0, 1.0 + 2.0**-20], np.float32)
    assert SliceCodecs(setup).for_helper(TASK, edges(setup), value, gradient=False).payload is UNSET


def test_a_value_that_one_device_makes_and_reads_goes_as_it_is() -> None:
    setup = setup_of("bf16", ("a", "a"))
    own = np.ones((ROWS, 16), np.float32)
    assert SliceCodecs(setup).for_server(TASK, edges(setup), own, gradient=False).payload is UNSET


def test_links_without_a_codec_and_links_with_different_ones_send_plainly() -> None:
    own = np.ones((ROWS, 16), np.float32)
    plain = setup_of("identity")
    assert SliceCodecs(plain).for_server(TASK, edges(plain), own, gradient=False).payload is UNSET
    setup = setup_of("bf16", ("a", "b", "c"))
    (near,), (far,) = setup.subgraphs[0].gives, setup.subgraphs[1].gives
    assert SliceCodecs(setup).for_server(TASK, [near, far], own, gradient=False).payload is not UNSET
    links = (setup.plan.links[0], *setup_of("fp16", ("a", "b", "c")).plan.links[1:])
    mixed = replace(setup, plan=replace(setup.plan, links=links))
    assert SliceCodecs(mixed).for_server(TASK, [near, far], own, gradient=False).payload is UNSET
