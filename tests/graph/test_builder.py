"""Graphs made by hand: the paper's Figure 7, shapes, default initializers, and errors."""

from __future__ import annotations

import math

import pytest

from farflung.errors import GraphError, InputError
from farflung.graph import Graph
from farflung.graph.builder import GraphBuilder, register_module
from farflung.graph.ir import OpKind, StateKind, TensorSpec, ValueRef
from farflung.graph.layers import normal, uniform
from farflung.graph.modules import module_runs
from farflung.graph.shapes import infer


@register_module("CustomReLU")
def custom_relu(builder, x):
    """The paper's own module: torch.where(x > -1, x, zeros_like(x))."""
    return builder.call("where.self", builder.call("gt.Scalar", x, -1), x, builder.call("zeros_like.default", x))


def two_layer_net() -> GraphBuilder:
    """FusionLLM Figure 7, with a head and a loss."""
    graph = GraphBuilder("two_layer_net")
    x = graph.input("x", "float32", (2, 3, 8, 8))
    graph.add("conv1", "Conv2d", "x", kernel_size=3, padding=1, stride=1, in_channels=3, out_channels=64)
    graph.add("myrelu", "CustomReLU", "conv1")
    graph.add("pool", "MaxPool2d", "myrelu", kernel_size=2)
    graph.add("flat", "Flatten", "pool")
    graph.add("fc", "Linear", "flat", in_features=1024, out_features=10)
    label = graph.label("label", "int64", (2,))
    graph.add("loss", "CrossEntropyLoss", "fc", label)
    assert x == ValueRef("x")
    return graph


def test_figure_7():
    graph = two_layer_net().build()
    assert [op.name for op in graph.ops] == [
        "x", "conv1", "myrelu", "myrelu_1", "myrelu_2", "pool", "flat", "fc", "label", "loss",
    ]  # fmt: skip
    assert [op.kind for op in graph.ops if op.module in ("conv1", "fc", "loss")] == [
        OpKind.PARAMETRIC,
        OpKind.PARAMETRIC,
        OpKind.LOSS,
    ]
    assert graph.op("myrelu_1").module_type == "CustomReLU"
    assert [state.name for state in graph.states] == ["conv1.weight", "conv1.bias", "fc.weight", "fc.bias"]
    assert graph.spec(ValueRef("pool")).shape == (2, 64, 4, 4)
    assert graph.loss == ValueRef("loss")
    assert ValueRef("myrelu_2") in graph.needs_grad
    assert ValueRef("myrelu_1") not in graph.needs_grad
    assert Graph.from_json(graph.to_json()) == graph
    assert [run.path for run in module_runs(graph)] == ["conv1", "myrelu", "pool", "fc", "loss"]


def test_placeholders_move_before_their_first_reader():
    graph = GraphBuilder("g")
    label = graph.label("label", "float32", (2, 4))
    x = graph.input("x", "float32", (2, 4))
    graph.add("loss", "MSELoss", graph.add("fc", "Linear", x, in_features=4, out_features=4), label)
    assert [op.name for op in graph.build().ops] == ["x", "fc", "label", "loss"]


def test_default_initializers_are_those_of_torch():
    graph = two_layer_net().build()
    weight, bias = graph.state["fc.weight"], graph.state["fc.bias"]
    assert [step.target for step in weight.init] == ["aten.empty.memory_format", "aten.uniform_.default"]
    assert weight.init[1].args[2] == pytest.approx(1 / math.sqrt(1024))
    assert bias.init[1].args[2] == 1 / math.sqrt(1024)
    assert graph.state["conv1.weight"].init[1].args[2] == pytest.approx(1 / math.sqrt(27))


def test_variable_custom_state_and_named_loss():
    graph = GraphBuilder("g")
    a = graph.variable("tensor_a", (4,), normal((4,), 0.1))
    total = graph.call("sum.default", graph.add("relu", "ReLU", a))
    graph.output("loss", total)
    built = graph.build()
    assert built.op("tensor_a").kind is OpKind.VARIABLE
    assert built.state["tensor_a.value"].trainable


def test_batch_norm_updates_its_statistics_in_training():
    graph = GraphBuilder("g")
    x = graph.input("x", "float32", (2, 3, 4, 4))
    graph.add("loss", "MSELoss", graph.add("bn", "BatchNorm2d", x, num_features=3), x)
    built = graph.build()
    assert dict(built.state_updates) == {
        "bn.num_batches_tracked": ValueRef("bn"),
        "bn.running_mean": ValueRef("bn_1", 1),
        "bn.running_var": ValueRef("bn_1", 2),
    }
    assert built.state["bn.running_mean"].kind is StateKind.BUFFER
    assert ValueRef("bn_1", 1) not in built.needs_grad
    assert ValueRef("bn_1", 0) in built.needs_grad


def test_batch_norm_and_dropout_in_evaluation():
    graph = GraphBuilder("g", training=False)
    x = graph.input("x", "float32", (2, 3, 4, 4))
    y = graph.add("drop", "Dropout", graph.add("bn", "BatchNorm2d", x, num_features=3))
    graph.output("y", y)
    built = graph.build()
    assert built.state_updates == ()
    assert built.op("bn").target == "aten.batch_norm.default"
    assert built.op("drop").rng is None


def test_random_operators_are_numbered_in_order():
    graph = GraphBuilder("g")
    x = graph.input("x", "float32", (2, 4))
    x = graph.add("fc", "Linear", x, in_features=4, out_features=4)
    x = graph.add("a", "Dropout", x, p=0.1)
    x = graph.add("none", "Dropout", x, p=0.0)
    x = graph.add("b", "Dropout", x, p=0.1)
    graph.output("loss", graph.call("sum.default", x))
    built = graph.build()
    assert [built.op(name).rng for name in ("a", "none", "b")] == [0, None, 1]


def test_custom_modules_nest_and_are_used_twice():
    @register_module("TwoLinears")
    def two_linears(builder, x, *, width):
        return builder.add("second", "Linear", builder.add("first", "Linear", x, in_features=width, out_features=width),
                           in_features=width, out_features=width)  # fmt: skip

    graph = GraphBuilder("g")
    x = graph.input("x", "float32", (2, 4))
    for name in ("lower", "upper"):
        x = graph.add(name, "TwoLinears", x, width=4)
    graph.output("loss", graph.call("sum.default", x))
    assert [state.name for state in graph.build().states if "weight" in state.name] == [
        "lower.first.weight",
        "lower.second.weight",
        "upper.first.weight",
        "upper.second.weight",
    ]


def test_transformer_layers():
    graph = GraphBuilder("g")
    tokens = graph.input("tokens", "int64", (2, 8))
    x = graph.add("wte", "Embedding", tokens, num_embeddings=16, embedding_dim=12)
    y = graph.add("ln", "LayerNorm", x, normalized_shape=12)
    heads = [
        graph.add(f"{part}_t", "Transpose", graph.add(f"{part}_r", "Reshape", y, shape=(2, 8, 3, -1)), dim0=1, dim1=2)
        for part in "qkv"
    ]
    z = graph.add("attention", "ScaledDotProductAttention", *heads, is_causal=True)
    assert graph.spec(z) == TensorSpec(dtype="float32", shape=(2, 3, 8, 4))
    z = graph.add("merge", "Reshape", graph.add("back", "Permute", z, dims=(0, 2, 1, 3)), shape=(2, 8, 12))
    z = graph.add("act", "GELU", graph.add("add", "Add", x, z), approximate="tanh")
    logits = graph.add("flat", "Reshape", graph.add("head", "Linear", z, in_features=12, out_features=16), shape=(16, 16))
    graph.add("loss", "CrossEntropyLoss", logits, graph.add("flat_tokens", "Reshape", tokens, shape=(16,)))
    assert graph.build().loss == ValueRef("loss")


ERRORS = [
    ("Convd2d", {}, "layer 'bad': unknown type 'Convd2d': did you mean 'Conv2d'"),
    ("Linear", {"in_features": 4}, r"layer 'bad' \(Linear\): .*missing 1 required keyword-only argument: 'out_features'"),
    ("Linear", {"in_features": 5, "out_features": 2}, "the last size 8 is not the weight's 5"),
    ("Conv2d", {"in_channels": 4, "out_channels": 4, "kernel_size": 3}, "3 channels, expected 4"),
    ("Conv2d", {"in_channels": 3, "out_channels": 4, "kernel_size": 9}, "a window of 9 is larger than 8 with padding 0"),
    ("Conv2d", {"in_channels": 3, "out_channels": 4, "kernel_size": 3, "pad": 1}, "unknown argument 'pad': known are in_chan"),
    ("Conv2d", {"in_channels": 3, "out_channels": 4, "kernel_size": 3, "groups": 2}, "don't divide into 2 groups"),
    ("LayerNorm", {"normalized_shape": 3}, r"the last sizes of \(2, 3, 8, 8\) are not \(3,\)"),
    ("BatchNorm2d", {"num_features": 4}, "4 channels expected in dimension 1"),
    ("GroupNorm", {"num_groups": 2, "num_channels": 3}, "3 channels; expected 3, a multiple of 2"),
    ("Reshape", {"shape": (5, -1)}, r"384 elements don't fill \(5, -1\)"),
    ("Permute", {"dims": (0, 0, 1, 2)}, r"\(0, 0, 1, 2\) is no permutation"),
    ("Softmax", {"dim": 7}, "dimension 7 of a tensor with 4"),
]


@pytest.mark.parametrize(("kind", "arguments", "message"), ERRORS)
def test_layers_that_do_not_fit_are_refused(kind, arguments, message):
    graph = GraphBuilder("g")
    x = graph.input("x", "float32", (2, 3, 8, 8))
    with pytest.raises(GraphError, match=message):
        graph.add("bad", kind, x, **arguments)


def test_other_errors():
    graph = two_layer_net()
    with pytest.raises(GraphError, match="'conv9' was not added to graph 'two_layer_net': it has x, conv1, myrelu"):
        graph.add("again", "ReLU", "conv9")
    with pytest.raises(GraphError, match="layer 'conv1': the name stands twice"):
        graph.add("conv1", "ReLU", "x")
    with pytest.raises(GraphError, match="don't broadcast"):
        graph.add("sum", "Add", "x", "fc")
    with pytest.raises(GraphError, match=r"operator .aten\.topk\.default. has no shape rule: pass outputs="):
        graph.call("topk.default", ValueRef("x"), 2)
    with pytest.raises(GraphError, match="only allowed in initializer programs"):
        graph.call("add_.Tensor", ValueRef("x"), ValueRef("x"))
    with pytest.raises(GraphError, match="graph 'g' has 0 losses: name one by output"):
        GraphBuilder("g").build()
    with pytest.raises(InputError, match="module type 'Conv2d' is registered already: take another name"):
        register_module("Conv2d", custom_relu)


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(dtype="float32", shape=shape)


SHAPES = [
    ("aten.cat.default", ((f32(2, 3), f32(2, 4)), 1), f32(2, 7)),
    ("aten.addmm.default", (f32(5), f32(2, 3), f32(3, 5)), f32(2, 5)),
    ("aten.matmul.default", (f32(7, 1, 2, 3), f32(4, 3, 5)), f32(7, 4, 2, 5)),
    ("aten.sum.dim_IntList", (f32(2, 3, 4), (0, -1), True), f32(1, 3, 1)),
    ("aten.mean.default", (f32(2, 3),), f32()),
    ("aten.select.int", (f32(2, 3), 1, -1), f32(2)),
    ("aten.slice.Tensor", (f32(8, 3), 0, 1, 2**63 - 1, 3), f32(3, 3)),
    ("aten.expand.default", (f32(3, 1), (2, -1, 4)), f32(2, 3, 4)),
    ("aten.unsqueeze.default", (f32(3), -1), f32(3, 1)),
    ("aten.arange.start_step", (0, 7, 2), TensorSpec(dtype="int64", shape=(4,))),
    ("aten.add.Tensor", (TensorSpec(dtype="int64", shape=(2, 1)), f32(3)), f32(2, 3)),
    ("aten.mul.Scalar", (TensorSpec(dtype="int64", shape=(2,)), 0.5), f32(2)),
    ("aten.eq.Scalar", (f32(2), 1), TensorSpec(dtype="bool", shape=(2,))),
    ("aten.max_pool2d.default", (f32(1, 2, 7, 7), (2, 2), (2, 2), (0, 0), (1, 1), True), f32(1, 2, 4, 4)),
    ("aten.avg_pool2d.default", (f32(1, 2, 7, 7), (3, 3), (2, 2), (1, 1)), f32(1, 2, 4, 4)),
    ("aten.conv1d.default", (f32(2, 3, 16), f32(4, 3, 3), None, (2,), (1,), (1,), 1), f32(2, 4, 8)),
]


@pytest.mark.parametrize(("target", "args", "expected"), SHAPES)
def test_shapes(target, args, expected):
    assert infer(target, args, {}) == (expected,)


def test_uniform_program():
    assert [step.rng for step in uniform((2,), 0.5)] == [None, 0]
