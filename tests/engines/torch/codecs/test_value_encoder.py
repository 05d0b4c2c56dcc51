"""A stage's runner encodes what its codings name, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from farflung.codecs import get_codec, keyed
from farflung.engines import EngineSettings, MicroBatch, get_engine
from farflung.engines.encoded_value import Coding, EncodedValue, arrays_of
from farflung.engines.torch.codecs import ValueEncoder
from farflung.graph.cut import cut
from farflung.graph.ir import ValueRef
from farflung.messages.arrays import decode_array, encode_array, packed_payload
from tests.support.steps.small_runs import small_graph, small_plan

VALUE = ValueRef("v")
CODING = Coding(value=VALUE, gradient=False, name="int4", params=(("rounding", "stochastic"),), micro_batches=(0, 2))
SETTINGS = EngineSettings(seed=7, codings=(CODING, replace(CODING, gradient=True, name="topk", params=(("ratio", 10),))))


def check_payloads(device: str) -> None:
    encoder, tensor = ValueEncoder(SETTINGS), torch.randn(64, 128, device=device)
    for step, index, gradient in ((0, 0, False), (0, 2, False), (1, 0, False), (1, 0, True)):
        found = encoder.encode(MicroBatch(step, index), VALUE, tensor, gradient=gradient)
        assert isinstance(found, EncodedValue)
        codec = get_codec("topk", ratio=10) if gradient else get_codec("int4", rounding="stochastic")
        wanted = encode_array(tensor.cpu().numpy(), keyed(codec, 7, step, index, "v", int(gradient)))
        made = packed_payload(found.meta, found.payload)
        assert (made.array, made.payload) == (wanted.array, wanted.payload)
        assert [bytes(part) for part in made.sections] == [bytes(part) for part in wanted.sections]


def test_each_message_has_its_own_random_numbers() -> None:
    check_payloads("cpu")


@pytest.mark.gpu
def test_a_device_encodes_the_same() -> None:
    check_payloads("cuda")


def test_other_values_and_micro_batches_stay_arrays() -> None:
    encoder, tensor = ValueEncoder(SETTINGS), torch.randn(64, 128)
    assert encoder.encode(MicroBatch(0, 1), VALUE, tensor, gradient=False) is None
    assert encoder.encode(MicroBatch(0, 0), ValueRef("w"), tensor, gradient=False) is None
    assert encoder.encode(MicroBatch(0, 0), VALUE, torch.randn(3), gradient=False) is None, (
        "three numbers are smaller as they are"
    )


def test_one_value_in_128_brings_its_array_along() -> None:
    encoder, tensor = ValueEncoder(SETTINGS), torch.randn(8, 64)
    made = [encoder.encode(MicroBatch(step, 0), VALUE, tensor, gradient=False) for step in range(129)]
    arrays = {step: one.array for step, one in enumerate(made) if one is not None and one.array is not None}
    assert list(arrays) == [0, 128]
    np.testing.assert_array_equal(arrays[0], tensor.numpy())
    assert not np.shares_memory(arrays[0], tensor.numpy())


def test_an_encoded_value_is_no_array() -> None:
    found = ValueEncoder(SETTINGS).encode(MicroBatch(0, 0), VALUE, torch.randn(8, 64), gradient=False)
    assert found is not None
    with pytest.raises(TypeError, match=r"^a value float32\[8, 64\] is encoded where its array is needed"):
        arrays_of({VALUE: found})


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_stage_gives_payloads_of_its_values_and_gradients(device: str) -> None:
    """The first value of each coding brings its array along, so the payload can be made again from it."""
    graph, bend = small_graph(64), ValueRef("bend")
    pieces = cut(graph, small_plan().bounds)
    codings = tuple(
        Coding(value=bend, gradient=gradient, name="int4", params=(("rotate", 1),), micro_batches=(0,))
        for gradient in (False, True)
    )
    runners = [get_engine("torch").open(piece, EngineSettings(device=device, codings=codings)) for piece in pieces]
    for runner in runners:
        runner.initialize(runner.subgraph.states)
    random, key = np.random.default_rng(0), MicroBatch(0, 0)
    data = {"x": random.standard_normal((64, 8)).astype(np.float32), "label": random.integers(0, 5, 64)}
    value = runners[0].forward(key, {}, {"x": data["x"]}).values[bend]
    assert isinstance(value, EncodedValue)
    arrived = decode_array(packed_payload(value.meta, value.payload), 1 << 20)
    assert np.isfinite(runners[1].forward(key, {bend: arrived}, {"label": data["label"]}).outputs["loss"])
    gradient = runners[1].backward(key, {}, 1.0)[bend]
    assert isinstance(gradient, EncodedValue)
    for found, name in ((value, 0), (gradient, 1)):
        assert found.array is not None
        wanted = encode_array(found.array, keyed(get_codec("int4", rotate=1), 0, 0, 0, "bend", name))
        assert packed_payload(found.meta, found.payload)[:2] == wanted[:2]
        assert [bytes(part) for part in found.payload.sections] == [bytes(part) for part in wanted.sections]
    returned = decode_array(packed_payload(gradient.meta, gradient.payload), 1 << 20)
    runners[0].backward(key, {bend: [returned]}, 1.0)
    runners[0].finish_gradients({})
    assert all(np.isfinite(one).all() for one in runners[0].gradients().values())
