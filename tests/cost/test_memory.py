"""Memory of stages, on a chain whose bytes are worked out by hand."""

import numpy as np
import pytest

from farflung.cost import MemorySettings, cast_factor, op_costs, stage_memory
from farflung.graph.builder import GraphBuilder
from farflung.graph.ir import StateRef


def chain(layers=3, width=16, rows=4):
    """Linear layers without bias; each keeps its input: rows * width * 4 = 256 bytes, weights 1024 bytes."""
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (rows, width))
    for i in range(layers):
        value = builder.add(f"fc{i}", "Linear", value, in_features=width, out_features=width, bias=False)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (rows, width)))
    return builder.build()


@pytest.fixture(scope="module")
def cost():
    return op_costs(chain())


def memory(cost, settings, received=0.0, sent=0.0, stops=(3,)):
    ends = np.full(len(stops), received), np.full(len(stops), sent)
    return stage_memory(cost, 1, stops, settings, *ends)


def test_parameters_gradients_and_optimizer(cost):
    found = memory(cost, MemorySettings(optimizer=2.0)).parts()
    assert found["parameters"] == found["gradients"] == 2 * 1024
    assert found["optimizer"] == 4 * 1024


def test_activations_grow_with_the_micro_batches_in_flight(cost):
    one, three = (memory(cost, MemorySettings(in_flight=k), 100, 50).parts()["activations"] for k in (1, 3))
    assert one == 2 * 256 + 150
    assert three == 3 * one


def test_recomputing_keeps_one_micro_batch_and_what_was_received(cost):
    found = memory(cost, MemorySettings(in_flight=3, recompute=True), 100, 50).parts()
    assert found["activations"] == 2 * 256 + 3 * 100 + 50


def test_bfloat16_keeps_a_half_size_copy_of_the_weights_per_micro_batch(cost):
    plain, cast = (
        memory(cost, MemorySettings(in_flight=3, casts=cast_factor(p))).parts()["activations"] for p in ("float32", "bf16")
    )
    assert cast - plain == 3 * 2 * 1024 / 2


def test_several_stops_at_once_equal_one_by_one(cost):
    both = memory(cost, MemorySettings(in_flight=2), stops=(2, 3)).total
    assert both.tolist() == [memory(cost, MemorySettings(in_flight=2), stops=(stop,)).total[0] for stop in (2, 3)]


def test_a_tied_parameter_is_held_once_and_its_uses_accumulate_apart():
    builder = GraphBuilder("tied")
    tokens = builder.input("x", "int64", (2, 8))
    hidden = builder.add("table", "Embedding", tokens, num_embeddings=10, embedding_dim=4)
    logits = builder.call("linear.default", hidden, StateRef("table.weight"))
    builder.add("loss", "MSELoss", logits, builder.label("y", "float32", (2, 8, 10)))
    graph = builder.build()
    cost = op_costs(graph)
    n, size, nothing = len(graph.ops), 10 * 4 * 4, np.zeros(1)
    whole = stage_memory(cost, 0, [n], MemorySettings(), nothing, nothing).parts()
    assert whole["parameters"] == size
    assert whole["gradients"] == 3 * size  # the sum and two uses
    middle = graph.position["table"] + 1
    half = stage_memory(cost, middle, [n], MemorySettings(), nothing, nothing).parts()
    assert half["parameters"] == size
    assert half["gradients"] == 2 * size
    assert half["update"] - whole["update"] == size  # the other stage's use arrives
