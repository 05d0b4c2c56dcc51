"""The random numbers of a stage's operators, made on the host and keyed as every engine keys them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from farflung.engines.base import Array, MicroBatch
from farflung.engines.host.random_bits import Stream
from farflung.engines.jax.memory_orders import MemoryOrders
from farflung.engines.jax.program import Draw
from farflung.errors import GraphError
from farflung.graph.ir import Graph, Op, TensorSpec, ValueRef
from farflung.ids import derive_seed

__all__ = ["Draws"]


class Draws:
    """The numbers that the random operators of ``ops`` take in a micro-batch."""

    def __init__(self, graph: Graph, ops: Sequence[Op], seed: int) -> None:
        """Read what each operator draws.

        Raises:
            GraphError: an operator draws in a way that this engine does not know.
        """
        self._seed = seed
        self._orders = MemoryOrders(graph, ops)
        self._plans = [(op, *_plan(graph, op)) for op in ops if op.rng is not None]
        #: What is drawn: for each operator the shape and the element type.
        self.specs: dict[Draw, TensorSpec] = {
            Draw(op.name): TensorSpec(dtype="bool" if kind == "mask" else dtype, shape=shape)
            for op, kind, shape, dtype, _ in self._plans
        }

    def numbers(self, key: MicroBatch, given: Mapping[ValueRef, Array]) -> list[Array]:
        """The numbers of the micro-batch ``key``, in the order of ``specs``. ``given``: the arrays that the stage gets."""
        orders = self._orders.orders(given)
        return [self._draw(key, orders.get(plan[0].name), *plan) for plan in self._plans]

    def _draw(self, key: MicroBatch, order: tuple[int, ...] | None, op: Op, *plan: Any) -> Array:
        kind, shape, dtype, rate = plan
        assert op.rng is not None
        stream = Stream(derive_seed("op", self._seed, key.step, key.index, op.rng))
        turned = order is not None and order != tuple(range(len(shape)))
        sizes = tuple(shape[axis] for axis in order) if turned and order is not None else shape
        if kind == "mask":
            found = stream.kept(sizes, rate)
        else:
            found = stream.normal(sizes, dense=not turned, dtype=dtype) if kind == "normal" else stream.uniform(sizes, dtype)
        return np.transpose(found, np.argsort(order)) if turned and order is not None else found


def _plan(graph: Graph, op: Op) -> tuple[str, tuple[int, ...], str, float]:
    """What ``op`` draws: a mask, uniform or normal numbers; their shape and element type; how likely a mask keeps."""
    shape, dtype = op.outputs[0].shape, op.outputs[0].dtype
    arguments: dict[str | int, Any] = {**dict(enumerate(op.args)), **dict(op.kwargs)}
    match op.target:
        case "aten.dropout.default":
            return "mask", shape, dtype, 1 - arguments[1]
        case "aten.feature_dropout.default":
            return "mask", (*shape[:2], *(1 for _ in shape[2:])), dtype, 1 - arguments[1]
        case "aten.scaled_dot_product_attention.default":
            rate = arguments.get(4, arguments.get("dropout_p", 0.0))
            query, key = (_shape(graph, op.args[place]) for place in (0, 1))
            return "mask", (*query[:-1], key[-2]), dtype, 1 - rate
        case "aten.bernoulli.p":
            return "mask", shape, dtype, arguments[1]
        case "aten.bernoulli.default" | "aten.rand_like.default" if dtype in ("float32", "float64"):
            return "uniform", shape, dtype, 0.0
        case "aten.randn_like.default" if dtype in ("float32", "float64"):
            return "normal", shape, dtype, 0.0
    raise GraphError(
        f"operator {op.name!r} ({op.target}) draws {dtype} numbers, which the JAX engine cannot: "
        "place its stage on a worker with --engine torch"
    )


def _shape(graph: Graph, arg: Any) -> tuple[int, ...]:
    return graph.spec(arg).shape if isinstance(arg, ValueRef) else graph.state[arg.name].spec.shape
