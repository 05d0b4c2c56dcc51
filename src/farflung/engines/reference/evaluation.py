"""A stage's operators computed one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from farflung.engines.base import MicroBatch
from farflung.engines.host.operators import host_dtype
from farflung.engines.present import PRESENT, label
from farflung.engines.reference.draws import Draw
from farflung.engines.reference.operators import DRAWING, OPERATORS
from farflung.engines.reference.tape import Value, cast, detach
from farflung.errors import GraphError
from farflung.graph.ir import Arg, DTypeArg, LocalRef, Op, StateRef, ValueRef

__all__ = ["Evaluator"]

#: Reads an argument of an operator: the operator, what it reads, and how many times the operator has read it before.
Reader = Callable[[Op, ValueRef | StateRef, int], Value]


class Evaluator:
    """Computes operators. ``wide``: everything that is floating is computed in float64."""

    def __init__(self, seed: int, *, wide: bool) -> None:
        self._seed, self._wide = seed, wide

    def dtype(self, declared: str) -> np.dtype[Any]:
        """The element type in which a value that is ``declared`` so is computed."""
        found = host_dtype(declared)
        is_float = declared in ("float32", "float16", "bfloat16")
        return np.dtype(np.float64) if self._wide and is_float else found

    def run(self, op: Op, key: MicroBatch, read: Reader) -> list[Value]:
        """The results of ``op``, with the declared shapes and element types.

        Raises:
            GraphError: the engine has no such operator, it refuses its arguments, or gives something else than declared.
        """
        function = OPERATORS.get(op.target)
        if function is None:
            raise GraphError(f"the reference engine has no operator {op.target!r}: use a worker with --engine torch")
        PRESENT.memory[:] = label(f"operator {op.name[:100]!r} ({op.target[:100]})")
        seen: dict[ValueRef | StateRef, int] = {}

        def resolve(arg: Arg) -> Any:
            if isinstance(arg, tuple):
                return [resolve(item) for item in arg]
            if isinstance(arg, LocalRef):
                raise GraphError(f"operator {op.name!r} holds a reference that only initializer programs may hold")
            if isinstance(arg, (ValueRef, StateRef)):
                number = seen[arg] = seen.get(arg, -1) + 1
                return read(op, arg, number)
            return self.dtype(arg.name) if isinstance(arg, DTypeArg) else arg

        draws = [Draw(op, self._seed, key) if op.rng is not None else None] if op.target in DRAWING else []
        args, kwargs = [resolve(arg) for arg in op.args], {name: resolve(arg) for name, arg in op.kwargs}
        try:
            with np.errstate(all="ignore"):
                found = function(*draws, *args, **kwargs)
        except GraphError:
            raise
        except Exception as error:  # NumPy refuses in many ways
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise GraphError(f"operator {op.name!r} ({op.target}) failed: {first}") from error
        return self._declared(op, found if isinstance(found, (list, tuple)) else [found])

    def _declared(self, op: Op, results: Sequence[Value]) -> list[Value]:
        shapes = [item.array.shape for item in results]
        if shapes != [spec.shape for spec in op.outputs]:
            declared = ", ".join(str(list(spec.shape)) for spec in op.outputs)
            given = ", ".join(str(list(shape)) for shape in shapes)
            raise GraphError(f"operator {op.name!r} ({op.target}) declares {declared} but gives {given}")
        found = [cast(item, self.dtype(spec.dtype)) for item, spec in zip(results, op.outputs, strict=True)]
        return [detach(item) for item in found] if op.no_grad else found
