"""The table of arguments is that of PyTorch, and arguments of another type are refused without PyTorch."""

from __future__ import annotations

import pytest
import torch

from farflung.errors import GraphError
from farflung.graph.ir import Arg, DTypeArg, ValueRef
from farflung.graph.operator_tables import ATEN
from farflung.graph.opset import OPSET
from farflung.graph.signatures import check_call, read_signature, signature

X = ValueRef("x")


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the table is of PyTorch 2.13")
def test_the_table_is_what_pytorch_declares() -> None:
    for name in OPSET:
        if name.startswith("aten."):
            _, operator, overload = name.split(".")
            schema = str(getattr(getattr(torch.ops.aten, operator), overload)._schema)
            arguments = schema[schema.index("(") + 1 : schema.rindex(") ->")]
            assert read_signature(arguments, numbers=signature(name).numbers) == signature(name), name


def test_each_operator_has_a_signature() -> None:
    for name in OPSET:
        assert name == "farflung.gradient" or signature(name) is not None
    assert len(ATEN.split()) > 300


@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [
        ("aten.to.dtype", (X, DTypeArg("float16")), ()),
        ("aten.add.Tensor", (X, 2), (("alpha", 0.5),)),
        ("aten.sum.dim_IntList", (X, None, True), (("dtype", None),)),
        ("aten.sum.dim_IntList", (X, 1), ()),
        ("aten.index.Tensor", (X, (None, X)), ()),
        ("aten.conv2d.default", (X, X, None, 2), ()),
        ("aten.full.default", ((2, 3), True), (("device", None), ("dtype", DTypeArg("bool")))),
        ("aten.to.device", (X, None, DTypeArg("float32")), ()),
    ],
)
def test_arguments_of_the_declared_types_pass(target: str, args: tuple[Arg, ...], kwargs: tuple[tuple[str, Arg], ...]) -> None:
    check_call(signature(target), args, kwargs, "here")


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "text"),
    [
        ("aten.to.dtype", (X, -1), (), "here: argument 'dtype' must be ScalarType, not int -1"),
        ("aten._to_copy.default", (X,), (("dtype", 6),), "here: argument 'dtype' must be ScalarType?, not int 6"),
        ("aten.relu.default", (3.0,), (), "here: argument 'self' must be Tensor, not float 3.0"),
        ("aten.mm.default", (X, 3.0), (), "here: argument 'mat2' must be Tensor, not float 3.0"),
        ("aten.stack.default", ((X, None),), (), "here: argument 'tensors' must be Tensor[], not a list of 2"),
        ("aten.view.default", (X, 3), (), "here: argument 'size' must be int[], not int 3"),
        ("aten.view.default", (X, (1.0,)), (), "here: argument 'size' must be int[], not a list of 1"),
        ("aten.softmax.int", (X, True), (), "here: argument 'dim' must be int, not bool True"),
        ("aten.dropout.default", (X, X, True), (), "here: argument 'p' must be float, not a tensor"),
        ("aten.rand.default", ((2,),), (("device", "cpu"),), "here: argument 'device' must be Device?, not str 'cpu'"),
        ("aten.relu.default", (X, 1), (), "here: 2 positional arguments, the operator takes at most 1"),
        ("aten.relu.default", (X,), (("self", X),), "here: argument 'self' stands twice"),
        ("aten.relu.default", (X,), (("out", X),), "here: argument 'out' is not one of the operator"),
        ("aten.add.Tensor", (X,), (), "here: argument 'other' is missing; it must be Tensor"),
    ],
)
def test_other_arguments_are_refused(target: str, args: tuple[Arg, ...], kwargs: tuple[tuple[str, Arg], ...], text: str) -> None:
    with pytest.raises(GraphError) as caught:
        check_call(signature(target), args, kwargs, "here")
    assert str(caught.value) == text
