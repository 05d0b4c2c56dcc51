"""The reference engine against a plain PyTorch loop: the same losses, gradients and weights, up to rounding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from farflung.engines import EngineSettings, MicroBatch, get_engine
from farflung.engines.reference.engine import ReferenceEngine
from farflung.errors import GraphError, InputError
from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import cut
from farflung.graph.ir import TensorSpec
from farflung.graph.opset import OPSET
from farflung.job.spec import GroupSpec, OptimizerSpec
from tests.support.engines.engine_closeness import assert_close, worst_difference
from tests.support.engines.engine_drive import Stages, captured, equal_cuts, make, module_states, plain, random_cuts, run
from tests.support.models.engine_models import MODELS

SGD = OptimizerSpec(lr=0.05, momentum=0.9)
ADAMW = OptimizerSpec(name="adamw", lr=1e-3)
SETTINGS = EngineSettings(optimizer=SGD)
TOLERANCE = 3e-4


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"resnet18"}))
def test_models(name: str) -> None:
    found = run(name, random_cuts(captured(name), 4, 1), 3, SETTINGS, get_engine("reference"))
    assert_close(found, plain(name, 3, SGD), TOLERANCE)


def test_float64_has_the_gradients_of_pytorch_in_float64() -> None:
    """Batch norm over few pixels is so sensitive that float32 engines differ from each other."""
    module, batch = make("resnet18")
    stages = Stages(captured("resnet18"), equal_cuts(captured("resnet18"), 1), SETTINGS, get_engine("reference64"))
    stages.load(module_states(module))
    loss = stages.step(0, 1, batch)[0]
    images, labels = batch(0, 0)
    expected = module.double()(images.double(), labels)
    expected.backward()
    gradients = {name: parameter.grad.numpy() for name, parameter in module.named_parameters() if parameter.grad is not None}
    assert abs(loss / float(expected.detach()) - 1) <= 1e-6
    assert worst_difference(stages.gradients(), gradients) <= 1e-6


@pytest.mark.parametrize("change", [{"recompute": True}, {"split_backward": True}], ids=["recomputation", "split backward"])
@pytest.mark.parametrize("name", ["gpt2", "resnet18"])
def test_other_ways_to_go_back_change_no_bit(name: str, change: dict[str, bool]) -> None:
    bounds = random_cuts(captured(name), 3, 5)
    found = run(name, bounds, 2, replace(SETTINGS, **change), get_engine("reference"))
    kept = run(name, bounds, 2, SETTINGS, get_engine("reference"))
    assert found.micro_losses == kept.micro_losses
    assert all(np.array_equal(found.states[key], value) for key, value in kept.states.items())


@pytest.mark.parametrize(
    "optimizer",
    [
        ADAMW.model_copy(update={"clip_norm": 0.3}),
        SGD.model_copy(update={"clip_norm": 0.3, "nesterov": True, "weight_decay": 0.1}),
        ADAMW.model_copy(update={"groups": (GroupSpec(match="wte", frozen=True), GroupSpec(match="mlp", lr=1e-2))}),
    ],
    ids=["adamw", "sgd-nesterov", "groups"],
)
def test_optimizers(optimizer: OptimizerSpec) -> None:
    found = run("gpt2", random_cuts(captured("gpt2"), 4, 3), 2, EngineSettings(optimizer=optimizer), get_engine("reference"))
    assert_close(found, plain("gpt2", 2, optimizer), 5e-3)  # Adam divides by the root of small squares


def test_float64_differs_from_float32_by_its_rounding_only() -> None:
    found = run("llama", equal_cuts(captured("llama"), 1), 1, SETTINGS, get_engine("reference64"))
    assert_close(found, plain("llama", 1, SGD), 2e-5)


def test_a_pipeline_of_two_engines() -> None:
    module, batch = make("gpt2")
    graph, settings = captured("gpt2"), replace(SETTINGS, seed=3)
    bounds = equal_cuts(graph, 4)
    pipelines = [Stages(graph, bounds, settings, get_engine(name)) for name in ("torch", "reference")]
    mixed = pipelines[0]
    mixed.runners = [pipelines[stage % 2].runners[stage] for stage in range(4)]
    mixed.load(module_states(module))
    for step in range(3):
        mixed.step(step, 3, batch)
        gradients = mixed.gradients()
        mixed.update()
    expected = plain("gpt2", 3, SGD)
    worst = max(
        float(np.abs(gradients[name] - array).max() / max(float(np.abs(array).max()), 1e-3))
        for name, array in expected.gradients.items()
    )
    assert worst <= 2e-5


def test_what_the_engine_supports() -> None:
    support = get_engine("reference").support("cpu")
    assert support.operators <= OPSET.keys()
    for name in ("gpt2", "llama", "bert", "resnet18", "user_cnn"):
        assert {op.target for op in captured(name).ops} <= support.operators
    assert "aten.grid_sampler.default" not in support.operators
    assert support.precisions == ("float32",)
    assert get_engine("reference").version() == f"reference {np.__version__}"


def test_a_missing_operator_and_a_missing_precision_are_named() -> None:
    builder = GraphBuilder("strange")
    x = builder.input("x", "float32", (4, 4))
    builder.call("aten.rot90.default", x, outputs=(TensorSpec(dtype="float32", shape=(4, 4)),))
    builder.add("loss", "MSELoss", x, builder.label("y", "float32", (4, 4)))
    engine, graph = ReferenceEngine(), builder.build()
    text = r"^the reference engine has no operator 'aten\.rot90\.default': use a worker with --engine torch$"
    with pytest.raises(GraphError, match=text):
        engine.open(cut(graph, [(0, len(graph.ops))])[0], EngineSettings())
    piece = cut(captured("gpt2"), [(0, len(captured("gpt2").ops))])[0]
    text = r"^unknown precision 'bf16': the reference engine knows float32; use a worker with --engine torch$"
    with pytest.raises(InputError, match=text):
        engine.open(piece, EngineSettings(precision="bf16"))


def test_wrong_declarations_are_refused_when_they_are_computed() -> None:
    graph = captured("gpt2")
    op = next(op for op in graph.ops if op.target == "aten.tanh.default")
    wrong = replace(op, outputs=(replace(op.outputs[0], shape=(1, *op.outputs[0].shape[1:])),))
    changed = replace(graph, ops=tuple(wrong if other is op else other for other in graph.ops))
    module, batch = make("gpt2")
    stages = Stages(changed, [(0, len(changed.ops))], SETTINGS, ReferenceEngine())
    stages.load(module_states(module))
    with pytest.raises(GraphError, match=rf"^operator '{op.name}' \(aten\.tanh\.default\) declares \[1, .*\] but gives \["):
        stages.forward(MicroBatch(0, 0), stages.data(batch(0, 0)))
