"""What replicas exchange through a codec with memory, by the names of their parameters."""

from __future__ import annotations

import numpy as np
import pytest

from farflung.codecs import decode_payload, read_codec, read_memory
from farflung.codecs.exchanged import Remembered, shaped
from farflung.codecs.sparse.topk import TopK
from farflung.errors import CodecError, InputError
from farflung.sync.commands import Exchange

ARRAYS = {
    "w": np.arange(1000, dtype=np.float32).reshape(20, 50),
    "b": np.array([5000.0, -3.0], np.float32),
}


def exchange(codec: str, memory: str = "none", warm: tuple[int, int] = (0, 0)) -> Exchange:
    return Exchange(tag="3", source="gradient", layers=(0,), group=(0, 1), codec=codec, memory=memory, warm=warm)


def test_sparse_codecs_choose_among_all_parameters_and_the_rest_is_remembered_by_parameter() -> None:
    held = Remembered()
    (payload,) = held.encode(exchange("topk:ratio=1002,values=float32", "error_feedback"), ARRAYS)
    weight, bias = shaped([decode_payload(payload)], ARRAYS.values())
    assert weight.tolist() == np.zeros((20, 50)).tolist()
    assert bias.tolist() == [5000.0, 0.0]
    assert held.registers["memory.error"]["w"].tolist() == ARRAYS["w"].tolist()
    assert held.registers["memory.error"]["b"].tolist() == [0.0, -3.0]
    nothing = {name: np.zeros_like(array) for name, array in ARRAYS.items()}
    again = held.encode(exchange("topk:ratio=1002,values=float32", "error_feedback"), nothing)
    assert shaped([decode_payload(again[0])], ARRAYS.values())[0][19, 49] == 999.0


def test_other_codecs_take_parameter_by_parameter() -> None:
    held = Remembered()
    payloads = held.encode(exchange("int8", "error_feedback"), ARRAYS)
    assert [payload.shape for payload in payloads] == [(20, 50), (2,)]
    assert held.registers["memory.error"].keys() == ARRAYS.keys()


def test_a_warm_up_drops_less_at_first() -> None:
    arrays = {"w": np.random.default_rng(0).standard_normal(4096).astype(np.float32)}
    counts = [
        np.count_nonzero(decode_payload(Remembered().encode(exchange("topk:ratio=256,values=int8", warm=(step, 2)), arrays)[0]))
        for step in (0, 1, 2)
    ]
    assert counts == [1024, 128, 16]


@pytest.mark.parametrize("memory", ["difference", "econtrol:eta=0.2"])
def test_receivers_of_differences_add_what_arrives(memory: str) -> None:
    """Both ends come to hold the same, also where one goes on from what was written down."""
    sender, receiver = Remembered(), Remembered()
    generator = np.random.default_rng(1)
    for step in range(6):
        value = {"w": ARRAYS["w"] + generator.standard_normal((20, 50)).astype(np.float32) * 0.01, "b": ARRAYS["b"]}
        payloads = sender.encode(exchange("topk:ratio=3", memory), value)
        receiver.begun("3", memory)
        decoded = shaped([decode_payload(payload) for payload in payloads], value.values())
        arrived = receiver.arrived("3", 0, dict(zip(value, decoded, strict=True)))
        receiver.done("3")
        for name in value:
            assert arrived[name].tobytes() == sender.registers["memory.held"][name].tobytes(), step
    assert np.linalg.norm(arrived["w"] - ARRAYS["w"]) < 0.1 * np.linalg.norm(ARRAYS["w"])


def test_an_exchange_of_another_size_is_refused() -> None:
    with pytest.raises(CodecError, match="an exchange of 1002 elements came with 3"):
        shaped([np.zeros(3, np.float32)], ARRAYS.values())


def test_codecs_and_memories_are_read_as_they_are_written() -> None:
    assert read_codec("topk: ratio=33, values=int4") == TopK(ratio=33, values="int4")
    memory = read_memory("dgc:momentum=0.5,clip=1", read_codec("int8"))
    assert (memory.momentum, memory.clip) == (0.5, 1)  # type: ignore[attr-defined]
    for text, message in (
        ("topk:33", "codec 'topk:33': write a name, or name:key=value,key=value as in topk:ratio=33,values=int8"),
        ("zip", "unknown codec 'zip': known are"),
        ("topk:rate=3", r"codec 'topk' has no parameter 'rate': did you mean 'ratio'\? known are ratio"),
    ):
        with pytest.raises(InputError, match=message):
            read_codec(text)
    for text, message in (("none:", "memory 'none:': write a name"), ("old", "unknown memory 'old': known are dgc, difference")):
        with pytest.raises(InputError, match=message):
            read_memory(text, read_codec("int8"))


@pytest.mark.parametrize("memory", ["none", "error_feedback", "difference", "econtrol"])
def test_what_the_others_will_have_is_known_here(memory: str) -> None:
    here, there = Remembered(), Remembered()
    for turn in range(3):
        arrays = {name: array + np.float32(turn) for name, array in ARRAYS.items()}
        (payload,) = here.encode(exchange("topk:ratio=10", memory), arrays, turn)
        decoded = dict(zip(ARRAYS, shaped([decode_payload(payload)], ARRAYS.values()), strict=True))
        known = {name: np.array(array) for name, array in here.arrives("3", decoded).items()}
        there.begun("3", memory)
        arrived = there.arrived("3", 0, decoded)
        for name in ARRAYS:
            np.testing.assert_array_equal(known[name], arrived[name])
