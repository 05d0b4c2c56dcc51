"""Random small graphs for property tests, and an interpreter of them in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph, Op, OpKind, State, StateKind, StateRef, TensorSpec, ValueRef

F = "float32"


def spec(dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec(dtype=dtype, shape=shape)


class Pen:
    """Writes a graph operator by operator."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.states: list[State] = []

    def op(self, target: str, args: tuple, output: TensorSpec, kind: OpKind = OpKind.NON_PARAMETRIC, **fields) -> ValueRef:
        name = fields.pop("name", f"op{len(self.ops)}")
        self.ops.append(Op(name=name, kind=kind, target=target, args=args, outputs=(output,), **fields))
        return ValueRef(name)

    def state(self, output: TensorSpec, kind: StateKind, trainable: bool = False, name: str | None = None) -> StateRef:
        self.states.append(State(name=name or f"s{len(self.states)}", kind=kind, spec=output, trainable=trainable))
        return StateRef(self.states[-1].name)

    def spec(self, value: ValueRef) -> TensorSpec:
        return next(op for op in self.ops if op.name == value.op).outputs[value.index]


WIDTH = 4
ROW, GRID = (WIDTH,), (2, WIDTH)


@st.composite
def graphs(draw) -> Graph:
    """Graphs with placeholders, masks, views, detached values, tied parameters, constants and an updated buffer."""
    pen = Pen()
    pen.op("farflung.input", (), spec(F, *ROW), OpKind.PLACEHOLDER, name="x")
    weight = pen.state(spec(F, *ROW), StateKind.PARAMETER, trainable=True, name="weight")
    frozen = pen.state(spec(F, *ROW), StateKind.BUFFER, name="frozen")
    count = pen.state(spec("int64"), StateKind.BUFFER, name="count")
    values = [pen.op("aten.mul.Tensor", (ValueRef("x"), weight), spec(F, *ROW), OpKind.PARAMETRIC)]
    sources = [*values, ValueRef("x")]
    if draw(st.booleans()):
        sources.append(pen.op("farflung.input", (), spec(F, *GRID), OpKind.PLACEHOLDER, name="y"))
    for _ in range(draw(st.integers(2, 22))):
        kind = draw(st.sampled_from(sorted(_MAKERS)))
        made = _MAKERS[kind](pen, draw(st.sampled_from(sources)), draw(st.sampled_from(sources)), (weight, frozen))
        if made is not None:
            sources.append(made)
    total = pen.op("aten.sum.default", (values[0],), spec(F))
    for value in draw(st.lists(st.sampled_from(sources), max_size=4)):
        part = pen.op("aten.sum.default", (value,), spec(F))
        total = pen.op("aten.add.Tensor", (total, part), spec(F))
    one_more = pen.op("aten.add.Scalar", (count, 1), spec("int64"))
    return Graph(
        name="random",
        ops=tuple(pen.ops),
        states=tuple(pen.states),
        outputs=(("loss", total), ("extra", draw(st.sampled_from(sources)))),
        state_updates=(("count", one_more),),
    )


def _wide(pen: Pen, a: ValueRef, b: ValueRef) -> tuple[int, ...]:
    return np.broadcast_shapes(pen.spec(a).shape, pen.spec(b).shape)


def _gridded(pen: Pen, a: ValueRef) -> ValueRef | None:
    if pen.spec(a).shape == ROW:
        return pen.op("aten.expand.default", (a, GRID), spec(pen.spec(a).dtype, *GRID))
    return pen.op("aten.select.int", (a, 0, 1), spec(pen.spec(a).dtype, *ROW))


def _where(pen: Pen, a: ValueRef, b: ValueRef) -> ValueRef | None:
    if pen.spec(a).dtype != "bool" or pen.spec(b).dtype != F:
        return None
    return pen.op("aten.where.ScalarOther", (a, b, -1.0), spec(F, *_wide(pen, a, b)))


def _add(pen: Pen, a: ValueRef, b: ValueRef) -> ValueRef | None:
    if "bool" in (pen.spec(a).dtype, pen.spec(b).dtype):
        return None
    return pen.op("aten.add.Tensor", (a, b), spec(F, *_wide(pen, a, b)))


def _scale(pen: Pen, a: ValueRef, state: StateRef) -> ValueRef | None:
    if pen.spec(a).dtype == "bool":
        return None
    return pen.op("aten.mul.Tensor", (a, state), spec(F, *pen.spec(a).shape), OpKind.PARAMETRIC)


_MAKERS = {
    "add": lambda pen, a, b, s: _add(pen, a, b),
    "arange": lambda pen, a, b, s: pen.op("aten.arange.default", (WIDTH,), spec(F, *ROW)),
    "detach": lambda pen, a, b, s: pen.op("aten.detach.default", (a,), pen.spec(a)),
    "frozen": lambda pen, a, b, s: pen.op("aten.mul.Scalar", (s[1], 2.0), spec(F, *ROW)),
    "grid": lambda pen, a, b, s: _gridded(pen, a),
    "gt": lambda pen, a, b, s: pen.op("aten.gt.Scalar", (a, 0.5), spec("bool", *pen.spec(a).shape)),
    "scale": lambda pen, a, b, s: _scale(pen, a, s[0]),
    "scale_frozen": lambda pen, a, b, s: _scale(pen, a, s[1]),
    "where": lambda pen, a, b, s: _where(pen, a, b),
}
_NUMPY = {
    "aten.add.Scalar": np.add,
    "aten.add.Tensor": np.add,
    "aten.arange.default": lambda n: np.arange(n, dtype=np.float32),
    "aten.detach.default": lambda a: a,
    "aten.expand.default": np.broadcast_to,
    "aten.gt.Scalar": np.greater,
    "aten.mul.Scalar": np.multiply,
    "aten.mul.Tensor": np.multiply,
    "aten.select.int": lambda a, dim, index: np.take(a, index, axis=dim),
    "aten.sum.default": np.sum,
    "aten.where.ScalarOther": lambda c, a, other: np.where(c, a, np.float32(other)),
}
Values = dict[ValueRef, np.ndarray]


def states_of(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {state.name: np.asarray(rng.normal(size=state.spec.shape)).astype(state.spec.dtype) for state in graph.states}


def data_of(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    return {op.name: rng.normal(size=op.outputs[0].shape).astype(F) for op in graph.placeholders}


def execute(graph: Graph, positions, states: Mapping[str, np.ndarray], data: Mapping[str, np.ndarray], have: Values) -> Values:
    """Run ``positions`` in order; a read of anything that is not there raises KeyError."""
    values = dict(have)
    for position in positions:
        op = graph.ops[position]
        read = [values[a] if isinstance(a, ValueRef) else states[a.name] if isinstance(a, StateRef) else a for a in op.args]
        values[ValueRef(op.name)] = np.asarray(data[op.name] if op.kind is OpKind.PLACEHOLDER else _NUMPY[op.target](*read))
    return values


def run_stages(graph: Graph, parts: tuple[SubGraph, ...]) -> list[Values]:
    """Each stage sees only its states, its placeholders and what is sent to it; views are replayed, not sent."""
    sent: dict[tuple[ValueRef, int], np.ndarray] = {}
    done: list[Values] = []
    for part in parts:
        have: Values = {}
        for edge in part.requires_activations:
            if edge.alias_of is None:
                have[edge.value] = sent[edge.value, part.stage]
            else:
                replayed = execute(graph, edge.views, {}, {}, {edge.alias_of: sent[edge.alias_of, part.stage]})
                have[edge.value] = replayed[edge.value]
        states = {name: array for name, array in states_of(graph).items() if name in part.states}
        data = {name: array for name, array in data_of(graph).items() if name in part.placeholders}
        done.append(execute(graph, part.positions, states, data, have))
        for edge in part.sends_activations:
            if edge.alias_of is None:
                sent[edge.value, edge.target] = done[-1][edge.value]
    return done


@st.composite
def bounds(draw, graph: Graph) -> list[tuple[int, int]]:
    """Runs that tile the positions."""
    inner = sorted(draw(st.sets(st.integers(1, len(graph.ops) - 1), max_size=5)))
    edges = [0, *inner, len(graph.ops)]
    return list(pairwise(edges))
