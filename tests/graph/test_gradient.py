"""The operator that carries a backward: what a document may hold is checked before anything runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from farflung.engines import get_engine
from farflung.errors import GraphError
from farflung.graph.gradient import GRADIENT, read_gradient
from farflung.graph.ir import Graph, LocalRef, Op, OpKind, TensorSpec, ValueRef
from farflung.graph.validate import validate

SPEC = TensorSpec(dtype="float32", shape=(4, 3))
STEPS: Any = (("aten.mul.Tensor", (LocalRef(0), LocalRef(1)), ()),)
GOOD: Any = ((ValueRef("x"),), (0,), (0,), (STEPS, (LocalRef(2),)))


def graph_of(*args: Any) -> Graph:
    x = Op(name="x", kind=OpKind.PLACEHOLDER, target="farflung.input", outputs=(SPEC,))
    op = Op(name="y", kind=OpKind.NON_PARAMETRIC, target=GRADIENT, args=args, outputs=(SPEC,))
    return Graph(name="g", ops=(x, op), states=(), outputs=(("y", ValueRef("y")),), mode="eval")


def changed(place: int, value: Any) -> tuple[Any, ...]:
    return (*GOOD[:place], value, *GOOD[place + 1 :])


def test_a_good_one_survives_the_document_and_the_check_of_shapes() -> None:
    graph = graph_of(*GOOD)
    assert Graph.from_json(graph.to_json()) == graph
    assert read_gradient(graph.op("y")).results == (LocalRef(2),)
    get_engine("torch").verify(graph)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (GOOD[:3], "must be three lists and a backward"),
        (changed(1, ()), "a result for each input, a value for each output"),
        (changed(1, (1,)), "or the place of one among its inputs"),
        (changed(1, (True,)), "or the place of one among its inputs"),
        (changed(0, (3.0,)), "its inputs must be tensors"),
        (changed(3, ((("aten.det.default", (LocalRef(0),), ()),), (LocalRef(2),))), "not on the allow-list"),
        (changed(3, ((("aten.randn_like.default", (LocalRef(0),), ()),), (LocalRef(2),))), "a backward can't use"),
        (changed(3, ((("farflung.gradient", (), ()),), (LocalRef(2),))), "a backward can't use"),
        (changed(3, ((("aten.zero_.default", (LocalRef(0),), ()),), (LocalRef(2),))), "zero_"),
        (changed(3, ((("aten.neg.default", (ValueRef("x"),), ()),), (LocalRef(2),))), "sees only its own values"),
        (changed(3, ((("aten.neg.default", (LocalRef(0),)),), (LocalRef(2),))), r"must be \(target, args, kwargs\)"),
        (changed(3, (STEPS, (LocalRef(-1),))), "must be a step's value or nothing"),
    ],
)
def test_what_breaks_a_rule_is_refused(args: tuple[Any, ...], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        validate(graph_of(*args))


@pytest.mark.parametrize(
    ("backward", "text"),
    [
        ((STEPS, (LocalRef(3),)), "returns a value that no step makes"),
        (((("aten.mul.Tensor", (LocalRef(0), LocalRef(9)), ()),), (LocalRef(2),)), "its backward failed at aten.mul.Tensor"),
        (((("aten.sum.default", (LocalRef(0),), ()),), (LocalRef(2),)), "a gradient of another shape"),
        (((("aten.ones.default", ((1 << 30, 1 << 8),), ()),), (LocalRef(0),)), "makes too much memory at aten.ones.default"),
    ],
)
def test_what_shapes_alone_show_is_refused(backward: Any, text: str) -> None:
    graph = graph_of(*changed(3, backward))
    validate(graph)
    with pytest.raises(GraphError, match=text):
        get_engine("torch").verify(replace(graph))
