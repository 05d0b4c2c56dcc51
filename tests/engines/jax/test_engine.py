"""The JAX engine computes what the PyTorch engine computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from farflung.engines import EngineSettings, MicroBatch, get_engine
from farflung.errors import GraphError, InputError
from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import cut
from farflung.graph.ir import Graph
from farflung.job.spec import GroupSpec, OptimizerSpec
from tests.support.engines.engine_closeness import worst_difference
from tests.support.engines.engine_comparison import Trained
from tests.support.engines.engine_drive import Array, make, module_states

#: Between PyTorch and JAX, as a share of the largest element of each gradient.
CLOSE = 2e-5
ADAMW = OptimizerSpec(name="adamw", lr=1e-3, clip_norm=1.0)
JAX, TORCH = get_engine("jax"), get_engine("torch")


#: JAX compiles each stage of each model, which takes seconds.
CASES = [("gpt2", 1), ("gpt2", 3), ("user_cnn", 3), ("moe", 3)]
MORE = [(name, stages) for name in ("user_cnn", "moe", "llama", "bert", "albert") for stages in (1, 3)]


@pytest.mark.parametrize(
    ("name", "stages"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE if case not in CASES)]
)
def test_losses_gradients_and_updates(name: str, stages: int) -> None:
    """Among them dropout, whose masks have the same bits, and tied parameters."""
    settings = EngineSettings(seed=3, optimizer=ADAMW)
    found, expected = Trained(name, JAX, stages, settings), Trained(name, TORCH, stages, settings)
    assert found.losses == pytest.approx(expected.losses, rel=1e-6)
    assert worst_difference(found.gradients, expected.gradients) < CLOSE
    before = module_states(make(name)[0])
    states = expected.update()
    # AdamW divides by the size of a gradient: where that is rounding, the first step is, too.
    moved = {
        key: array for key, array in states.items() if key in expected.gradients and np.abs(expected.gradients[key]).max() > 1e-6
    }
    reached = found.update()
    assert reached.keys() == states.keys()
    assert worst_difference({key: reached[key] for key in moved}, moved) < 1e-3
    assert any(not np.array_equal(before[key], reached[key]) for key in moved)


def test_batch_normalization() -> None:
    """Deep in this network a mean has three elements, which makes any rounding large: so the tolerance."""
    found, expected = Trained("resnet18", JAX, 2), Trained("resnet18", TORCH, 2)
    assert found.losses == pytest.approx(expected.losses, rel=1e-5)
    assert worst_difference(found.gradients, expected.gradients) < 1e-3
    statistics = {name: array for name, array in expected.stages.states().items() if "running" in name}
    assert len(statistics) == 40
    assert worst_difference({name: found.stages.states()[name] for name in statistics}, statistics) < CLOSE


def test_recomputation_changes_nothing() -> None:
    plain = Trained("user_cnn", JAX, 2)
    again = Trained("user_cnn", JAX, 2, EngineSettings(seed=3, recompute=True))
    assert again.losses == plain.losses
    assert worst_difference(again.gradients, plain.gradients) < 1e-6


def test_bf16_is_as_close_as_sixteen_bits_are() -> None:
    settings = EngineSettings(seed=3, precision="bf16")
    wide, found, expected = Trained("gpt2", TORCH), Trained("gpt2", JAX, 3, settings), Trained("gpt2", TORCH, 3, settings)
    assert found.losses == pytest.approx(expected.losses, rel=1e-2)
    assert worst_difference(found.gradients, wide.gradients) < 2 * worst_difference(expected.gradients, wide.gradients)
    assert worst_difference(found.gradients, wide.gradients) > 1e-4  # it is not float32 in disguise
    sent = [edge.value for edge in found.stages.subs[0].sends_activations]
    assert sent


def test_frozen_parameters_get_no_gradient() -> None:
    spec = OptimizerSpec(name="sgd", lr=0.1, groups=(GroupSpec(match="wte|ln", frozen=True),))
    found = Trained("gpt2", JAX, 2, EngineSettings(seed=3, optimizer=spec))
    assert not any("wte" in name or "ln" in name for name in found.gradients)
    assert any("attn" in name for name in found.gradients)


def small() -> Graph:
    graph = GraphBuilder("small")
    graph.input("x", "float32", (4, 3))
    graph.add("linear", "Linear", "x", in_features=3, out_features=5)
    graph.label("label", "int64", (4,))
    graph.add("loss", "CrossEntropyLoss", "linear", "label")
    return graph.build()


def data(graph: Graph) -> dict[str, Array]:
    del graph
    return {"x": np.ones((4, 3), np.float32), "label": np.arange(4)}


def test_first_values_are_those_of_pytorch() -> None:
    names = [state.name for state in small().states]
    found, expected = (engine.initial_states(small(), 7, names) for engine in (JAX, TORCH))
    assert all(np.array_equal(found[name], expected[name]) for name in names)  # uniform numbers


def test_evaluation_beside_training_reads_the_same_states() -> None:
    (piece,) = cut(small(), [(0, len(small().ops))])
    runner = JAX.open(piece, EngineSettings(optimizer=OptimizerSpec(lr=0.5)))
    runner.initialize(list(piece.states))
    evaluate = JAX.open(piece, EngineSettings(training=False), runner)
    before = evaluate.forward(MicroBatch(0, 0), {}, data(piece.graph)).outputs["loss"].copy()
    runner.forward(MicroBatch(0, 0), {}, data(piece.graph))
    reported: list[int] = []
    runner.watch([["linear.weight"], ["linear.weight", "linear.bias"]], reported.append)
    runner.backward(MicroBatch(0, 0), {}, 1.0)
    assert reported == [0, 1]
    runner.finish_gradients({})
    runner.update([0.5], None)
    assert evaluate.forward(MicroBatch(0, 1), {}, data(piece.graph)).outputs["loss"] < before
    assert runner.gradients() == {}


def test_memory_that_others_write_is_the_state() -> None:
    (piece,) = cut(small(), [(0, len(small().ops))])
    runner = JAX.open(piece, EngineSettings())
    runner.initialize(list(piece.states))
    first = runner.forward(MicroBatch(0, 0), {}, data(piece.graph)).outputs["loss"].copy()
    for array in runner.exposed(["linear.weight", "linear.bias"]).values():
        array[:] = 0
    second = runner.forward(MicroBatch(0, 1), {}, data(piece.graph)).outputs["loss"]
    assert float(second) == pytest.approx(np.log(5))
    assert float(first) != pytest.approx(np.log(5))


def test_what_was_handed_out_stays() -> None:
    (piece,) = cut(small(), [(0, len(small().ops))])
    runner = JAX.open(piece, EngineSettings(optimizer=OptimizerSpec(lr=0.5)))
    runner.initialize(list(piece.states))
    given = data(piece.graph)
    runner.forward(MicroBatch(0, 0), {}, given)
    given["x"][:] = 100  # the caller's memory is the caller's
    runner.backward(MicroBatch(0, 0), {}, 1.0)
    held = runner.gradients()
    other = JAX.open(piece, EngineSettings())
    other.load(runner.states())
    other.forward(MicroBatch(0, 0), {}, data(piece.graph))
    other.backward(MicroBatch(0, 0), {}, 1.0)
    assert worst_difference(held, other.gradients()) == 0


def test_errors_name_what_is_wrong() -> None:
    (piece,) = cut(small(), [(0, len(small().ops))])
    with pytest.raises(InputError, match="unknown precision 'fp8': known are bf16, float32"):
        JAX.open(piece, EngineSettings(precision="fp8"))
    runner = JAX.open(piece, EngineSettings())
    with pytest.raises(GraphError, match=r"state 'linear.weight' has no value yet: initialize or load it first"):
        runner.forward(MicroBatch(0, 0), {}, data(piece.graph))
    with pytest.raises(GraphError, match=r"input 'label' is declared \[4\] but the given array is \[3\]"):
        runner.forward(MicroBatch(0, 0), {}, {**data(piece.graph), "label": np.arange(3)})
    with pytest.raises(GraphError, match=r"stage 0 has no forward of MicroBatch\(step=0, index=0\) to go back from"):
        runner.backward(MicroBatch(0, 0), {}, 1.0)


def test_declared_shapes_are_checked_before_memory_is_taken() -> None:
    graph = small()
    wrong = tuple(
        replace(op, outputs=(replace(op.outputs[0], shape=(4, 6)),)) if op.target == "aten.linear.default" else op
        for op in graph.ops
    )
    said = r"operator 'linear' \(aten.linear.default\) declares float32\[4, 6\] but gives float32\[4, 5\]"
    with pytest.raises(GraphError, match=said):
        JAX.verify(Graph(name="wrong", ops=wrong, states=graph.states, outputs=graph.outputs))


def test_an_operator_that_is_missing_is_named() -> None:
    made = small()
    foreign = tuple(
        replace(op, target="aten.histc.default", args=op.args[:1]) if op.target == "aten.linear.default" else op
        for op in made.ops
    )
    with pytest.raises(GraphError, match=r"the JAX engine has no operator 'aten.histc.default'"):
        JAX.verify(replace(made, ops=foreign))
    assert "aten.histc.default" not in JAX.support("cpu").operators
