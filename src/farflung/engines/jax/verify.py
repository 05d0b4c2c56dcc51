"""The shape re-check: every operator is traced without data before memory is allocated for what a graph declares."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from farflung.engines.jax.arrays import dtype_of
from farflung.engines.jax.draws import Draws
from farflung.engines.jax.program import Source, trace
from farflung.errors import GraphError
from farflung.graph.ir import Graph, Op, Use, ValueRef
from farflung.graph.opset import check_target
from farflung.graph.signatures import check_call, signature

__all__ = ["narrow_types", "verify_graph"]


def verify_graph(graph: Graph) -> None:
    """Trace ``graph`` and compare each result with what is declared.

    Raises:
        GraphError: an operator is not allowed, refuses its arguments or gives something else than declared.
    """
    for op in graph.ops:
        check_target(op.target)
        if op.target != "farflung.input":
            check_call(signature(op.target), op.args, op.kwargs, f"operator {op.name!r} ({op.target})")
    found = _traced(graph, narrow=False)
    for op in graph.ops:
        results = [found[ValueRef(op.name, index)] for index in range(len(op.outputs))]
        if any(
            (item.shape, item.dtype) != (spec.shape, jnp.dtype(dtype_of(spec.dtype)))
            for item, spec in zip(results, op.outputs, strict=True)
        ):
            declared = ", ".join(f"{spec.dtype}{list(spec.shape)}" for spec in op.outputs)
            given = ", ".join(f"{item.dtype.name}{list(item.shape)}" for item in results)
            raise GraphError(f"operator {op.name!r} ({op.target}) declares {declared} but gives {given}")


def narrow_types(graph: Graph) -> dict[ValueRef, Any]:
    """The element types of all values under the precision bf16."""
    return {value: item.dtype for value, item in _traced(graph, narrow=True).items()}


def _traced(graph: Graph, *, narrow: bool) -> dict[ValueRef, Any]:
    draws = Draws(graph, graph.ops, 0)
    inputs: dict[Source, Any] = {}
    for op in graph.ops:
        inputs |= _inputs_of(graph, op)
    inputs |= {draw: jax.ShapeDtypeStruct(spec.shape, jnp.dtype(dtype_of(spec.dtype))) for draw, spec in draws.specs.items()}
    sources = list(inputs)

    def run(arrays: list[Any]) -> list[Any]:
        values = trace(graph.ops, dict(zip(sources, arrays, strict=True)), narrow=narrow)
        return [values[ValueRef(op.name, index)] for op in graph.ops for index in range(len(op.outputs))]

    results = jax.eval_shape(run, list(inputs.values()))
    names = [ValueRef(op.name, index) for op in graph.ops for index in range(len(op.outputs))]
    return dict(zip(names, results, strict=True))


def _inputs_of(graph: Graph, op: Op) -> dict[Source, Any]:
    if op.target == "farflung.input":
        spec = op.outputs[0]
        return {op.name: jax.ShapeDtypeStruct(spec.shape, dtype_of(spec.dtype))}
    found: dict[Source, Any] = {}
    for name in op.states():
        if name not in graph.state:
            raise GraphError(f"operator {op.name!r} reads state {name!r}, which the graph does not have")
        spec = graph.state[name].spec
        found[Use(name, op.name)] = jax.ShapeDtypeStruct(spec.shape, dtype_of(spec.dtype))
    return found
