"""Every model of the zoo, in every form: captured, valid, and equal to the module itself bit by bit."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from farflung.frontends.recipes import load_recipe
from farflung.frontends.recipes.base import FORMS
from farflung.graph.document import write
from farflung.graph.ir import Graph, OpKind, StateKind
from farflung.graph.opset import check_target
from farflung.graph.validate import validate
from tests.support.engines.keyed import build, keyed_forward
from tests.support.engines.replay import born, run
from tests.support.models.zoo import TARGETS, TINY

SEED = 5
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name == "resnet50" else name for name in TINY]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def captured(name: str, form: str = "train") -> Graph:
    """Each model is captured once in each form, for all tests."""
    return load_recipe(*TINY[name]).graph(form, 2)


def batch_for(graph: Graph) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(3)
    data = {}
    for op in graph.placeholders:
        shape = op.outputs[0].shape
        integers = op.outputs[0].dtype == "int64"
        data[op.name] = torch.randint(0, 10, shape, generator=made) if integers else torch.randn(shape, generator=made)
    return data


@pytest.mark.parametrize("name", NAMES)
def test_training_graph_equals_the_module(name):
    recipe, graph = load_recipe(*TINY[name]), captured(name)
    module = build(recipe.train.factory, SEED)
    values = dict(module.named_parameters()) | dict(module.named_buffers())

    states = {state.name: born(state, SEED) for state in graph.states}
    for key, value in states.items():
        assert torch.equal(value, values[key]), key
        assert value.dtype == values[key].dtype

    data = batch_for(graph)
    for state in graph.states:
        states[state.name].requires_grad_(state.trainable)
    with keyed_forward(SEED) as keyed:
        loss = module(*(data[key] for key in dict(graph.meta)["inputs"].split(",")))
    assert keyed.drawn == sum(op.rng is not None for op in graph.ops)
    outputs, updates = run(graph, states, data, SEED)
    assert torch.equal(outputs["loss"], loss)

    loss.backward()
    outputs["loss"].backward()
    for key, parameter in module.named_parameters():
        assert (parameter.grad is None) == (states[key].grad is None), key
        assert parameter.grad is None or torch.equal(parameter.grad, states[key].grad), key
    for key, value in updates.items():
        assert torch.equal(value, values[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_forms_are_valid_and_share_their_states(name):
    recipe = load_recipe(*TINY[name])
    graphs = {form: captured(name, form) for form in FORMS if getattr(recipe, form) is not None}
    train = graphs["train"]
    for form, graph in graphs.items():
        validate(graph)
        assert Graph.from_json(write(graph)) == graph
        assert {op.target for op in graph.ops} <= TARGETS
        parameters = {state.name: (state.spec, state.aliases, state.trainable, state.init) for state in graph.parameters}
        assert parameters == {state.name: (state.spec, state.aliases, state.trainable, state.init) for state in train.parameters}
        assert not graph.state_updates or form == "train"
        assert tuple(name for name, _ in graph.outputs) == recipe.form(form).outputs
    assert {op.name for op in train.placeholders} == {*recipe.inputs, *recipe.labels}
    assert train.op(train.loss.op).kind is OpKind.LOSS


@pytest.mark.parametrize("name", ["gpt2", "resnet18"])
def test_capturing_twice_gives_the_same_document(name):
    assert write(load_recipe(*TINY[name]).graph("train", 2)) == write(captured(name))


def test_the_operators_of_the_zoo_are_on_the_allow_list():
    for target in TARGETS:
        check_target(target)


def test_lora_trains_only_the_adapters():
    graph = captured("gpt2-lora")
    trained = [state.name for state in graph.states if state.trainable]
    assert len(trained) == 4
    assert all("lora_" in name for name in trained)
    frozen = [state for state in graph.parameters if not state.trainable]
    assert len(frozen) == 28


def test_tied_weights_are_one_state_with_two_uses():
    graph = captured("gpt2")
    tied = graph.state["model.transformer.wte.weight"]
    assert tied.aliases == ("model.lm_head.weight",)
    assert [graph.op(use.op).target for use in graph.uses[tied.name]] == ["aten.embedding.default", "aten.linear.default"]


def test_shared_modules_count_their_calls():
    graph = captured("albert")
    calls = {op.occurrence for op in graph.ops if op.module.endswith("attention.query")}
    assert calls == {0, 1}
    query = next(state.name for state in graph.states if state.name.endswith("attention.query.weight"))
    assert len(graph.uses[query]) == 2


def test_batch_norm_is_one_operator_with_updates():
    graph = captured("resnet18")
    norms = [op for op in graph.ops if op.target == "farflung.batch_norm"]
    assert len(norms) == 20
    assert len(graph.state_updates) == 60
    assert all(graph.state[name].kind is StateKind.BUFFER for name, _ in graph.state_updates)
    evaluate = captured("resnet18", "evaluate")
    assert sum(op.target == "aten.batch_norm.default" for op in evaluate.ops) == 20


def test_placeholders_stand_before_their_first_reader():
    graph = captured("gpt2")
    assert dict(graph.meta)["inputs"] == "input_ids,labels"
    assert [op.name for op in graph.placeholders] == ["input_ids", "labels"]
    for op in graph.placeholders:
        reader = graph.ops[graph.position[op.name] + 1]
        assert op.name in {value.op for value in reader.values()}
    assert graph.position["labels"] > 0.9 * len(graph.ops)


def test_modules_and_types_are_noted():
    graph = captured("gpt2")
    op = next(op for op in graph.ops if op.module == "model.transformer.h.1.ln_1")
    assert (op.module_type, op.kind, op.occurrence) == ("LayerNorm", OpKind.PARAMETRIC, 0)
