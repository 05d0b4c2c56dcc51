"""What travels between stages: values under every codec, and what hostile peers send instead."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.codecs import CODECS, get_codec
from farflung.errors import CodecError, FarflungError, MemoryExceeded, WireError
from farflung.memory_budget import MemoryBudget
from farflung.messages.arrays import PackedArray, decode_array, encode_array
from farflung.messages.data import Batch, SideKey, SideValues, UseKey, Value
from farflung.messages.schema import UNSET, Channel
from farflung.messages.wire_form import decode, decode_as, encode
from farflung.plan.model import CodecChoice
from farflung.step.inbox import Inbox
from farflung.step.run_setup import Phase
from farflung.step.transfer.outbox import Outbox
from farflung.step.transfer.value_transfer import ValueTransfer
from farflung.transports.memory import MemoryHub
from farflung.wire.frames import Frame, decode_frame, encode_frame
from tests.support.steps.small_runs import small_graph, small_plan, small_setup

LIMIT = 1 << 20
USE = UseKey(step=0, stage=0, state="w", op="op")


def through_the_wire(packed: PackedArray) -> PackedArray:
    value = Value(run="r", key=USE, array=packed.array, payload=packed.payload, sections=packed.sections)
    found = decode_as(decode_frame(b"".join(encode_frame(encode(value)))), Channel.DATA, Value)
    return PackedArray(found.array, found.payload, found.sections)


def take(transfer: ValueTransfer, peer: str, frame: Frame) -> None:
    message = decode(frame, Channel.DATA)
    if isinstance(message, Batch):
        transfer.receive_batch(peer, message)
    elif isinstance(message, SideValues):
        transfer.receive_side(peer, message)
    else:
        assert isinstance(message, Value)
        transfer.receive(peer, message)


# -- values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(CODECS))
def test_every_codec_gives_back_shape_strides_and_type(name: str) -> None:
    array = np.asfortranarray(np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32))
    codec = None if name == "identity" else get_codec(name)
    back = decode_array(through_the_wire(encode_array(array, codec)), LIMIT)
    assert (back.shape, back.dtype, back.strides) == (array.shape, array.dtype, array.strides)
    if name == "identity":
        assert back.tobytes("F") == array.tobytes("F")


def test_integers_and_empty_arrays_are_never_compressed() -> None:
    codec = get_codec("topk", ratio=10)
    for array in (np.arange(12).reshape(3, 4), np.zeros((0, 4), np.float32)):
        packed = encode_array(array, codec)
        assert packed.payload is UNSET
        np.testing.assert_array_equal(decode_array(through_the_wire(packed), LIMIT), array)


class Ends:
    """Couriers of the workers a and b, who are joined by memory."""

    def __init__(self, codec: CodecChoice | None = None, memory: int | None = None) -> None:
        hub, plan = MemoryHub(), small_plan(codec=codec)
        self.boxes = {name: Inbox() for name in "ab"}
        self.couriers: dict[str, ValueTransfer] = {}
        self.endpoints = {
            name: hub.endpoint(name, lambda peer, frame, name=name: take(self.couriers[name], peer, frame)) for name in "ab"
        }
        self.links: dict[str, Outbox] = {}
        for name, peer in ("ab", "ba"):
            self.endpoints[name].connect(peer, self.endpoints[peer].address)
            self.links[name] = Outbox(self.endpoints[name], [peer], self.boxes[name].abort)
            setup = replace(small_setup(name, plan), budget=MemoryBudget(memory))
            self.couriers[name] = ValueTransfer(setup, self.boxes[name], self.links[name])

    def __enter__(self) -> Ends:
        return self

    def __exit__(self, *error: object) -> None:
        for one in (*self.links.values(), *self.endpoints.values()):
            one.close()


def test_a_value_crosses_and_its_gradient_comes_back() -> None:
    with Ends() as ends:
        (edge,) = small_setup("b").subgraphs[1].requires_activations
        value = np.random.default_rng(1).standard_normal(edge.spec.shape).astype(np.float32)
        for sender, receiver, gradient in (("a", "b", False), ("b", "a", True)):
            ends.couriers[sender].send(Phase.TRAIN, 0, 1, edge, value, gradient=gradient)
            key = ends.couriers[receiver].key(Phase.TRAIN, 0, 1, edge, gradient=gradient)
            np.testing.assert_array_equal(ends.boxes[receiver].take(key), value)


def test_values_of_an_evaluation_cross_in_one_frame() -> None:
    random = np.random.default_rng(1)
    arrays = {
        SideKey(phase="serve", step=0, number=7, value=name, source=0, target=1): random.standard_normal(shape)
        for name, shape in (("add", (1, 8)), ("query", (2, 4)), ("empty", (0,)))
    }
    with Ends() as ends:
        ends.couriers["a"].send_arrays("b", arrays)
        ends.couriers["a"].send_arrays("a", arrays)
        for key, array in arrays.items():
            np.testing.assert_array_equal(ends.boxes["b"].take(key), array)
            np.testing.assert_array_equal(ends.boxes["a"].take(key), array)
        ends.links["a"].flush()
        assert ends.endpoints["a"].statistics()["b"].frames_sent == 1


def test_encoding_without_memory_ends_the_attempt_with_a_message() -> None:
    (edge,) = small_setup("b").subgraphs[1].requires_activations
    value = np.ones(edge.spec.shape, np.float32)
    with Ends(CodecChoice(name="int8"), memory=value.nbytes - 1) as ends:
        ends.couriers["a"].send(Phase.TRAIN, 0, 0, edge, value, gradient=False)
        key = ends.couriers["a"].key(Phase.TRAIN, 0, 0, edge, gradient=False)
        with pytest.raises(
            MemoryExceeded, match=r"^encoding value bend needs .* that this process may use are in use: offer more"
        ):
            ends.boxes["a"].take(key)


def test_random_numbers_of_a_codec_belong_to_the_message() -> None:
    codec = CodecChoice(name="int4", params=(("block", 16), ("rounding", "stochastic")))
    (edge,) = small_setup("b").subgraphs[1].requires_activations
    value = np.random.default_rng(1).standard_normal(edge.spec.shape).astype(np.float32)

    def arrived(step: int, micro_batch: int, gradient: bool) -> bytes:
        sender, receiver = "ba" if gradient else "ab"
        with Ends(codec) as ends:
            ends.couriers[sender].send(Phase.TRAIN, step, micro_batch, edge, value, gradient=gradient)
            key = ends.couriers[receiver].key(Phase.TRAIN, step, micro_batch, edge, gradient=gradient)
            return ends.boxes[receiver].take(key).tobytes()

    messages = [(0, 0, False), (1, 0, False), (0, 1, False), (0, 0, True)]
    assert len({arrived(*message) for message in messages}) == 4
    assert arrived(0, 0, False) == arrived(0, 0, False)


def test_codecs_see_the_rows_of_a_value() -> None:
    packed = encode_array(np.ones((10, 30, 6), np.float32), get_codec("int8", block="row"))
    assert packed.payload is not UNSET
    assert packed.payload["fields"]["block"] == 6
    assert len(packed.sections[1]) == 4 * 300


KEY = ["value", "train", 0, 0, "bend", 0, 1, False]
SIDE = ["side", "eval", 0, 0, "bend", 0, 1]
HEADER = {"run": "run-small", "key": KEY, "array": ["float32", [4, 16], None]}


def value_frame(key: object = KEY, shape: tuple[int, ...] = (4, 16), dtype: Any = np.float32, **extra: Any) -> Frame:
    array = np.zeros(shape, dtype)
    header = {**HEADER, "key": key, "array": [array.dtype.name, list(shape), None]}
    return Frame("value", header | extra, (array.tobytes(),))


def values_frame(keys: object, shape: list[int] | None) -> Frame:
    item = None if shape is None else {"array": ["float32", shape, None], "sections": 1}
    sections = () if shape is None else (bytes(4 * math.prod(shape)),)
    return Frame("values", {"run": "run-small", "keys": keys, "arrays": [item]}, sections)


def batch_frame(key: object, step: int = 0, **extra: Any) -> Frame:
    header = {"run": "run-small", "key": key, "step": step, "array": ["float32", [1], None]}
    return Frame("data", header | extra, (bytes(4),))


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (value_frame(key=None), "bad message 'value'.*'key'"),
        (value_frame(key=[["x"]]), "bad message 'value'.*'key"),
        (value_frame(key=["x"] * 13), "bad message 'value'.*'key"),
        (value_frame(key=["value", "train", 0, 0, "first", 0, 1, False]), "the plan sends nothing under the key"),
        (value_frame(key=["value", "train", -1, 0, "bend", 0, 1, False]), "bad message 'value'.*>= 0"),
        (value_frame(key=KEY[:-1]), "bad message 'value'.*'key'"),
        (value_frame(shape=(5, 16)), r"oversized value 'bend': float32 \[5, 16\] has more than the 256 bytes of the plan"),
        (value_frame(shape=(4, 16), dtype=np.float64), "oversized value 'bend'"),
        (value_frame(key=SIDE), "bad message 'value': Invalid value 'side'"),
        (values_frame([SIDE], [100, 100]), "oversized array"),
        (values_frame([SIDE, [*SIDE[:-1], 2]], [4]), "a 'values' message has 2 arrays here, 1 came"),
        (values_frame([SIDE], None), "a 'values' message has 1 keys, and 0 arrays"),
        (values_frame([KEY], [4]), "bad message 'values': Invalid value 'value'"),
        (value_frame(array=["float32", [2**40], None]), "oversized value"),
        (value_frame(array=None), "bad message 'value'.*'array'"),
        (Frame("value", HEADER, (b"1", b"2")), "one section"),
        (Frame("value", HEADER, (b"12",)), "needs 256 bytes, got 2"),
        (Frame("value", HEADER | {"payload": 3}, ()), "bad message 'value'.*'payload'"),
        (Frame("value", HEADER | {"payload": {"codec": "topk"}}, ()), "bad payload"),
        (value_frame(key=["verdict", 0]), "bad message 'value': Invalid value 'verdict'"),
        (value_frame(key=["data", 0, 0, "x"]), "bad message 'value': Invalid value 'data'"),
        (batch_frame(KEY), "bad message 'data'.*'key"),
        (batch_frame(["data", 9, 0, "x"]), "a batch of step 0 came under the key of step 9"),
        (batch_frame(["eval", 9, 0, "x"]), "a batch of step 0 came under the key of step 9"),
        (batch_frame(["data", 0]), "bad message 'data'.*'key"),
        (batch_frame(["data", 0, 0, "x"], array=["float32", [2], None]), "needs 8 bytes, got 4"),
    ],
)
def test_what_the_plan_does_not_send_is_refused(frame: Frame, says: str) -> None:
    with Ends() as ends:
        with pytest.raises((WireError, CodecError), match=says):
            take(ends.couriers["b"], "a", frame)
        assert len(ends.boxes["b"]) == 0


def test_a_peer_can_not_fill_the_memory_with_keys() -> None:
    """Keys of the plan's own edges, but of micro-batches and steps that nobody asked for."""
    setup = small_setup("b")
    courier = ValueTransfer(setup, Inbox(setup.most_keys), Outbox(None, [], lambda error: None))  # type: ignore[arg-type]
    for number in range(setup.most_keys):
        take(courier, "a", value_frame(key=[*KEY[:2], number, 0, *KEY[4:]]))
    with pytest.raises(WireError, match="values wait already, more than this run can have"):
        take(courier, "a", value_frame(key=[*KEY[:2], setup.most_keys, 0, *KEY[4:]]))
    assert 1000 < setup.most_keys < 3000


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None, max_examples=150)
@given(
    kind=st.sampled_from(["value", "values", "data"]),
    header=st.dictionaries(st.sampled_from(["key", "keys", "array", "arrays", "payload", "step", "samples", "run"]), plain).map(
        HEADER.__or__
    ),
    sections=st.lists(st.binary(max_size=64), max_size=3),
)
def test_any_frame_is_taken_or_refused_by_an_error_of_ours(kind: str, header: dict[str, Any], sections: list[bytes]) -> None:
    courier = ValueTransfer(small_setup("b"), Inbox(), Outbox(None, [], lambda error: None))  # type: ignore[arg-type]
    with suppress(FarflungError):
        take(courier, "a", Frame(kind, header, tuple(sections)))


def test_the_small_graph_is_what_these_tests_think() -> None:
    assert [str(edge.value) for edge in small_setup("b").subgraphs[1].requires_activations] == ["bend"]
    assert small_graph().loss.op == "loss"
