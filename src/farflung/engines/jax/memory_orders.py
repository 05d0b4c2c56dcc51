"""In which order PyTorch would store the axes of values: it draws a mask in the order of memory.

XLA chooses its own layouts, so this module follows PyTorch's: views share memory, elementwise operators keep the order of their
first operand, and all other operators give row-major results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from farflung.engines.base import Array
from farflung.engines.host.operators import HOST
from farflung.graph.ir import Graph, Op, StateRef, ValueRef
from farflung.graph.opset import OpClass, info

__all__ = ["MemoryOrders", "order_of"]

#: Views that NumPy makes as PyTorch does. What other operators reshape counts as a row-major copy.
_VIEWS = frozenset(
    {
        "alias.default", "chunk.default", "detach.default", "expand.default", "narrow.default", "numpy_T.default",
        "permute.default", "select.int", "slice.Tensor", "split.Tensor", "squeeze.default", "squeeze.dim", "squeeze.dims",
        "t.default", "transpose.int", "unbind.int", "unsqueeze.default",
    }
)  # fmt: skip
_KEEPING = frozenset(
    {f"aten.{name}.default" for name in ("clone", "rand_like", "randn_like", "empty_like", "zeros_like", "ones_like")}
)
#: Drawn in row-major order, whatever the input's.
_ROW_MAJOR = frozenset({"aten.bernoulli.default", "aten.feature_dropout.default", "aten.scaled_dot_product_attention.default"})


def order_of(array: Array) -> tuple[int, ...]:
    """The axes of ``array`` from the one with the largest steps in memory to the one with the smallest."""
    return tuple(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))


class MemoryOrders:
    """The orders of the results of the random operators among ``ops``."""

    def __init__(self, graph: Graph, ops: Sequence[Op]) -> None:
        self._graph = graph
        self._drawing = [op for op in ops if op.rng is not None and op.target not in _ROW_MAJOR]
        wanted = {op.name for op in self._drawing}
        #: The operators that the random ones depend on, and they themselves.
        self._ops: list[Op] = []
        for op in reversed(ops):
            if op.name in wanted:
                self._ops.insert(0, op)
                wanted |= {value.op for value in op.values()}
        self._found: dict[tuple[tuple[ValueRef, tuple[int, ...]], ...], dict[str, tuple[int, ...]]] = {}

    def orders(self, given: Mapping[ValueRef, Array]) -> Mapping[str, tuple[int, ...]]:
        """The order of each random operator's result, if the stage gets the arrays ``given``."""
        if not self._drawing:
            return {}
        key = tuple((value, order_of(array)) for value, array in given.items())
        if key not in self._found:
            if len(self._found) > _MOST:
                self._found.clear()
            self._found[key] = self._follow(given)
        return self._found[key]

    def _follow(self, given: Mapping[ValueRef, Array]) -> dict[str, tuple[int, ...]]:
        # Arrays of these strides over one element: views of them take no memory.
        shown: dict[ValueRef, Array] = {value: _shown(array.shape, order_of(array)) for value, array in given.items()}
        for op in self._ops:
            for index, item in enumerate(self._results(op, shown)):
                shown.setdefault(ValueRef(op.name, index), item)
        return {op.name: order_of(shown[ValueRef(op.name)]) for op in self._drawing}

    def _results(self, op: Op, shown: Mapping[ValueRef, Array]) -> Sequence[Array]:
        shapes = [spec.shape for spec in op.outputs]
        plain = [_shown(shape, tuple(range(len(shape)))) for shape in shapes]
        operands = [shown[value] for value in op.values() if value in shown]
        first = op.args[0] if op.args else None
        if isinstance(first, StateRef):  # states are row-major
            shape = self._graph.state[first.name].spec.shape
            base: Array | None = _shown(shape, tuple(range(len(shape))))
        else:
            base = shown.get(first) if isinstance(first, ValueRef) else None
        operands = operands if base is None else [base, *operands]
        name = op.target.removeprefix("aten.")
        if name in _VIEWS and base is not None:
            rest = [list(arg) if isinstance(arg, tuple) else arg for arg in op.args[1:]]
            found: Any = HOST[name](base, *rest, **dict(op.kwargs))
            return list(found) if isinstance(found, tuple) else [found]
        if info(op.target).op_class is OpClass.ELEMENTWISE or op.target in _KEEPING:
            like = next((operand for operand in operands if operand.shape == shapes[0]), None)
            return plain if like is None else [_shown(like.shape, order_of(like))]
        return plain


#: Combinations of orders that are remembered.
_MOST = 64


def _shown(shape: tuple[int, ...], order: tuple[int, ...]) -> Array:
    """An array of ``shape`` whose axes lie in memory in ``order``; all of its elements are one byte."""
    steps = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        steps[axis] = step
        step *= max(shape[axis], 1)
    # Never read: only its strides are.
    return np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), shape, steps, writeable=False)
