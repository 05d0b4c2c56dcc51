"""A stage's operators as one function of JAX, and that function compiled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from farflung.engines.jax.arrays import dtype_of, resolve
from farflung.engines.jax.operators import function_of
from farflung.engines.jax.precision import cast_arguments, cast_results
from farflung.errors import FarflungError, GraphError
from farflung.graph.ir import LocalRef, Op, StateRef, Use, ValueRef, iter_refs

__all__ = ["Draw", "Read", "Source", "compiled", "reached_uses", "trace"]

#: Operators that read only the shape or the element type of their second argument.
_SHAPE_OF_SECOND = frozenset({"aten.expand_as.default", "aten.view_as.default", "aten.type_as.default", "aten.to.other"})


@dataclass(frozen=True, slots=True)
class Read:
    """Where an operator reads a received value: the ``occurrence``-th read of ``value`` by ``op`` (several parts only)."""

    value: ValueRef
    op: str
    occurrence: int


@dataclass(frozen=True, slots=True)
class Draw:
    """The random numbers of the operator ``op``."""

    op: str


#: What an input of the function is: a state as one operator reads it, a placeholder, a received value or one of its reads,
#: random numbers.
Source = Use | str | ValueRef | Read | Draw


def trace(ops: Sequence[Op], inputs: Mapping[Source, Any], *, narrow: bool = False) -> dict[ValueRef, Any]:
    """The values of ``ops`` in order, of JAX arrays or of tracers.

    Raises:
        GraphError: an operator is not in the table, or refuses its arguments; the text names it.
    """
    values: dict[ValueRef, Any] = {source: value for source, value in inputs.items() if isinstance(source, ValueRef)}
    for op in ops:
        results = (inputs[op.name],) if op.target == "farflung.input" else _results(op, values, inputs, narrow)
        values.update((ValueRef(op.name, index), item) for index, item in enumerate(results))
    return values


def _results(op: Op, values: Mapping[ValueRef, Any], inputs: Mapping[Source, Any], narrow: bool) -> Sequence[Any]:
    seen: dict[ValueRef, int] = {}

    def read(ref: ValueRef | StateRef | LocalRef) -> Any:
        if isinstance(ref, StateRef):
            return inputs[Use(ref.name, op.name)]
        if not isinstance(ref, ValueRef):
            raise GraphError(f"operator {op.name!r} reads {ref}, which the graph does not have")
        part = Read(ref, op.name, seen.setdefault(ref, 0))
        seen[ref] += 1
        return inputs[part] if part in inputs else values[ref]

    function = function_of(op.target)
    args = [resolve(arg, read) for arg in op.args]
    kwargs = {name: resolve(arg, read) for name, arg in op.kwargs}
    cast = cast_arguments(op.target) if narrow else None
    if cast is not None:
        args, kwargs = [cast(arg) for arg in args], {name: cast(arg) for name, arg in kwargs.items()}
    if Draw(op.name) in inputs:
        kwargs["bits"] = inputs[Draw(op.name)]
    try:
        found = function(*args, **kwargs)
        results = list(found) if isinstance(found, (tuple, list)) else [found]
        results = [
            cast_results(item, dtype_of(spec.dtype), narrow=narrow) for item, spec in zip(results, op.outputs, strict=True)
        ]
    except FarflungError:
        raise
    except Exception as error:  # functions of JAX refuse in many ways
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise GraphError(f"operator {op.name!r} ({op.target}) refuses its arguments: {first}") from error
    return [lax.stop_gradient(item) for item in results] if op.no_grad else results


def reached_uses(ops: Sequence[Op], roots: Collection[ValueRef]) -> frozenset[Use]:
    """The uses of states that a gradient of ``roots`` reaches; no optimizer changes the others, as in PyTorch."""
    values, found = set(roots), set[Use]()
    for op in reversed(ops):
        if op.no_grad or not any(ValueRef(op.name, index) in values for index in range(len(op.outputs))):
            continue
        args = op.args[:1] + op.args[2:] if op.target in _SHAPE_OF_SECOND else (op.args, tuple(arg for _, arg in op.kwargs))
        for ref in iter_refs(args):
            if isinstance(ref, ValueRef):
                values.add(ref)
            elif isinstance(ref, StateRef):
                found.add(Use(ref.name, op.name))
    return frozenset(found)


def compiled(function: Callable[..., Any], *shapes: Any) -> tuple[Any, Any]:
    """``function`` compiled for arguments of ``shapes``, and the shapes of its results."""
    lowered = jax.jit(function).lower(*shapes)
    return lowered.compile(), lowered.out_info
