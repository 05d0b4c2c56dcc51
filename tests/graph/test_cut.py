"""Cutting: the paper's worked example, the clone rules, and equality of the parts with the whole."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import GraphError, InputError
from farflung.graph.cut import Cutter, cut, runs, sources
from farflung.graph.ir import Graph, OpKind, StateKind, ValueRef
from farflung.graph.modules import cut_widths
from tests.support.plans.random_graphs import Pen, bounds, data_of, execute, graphs, run_stages, spec, states_of

F = "float32"


def worked_example() -> Graph:
    """FusionLLM Figure 3, Tables 2 and 3."""
    pen = Pen()
    image = pen.op("farflung.input", (), spec(F, 2, 3, 8, 8), OpKind.PLACEHOLDER, name="Input")
    kernel = pen.state(spec(F, 3, 3, 1, 1), StateKind.PARAMETER, trainable=True)
    conv = pen.op("aten.conv2d.default", (image, kernel), spec(F, 2, 3, 8, 8), OpKind.PARAMETRIC, name="Conv")
    tensor = pen.state(spec(F, 2, 3, 8, 8), StateKind.PARAMETER, trainable=True)
    tensor_a = pen.op("farflung.variable", (tensor,), spec(F, 2, 3, 8, 8), OpKind.VARIABLE, name="TensorA")
    relu = pen.op("aten.relu.default", (tensor_a,), spec(F, 2, 3, 8, 8), name="ReLU")
    added = pen.op("aten.add.Tensor", (conv, relu), spec(F, 2, 3, 8, 8), name="Add")
    matrix = pen.state(spec(F, 8, 8), StateKind.PARAMETER, trainable=True)
    linear = pen.op("aten.linear.default", (added, matrix), spec(F, 2, 3, 8, 8), OpKind.PARAMETRIC, name="Linear")
    label = pen.op("farflung.input", (), spec(F, 2, 3, 8, 8), OpKind.PLACEHOLDER, name="Label")
    loss = pen.op("aten.cross_entropy_loss.default", (linear, label), spec(F), OpKind.LOSS, name="CE")
    return Graph(name="figure-3", ops=tuple(pen.ops), states=tuple(pen.states), outputs=(("loss", loss),))


def names(edges) -> list[str]:
    return [str(edge.value) for edge in edges]


def test_worked_example_of_the_paper():
    graph = worked_example()
    devices = {"Conv": "1", "TensorA": "2", "ReLU": "2", "Add": "3", "Linear": "3", "CE": "3"}
    found = runs(graph, devices)
    assert found == [(0, 2, "1"), (2, 4, "2"), (4, 8, "3")]
    first, second, third = cut(graph, [(start, stop) for start, stop, _ in found])
    assert [part.placeholders for part in (first, second, third)] == [("Input",), (), ("Label",)]
    assert [names(part.requires_activations) for part in (first, second, third)] == [[], [], ["Conv", "ReLU"]]
    assert [names(part.sends_activations) for part in (first, second, third)] == [["Conv"], ["ReLU"], []]
    assert [names(part.requires_gradients) for part in (first, second, third)] == [["Conv"], ["ReLU"], []]
    assert [names(part.sends_gradients) for part in (first, second, third)] == [[], [], ["Conv", "ReLU"]]
    assert {(edge.source, edge.target) for edge in third.requires_activations} == {(0, 2), (1, 2)}
    assert [part.states for part in (first, second, third)] == [("s0",), ("s1",), ("s2",)]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_parts_compute_what_the_whole_computes(data):
    graph = data.draw(graphs())
    parts = cut(graph, data.draw(bounds(graph)))
    whole = execute(graph, range(len(graph.ops)), states_of(graph), data_of(graph), {})
    done = run_stages(graph, parts)
    for part, values in zip(parts, done, strict=True):
        for position in range(part.start, part.stop):
            value = ValueRef(graph.ops[position].name)
            if value in values or graph.ops[position].kind is not OpKind.PLACEHOLDER:
                np.testing.assert_array_equal(values[value], whole[value])
    for _, value in graph.outputs:
        home = next(part for part in parts if part.start <= graph.position[value.op] < part.stop)
        assert value in done[home.stage]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_edges_follow_the_rules(data):
    graph = data.draw(graphs())
    parts = cut(graph, data.draw(bounds(graph)))
    required = [edge for part in parts for edge in part.requires_activations]
    sent = [edge for part in parts for edge in part.sends_activations]
    assert Counter(required) == Counter(sent)
    assert max(Counter((edge.value, edge.target) for edge in required).values(), default=1) == 1
    known = sources(graph)
    for edge in required:
        maker = graph.position[edge.value.op]
        assert edge.source < edge.target
        assert parts[edge.source].start <= maker < parts[edge.source].stop
        assert graph.ops[maker].kind is not OpKind.PLACEHOLDER
        assert maker not in known.clones | known.repeats
        reading = range(parts[edge.target].start, parts[edge.target].stop)
        readers = [position for position in graph.users[edge.value] if position in reading]
        flows = edge.value in graph.needs_grad and any(graph.ops[position].name in graph.grad_ops for position in readers)
        assert edge.gradient == flows
    for part in parts:
        owned = {p for p in range(part.start, part.stop) if graph.ops[p].kind is not OpKind.PLACEHOLDER}
        extra = set(part.positions) - owned
        assert owned <= set(part.positions)
        assert all(graph.ops[p].name in part.placeholders or p in known.clones | known.repeats for p in extra)
        assert not any(ValueRef(graph.ops[p].name) in graph.needs_grad for p in extra)


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_cut_widths_are_the_bytes_of_the_cuts(graph):
    widths = cut_widths(graph)
    assert widths.forward[0] == widths.forward[-1] == 0
    for position in range(1, len(graph.ops)):
        edges = cut(graph, [(0, position), (position, len(graph.ops))])[1].requires_activations
        assert widths.forward[position] == sum(edge.forward_bytes for edge in edges)
        assert widths.backward[position] == sum(edge.backward_bytes for edge in edges)
        assert widths.allowed[position]


def mask_graph() -> Graph:
    """A mask that depends on a placeholder is made in stage 0 and expanded; a causal mask depends on nothing."""
    pen = Pen()
    weight = pen.state(spec(F, 8), StateKind.PARAMETER, trainable=True)
    tokens = pen.op("farflung.input", (), spec("int64", 4, 8), OpKind.PLACEHOLDER, name="tokens")
    small = pen.op("aten.ne.Scalar", (tokens, 0), spec("bool", 4, 8), name="padding")
    tall = pen.op("aten.unsqueeze.default", (small, 1), spec("bool", 4, 1, 8), name="tall")
    wide = pen.op("aten.expand.default", (tall, (4, 8, 8)), spec("bool", 4, 8, 8), name="wide")
    ones = pen.op("aten.ones.default", ((8, 8),), spec("bool", 8, 8), name="ones")
    causal = pen.op("aten.tril.default", (ones,), spec("bool", 8, 8), name="causal")
    both = pen.op("aten.logical_and.default", (wide, causal), spec("bool", 4, 8, 8), name="both")
    hidden = pen.op("aten.embedding.default", (weight, tokens), spec(F, 4, 8, 8), OpKind.PARAMETRIC, name="hidden")
    heads = pen.op("aten.transpose.int", (hidden, 1, 2), spec(F, 4, 8, 8), name="heads")
    masked = pen.op("aten.where.ScalarOther", (both, heads, 0.0), spec(F, 4, 8, 8), name="masked")
    loss = pen.op("aten.sum.default", (pen.op("aten.add.Tensor", (masked, hidden), spec(F, 4, 8, 8)),), spec(F), name="loss")
    return Graph(name="mask", ops=tuple(pen.ops), states=tuple(pen.states), outputs=(("loss", loss),))


def test_the_smallest_ancestor_of_a_mask_is_sent_and_the_causal_mask_is_cloned():
    graph = mask_graph()
    split = graph.position["masked"]
    second = cut(graph, [(0, split), (split, len(graph.ops))])[1]
    assert names(second.requires_activations) == ["tall", "hidden", "heads"]
    repeated = [graph.ops[position].name for position in second.positions if position < split]
    assert repeated == ["wide", "ones", "causal", "both"]
    assert second.placeholders == ()


def test_a_view_beside_its_root_is_not_sent_but_its_gradient_comes_back():
    graph = mask_graph()
    split = graph.position["masked"]
    edges = {str(edge.value): edge for edge in cut(graph, [(0, split), (split, len(graph.ops))])[1].requires_activations}
    assert edges["heads"].alias_of == ValueRef("hidden")
    assert edges["heads"].views == (graph.position["heads"],)
    assert (edges["heads"].forward_bytes, edges["heads"].backward_bytes) == (0, 4 * 8 * 8 * 4)
    assert edges["hidden"].forward_bytes == 4 * 8 * 8 * 4


def test_each_stage_that_reads_a_placeholder_loads_it():
    pen = Pen()
    weight = pen.state(spec(F, 4), StateKind.PARAMETER, trainable=True)
    x = pen.op("farflung.input", (), spec(F, 4), OpKind.PLACEHOLDER, name="x")
    a = pen.op("aten.mul.Tensor", (x, weight), spec(F, 4), OpKind.PARAMETRIC, name="a")
    b = pen.op("aten.add.Tensor", (a, x), spec(F, 4), name="b")
    pen.op("aten.sum.default", (b,), spec(F), OpKind.LOSS, name="loss")
    graph = Graph(name="skip", ops=tuple(pen.ops), states=tuple(pen.states), outputs=(("loss", ValueRef("loss")),))
    first, second, third = cut(graph, [(0, 1), (1, 2), (2, 4)])
    assert [first.placeholders, second.placeholders, third.placeholders] == [(), ("x",), ("x",)]
    assert first.positions == ()
    assert names(third.requires_activations) == ["a"]


def test_a_view_of_a_placeholder_is_made_again_where_it_is_read():
    graph = tokens_graph()
    first, second = cut(graph, [(0, 2), (2, 5)])
    assert second.requires_activations == ()
    assert second.placeholders == ("tokens",)
    assert second.positions == (0, 1, 2, 3, 4)
    third = cut(graph, [(0, 3), (3, 5)])[1]
    assert names(third.requires_activations) == ["padding"]
    assert third.placeholders == ()
    assert cut_widths(graph).forward[2:4] == (0, 8)
    assert first.placeholders == ("tokens",)


def tokens_graph() -> Graph:
    pen = Pen()
    weight = pen.state(spec(F, 8), StateKind.PARAMETER, trainable=True)
    tokens = pen.op("farflung.input", (), spec("int64", 8), OpKind.PLACEHOLDER, name="tokens")
    flat = pen.op("aten.view.default", (tokens, (8,)), spec("int64", 8), name="flat")
    padding = pen.op("aten.ne.Scalar", (flat, 0), spec("bool", 8), name="padding")
    masked = pen.op("aten.where.ScalarOther", (padding, weight, 0.0), spec(F, 8), OpKind.PARAMETRIC, name="masked")
    loss = pen.op("aten.sum.default", (masked,), spec(F), OpKind.LOSS, name="loss")
    return Graph(name="tokens", ops=tuple(pen.ops), states=tuple(pen.states), outputs=(("loss", loss),))


def test_states_that_nobody_reads_stay_with_the_first_stage():
    graph = worked_example()
    pen = Pen()
    pen.state(spec(F, 3), StateKind.PARAMETER, trainable=True, name="pooler")
    first, second = cut(replace(graph, states=(*pen.states, *graph.states)), [(0, 4), (4, 8)])
    assert first.states == ("pooler", "s0", "s1")
    assert second.states == ("s2",)


def test_no_gradient_comes_back_where_only_a_metric_reads():
    pen = Pen()
    weight = pen.state(spec(F, 4), StateKind.PARAMETER, trainable=True)
    a = pen.op("farflung.variable", (weight,), spec(F, 4), OpKind.VARIABLE, name="a")
    pen.op("aten.sum.default", (a,), spec(F), OpKind.LOSS, name="loss")
    pen.op("aten.relu.default", (a,), spec(F, 4), name="metric")
    outputs = (("loss", ValueRef("loss")), ("metric", ValueRef("metric")))
    graph = Graph(name="metric", ops=tuple(pen.ops), states=tuple(pen.states), outputs=outputs)
    (edge,) = cut(graph, [(0, 2), (2, 3)])[1].requires_activations
    assert (edge.value, edge.gradient) == (ValueRef("a"), False)


def updated_graph() -> Graph:
    pen = Pen()
    mean = pen.state(spec(F, 4), StateKind.BUFFER, name="mean")
    weight = pen.state(spec(F, 4), StateKind.PARAMETER, trainable=True)
    x = pen.op("aten.mul.Tensor", (mean, weight), spec(F, 4), OpKind.PARAMETRIC, name="x")
    new = pen.op("aten.mul.Tensor", (x, 0.5), spec(F, 4), name="new")
    pen.op("aten.sum.default", (new,), spec(F), OpKind.LOSS, name="loss")
    return Graph(
        name="bn",
        ops=tuple(pen.ops),
        states=tuple(pen.states),
        outputs=(("loss", ValueRef("loss")),),
        state_updates=(("mean", ValueRef("new")),),
    )


def test_a_state_is_not_read_in_one_stage_and_updated_in_another():
    graph = updated_graph()
    assert cut_widths(graph).allowed == (True, False, True, True)
    with pytest.raises(GraphError, match=r"state 'mean' is read by 'x' in stage 0 and updated in stage 1: keep both in one"):
        cut(graph, [(0, 1), (1, 3)])
    assert cut(graph, [(0, 2), (2, 3)])[0].states == ("mean", "s1")


@pytest.mark.parametrize(
    "tiles", [[], [(0, 4)], [(0, 4), (5, 8)], [(0, 4), (4, 4), (4, 8)], [(1, 8)], [(0, 9)], [(0, 4), (3, 8)]]
)
def test_runs_that_do_not_tile_are_refused(tiles):
    with pytest.raises(GraphError, match=r"must start at \d+ and not be empty|the stages end at position \d+"):
        cut(worked_example(), tiles)


def test_assignments_that_do_not_fit_are_refused():
    graph = worked_example()
    with pytest.raises(InputError, match="names the operator 'Conw', which graph 'figure-3' does not have"):
        runs(graph, {"Conw": "a"})
    with pytest.raises(InputError, match="gives no device to the operator 'Linear'"):
        runs(graph, dict.fromkeys(("Conv", "TensorA", "ReLU", "Add", "CE"), "a"))
    with pytest.raises(InputError, match="assignment has 2 devices, graph 'figure-3' has 8 operators"):
        runs(graph, ["a", "b"])


def test_a_device_may_hold_several_runs():
    assert [run[2] for run in runs(worked_example(), list("aabbaabb"))] == ["a", "b", "a", "b"]


def chain(blocks: int) -> Graph:
    """A residual network of ``blocks`` blocks of five operators."""
    pen = Pen()
    x = pen.op("farflung.input", (), spec(F, 64, 64), OpKind.PLACEHOLDER, name="x")
    for block in range(blocks):
        weight = pen.state(spec(F, 64, 64), StateKind.PARAMETER, trainable=True)
        y = x
        for step in range(4):
            y = pen.op("aten.linear.default", (y, weight), spec(F, 64, 64), OpKind.PARAMETRIC, name=f"b{block}.{step}")
        x = pen.op("aten.add.Tensor", (x, y), spec(F, 64, 64), name=f"b{block}.add")
    pen.op("aten.sum.default", (x,), spec(F), OpKind.LOSS, name="loss")
    return Graph(name="chain", ops=tuple(pen.ops), states=tuple(pen.states), outputs=(("loss", ValueRef("loss")),))


def test_only_residual_sums_are_single_tensor_cuts_of_a_chain():
    graph = chain(3)
    assert graph.ops[cut_widths(graph).single[0] - 1].name == "b0.0"
    assert [graph.ops[p - 1].name for p in cut_widths(graph).single if p > 6] == ["b1.add", "b2.add"]


@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_a_cutter_cuts_as_a_fresh_one_whatever_it_cut_before(data):
    graph = chain(3)
    cutter = Cutter(graph)
    for _ in range(3):
        cuts = sorted(data.draw(st.sets(st.integers(1, len(graph.ops) - 1), max_size=4)))
        bounds = list(pairwise([0, *cuts, len(graph.ops)]))
        assert cutter.cut(bounds) == cut(graph, bounds)
