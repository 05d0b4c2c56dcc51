"""Grouping positions into module runs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings

from farflung.graph.ir import Graph, OpKind, StateKind, StateRef, ValueRef
from farflung.graph.modules import cut_widths, module_runs
from tests.support.plans.random_graphs import Pen, graphs, spec

F = "float32"
PARAMETRIC = OpKind.PARAMETRIC


class Writer(Pen):
    """A pen that writes operators of modules; every value is float32[4, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.x = self.op("farflung.input", (), spec(F, 4, 4), OpKind.PLACEHOLDER, name="x")

    def linear(self, x: ValueRef, module: str, occurrence: int = 0, trainable: bool = True) -> ValueRef:
        name = f"{module}.weight"
        if name not in [state.name for state in self.states]:
            self.state(spec(F, 4, 4), StateKind.PARAMETER, trainable, name)
        fields = {"module": module, "module_type": "Linear", "occurrence": occurrence}
        return self.op("aten.linear.default", (x, StateRef(name)), spec(F, 4, 4), PARAMETRIC, **fields)

    def do(self, target: str, *args: ValueRef, module: str, kind: str = "", occurrence: int = 0) -> ValueRef:
        return self.op(f"aten.{target}", args, spec(F, 4, 4), module=module, module_type=kind, occurrence=occurrence)

    def graph(self, last: ValueRef) -> Graph:
        loss = self.op("aten.sum.default", (last,), spec(F), OpKind.LOSS, name="loss")
        return Graph(name="g", ops=tuple(self.ops), states=tuple(self.states), outputs=(("loss", loss),))


def paths(graph: Graph, level="leaf") -> list[tuple[str, int, int]]:
    return [(run.path, run.start, run.stop) for run in module_runs(graph, level)]


def test_view_runs_join_their_producer_and_masks_their_reader():
    pen = Writer()
    q = pen.do("view.default", pen.linear(pen.x, "h.0.attn.q"), module="h.0.attn")
    k = pen.do("transpose.int", pen.linear(pen.x, "h.0.attn.k"), module="h.0.attn")
    mask = pen.do("ones.default", module="")
    scores = pen.do("matmul.default", pen.do("contiguous.default", q, module="h.0.attn"), k, module="h.0.attn", kind="Attention")
    out = pen.do("mul.Tensor", scores, mask, module="h.0.attn")
    graph = pen.graph(out)
    assert [op.module for op in graph.ops] == [
        "", "h.0.attn.q", "h.0.attn", "h.0.attn.k", "h.0.attn", "", "h.0.attn", "h.0.attn", "h.0.attn", "",
    ]  # fmt: skip
    # k's transpose is followed by attention's own work only after the mask, so it begins that run.
    assert paths(graph) == [("h.0.attn.q", 0, 3), ("h.0.attn.k", 3, 4), ("h.0.attn", 4, 9), ("", 9, 10)]
    assert paths(graph, "block") == [("h.0", 0, 9), ("", 9, 10)]
    assert paths(graph, 1) == [("h", 0, 9), ("", 9, 10)]
    assert module_runs(graph)[2].type == "Attention"


def test_each_call_of_a_shared_block_is_a_run():
    pen = Writer()
    x = pen.x
    for call in range(3):
        x = pen.linear(x, "layers.0.a", call)
        x = pen.do("relu.default", x, module="layers.0.act", kind="ReLU", occurrence=2 * call)
        x = pen.linear(x, "layers.0.b", call)
        x = pen.do("relu.default", x, module="layers.0.act", kind="ReLU", occurrence=2 * call + 1)
    graph = pen.graph(x)
    assert paths(graph, "block") == [("layers.0", 0, 5), ("layers.0", 5, 9), ("layers.0", 9, 13), ("", 13, 14)]
    assert len(module_runs(graph)) == 13


def test_frozen_modules_are_runs_of_their_own():
    pen = Writer()
    x = pen.linear(pen.x, "a", trainable=False)
    x = pen.do("relu.default", x, module="b")
    graph = pen.graph(pen.linear(x, "c"))
    assert [path for path, _, _ in paths(graph)] == ["a", "b", "c", ""]


def test_a_graph_without_parameters_has_runs_too():
    pen = Writer()
    x = pen.do("relu.default", pen.x, module="a")
    x = pen.do("tanh.default", x, module="b")
    assert [path for path, _, _ in paths(pen.graph(x))] == ["", "a", "b", ""]


@pytest.mark.parametrize("level", ["leaf", "block", 1])
def test_residual_sums_are_single_cuts(level):
    pen = Writer()
    x = pen.linear(pen.x, "wte")
    for block in range(3):
        y = pen.linear(x, f"h.{block}.up")
        y = pen.linear(y, f"h.{block}.down")
        x = pen.do("add.Tensor", x, y, module=f"h.{block}")
    graph = pen.graph(x)
    widths = cut_widths(graph)
    block_starts = {run.start for run in module_runs(graph, "block")} - {0}
    assert block_starts <= set(widths.single)
    assert widths.forward[graph.position["op3"]] == 2 * 64
    starts = [run.start for run in module_runs(graph, level)]
    assert starts == sorted(set(starts))


@settings(deadline=None, max_examples=50)
@given(graphs())
def test_runs_tile_every_graph(graph):
    for level in ("leaf", "block", 0, 2):
        found = module_runs(graph, level)
        assert found[0].start == 0
        assert found[-1].stop == len(graph.ops)
        assert all(a.stop == b.start for a, b in pairwise(found))
        assert all(run.start < run.stop for run in found)
