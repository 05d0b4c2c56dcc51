"""What a state is made of, if the files hold it in another form: a small expression over tensors of the files.

The ``transformers`` library stores the experts of a mixture one by one and computes with all of them in one tensor, and other
models likewise. An expression is a tensor's name, or a list of an operation, its numbers and inner expressions:
``["stack", 0, "experts.0.w1", "experts.1.w1"]``. Expressions are JSON and travel with the job, so that each worker makes the
states of its stage from its own files. No operation takes more memory than its result, and no result is much larger than the
whole expression's or the largest tensor: a job must not fill a worker's memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farflung.errors import CheckpointError, InputError
from farflung.graph.quantized_weights import PARTS, part_shape, quantized_part

__all__ = ["INITIAL", "Expression", "evaluate", "expressions_from_json", "expressions_to_json", "shape_of"]

Array = NDArray[Any]
Shape = tuple[int, ...]

#: A tensor's name, or ``[operation, ...]``.
Expression = str | list[Any]

#: Stands for the state's initial values: nothing of the files belongs to it.
INITIAL: Expression = ["initial"]

#: Operations inside each other; and how many times as many elements as the whole expression, or the largest tensor, an inner
#: result may have.
_DEPTH, _GROWTH = 32, 8
#: Operation -> how many numbers (or lists of numbers) follow its name.
_NUMBERS = {"stack": 1, "cat": 1, "slice": 3, "transpose": 2, "permute": 1, "reshape": 1, "norm": 0, **dict.fromkeys(PARTS, 0)}


def expressions_to_json(sources: Mapping[str, Expression]) -> str:
    """State -> expression, as text that ``expressions_from_json`` reads."""
    return json.dumps(dict(sources), separators=(",", ":")) if sources else ""


def expressions_from_json(text: str) -> dict[str, Expression]:
    """Read and check what ``expressions_to_json`` wrote.

    Raises:
        InputError: it is something else.
    """
    try:
        found = json.loads(text) if text else {}
        if isinstance(found, dict) and all(item == INITIAL or _well_formed(item) for item in found.values()):
            return found
    except (ValueError, RecursionError):
        pass
    raise InputError("weights.sources is malformed: leave it out, the submitting process writes it")


def evaluate(source: Expression, read: Callable[[str], Array]) -> Array:
    """The array that ``source`` stands for; ``read`` gives a tensor by name."""
    if isinstance(source, str):
        return read(source)
    name, numbers, inner = _parts(source)
    arrays = [evaluate(item, read) for item in inner]
    return np.asarray(_OPERATIONS[name](numbers, arrays), order="C")


def shape_of(source: Expression, shape: Callable[[str], Shape]) -> Shape:
    """The shape of what ``source`` stands for; nothing is read.

    Raises:
        CheckpointError: the shapes of the tensors do not fit the expression, or an inner result is far larger than they are.
    """
    sizes = [0]
    found = _shape_of(source, shape, sizes)
    largest, most = max(sizes), _GROWTH * max(sizes[0], prod(found))
    if largest > most:
        raise CheckpointError(f"an expression for weights has {largest} elements inside, at most {most} are allowed: slice first")
    return found


def _shape_of(source: Expression, shape: Callable[[str], Shape], sizes: list[int]) -> Shape:
    """As ``shape_of``; ``sizes`` gets the elements of the largest tensor at its begin, and those of each operation's result."""
    if isinstance(source, str):
        found = shape(source)
        sizes[0] = max(sizes[0], prod(found))
        return found
    found = _result_shape(source, [_shape_of(item, shape, sizes) for item in _parts(source)[2]])
    sizes.append(prod(found))
    return found


def _result_shape(source: list[Any], shapes: list[Shape]) -> Shape:
    name, numbers, _ = _parts(source)
    if name in PARTS:
        return part_shape(name, shapes[0])
    try:
        # arrays of one repeated element take no memory, whatever their shapes
        blanks = [np.broadcast_to(np.int8(0), one) for one in shapes]
        if name in ("stack", "cat"):
            return _joined(name, numbers[0], shapes)
        return tuple(_SHAPES.get(name, _OPERATIONS[name])(numbers, blanks).shape)
    except (ValueError, IndexError, TypeError, OverflowError, np.exceptions.AxisError):
        raise CheckpointError(
            f"tensors of shapes {[list(one) for one in shapes]} do not fit {name!r}: use the right file"
        ) from None


def _joined(name: str, dim: int, shapes: list[Shape]) -> Shape:
    first = shapes[0]
    if name == "stack":
        if dim > len(first) or any(one != first for one in shapes):
            raise ValueError
        return (*first[:dim], len(shapes), *first[dim:])
    if any((*one[:dim], *one[dim + 1 :]) != (*first[:dim], *first[dim + 1 :]) for one in shapes):
        raise ValueError
    return (*first[:dim], sum(one[dim] for one in shapes), *first[dim + 1 :])


def _slice(numbers: list[Any], arrays: list[Array]) -> Array:
    dim, start, stop = numbers
    chosen: list[Any] = [slice(None)] * arrays[0].ndim
    chosen[dim] = slice(start, stop)
    found: Array = arrays[0][tuple(chosen)]
    return found.copy()  # a view would keep the whole tensor in memory


def _row_norm(numbers: list[Any], arrays: list[Array]) -> Array:
    """The 2-norm of each row, as DoRA's magnitudes begin."""
    return np.asarray(np.sqrt(np.square(arrays[0].astype(np.float64)).sum(axis=1))).astype(np.float32)


def _quantized(name: str, numbers: list[Any], arrays: list[Array]) -> Array:
    return quantized_part(name, arrays[0])


_OPERATIONS: Mapping[str, Callable[[list[Any], list[Array]], Array]] = {
    "stack": lambda numbers, arrays: np.stack(arrays, numbers[0]),
    "cat": lambda numbers, arrays: np.concatenate(arrays, numbers[0]),
    "slice": _slice,
    "transpose": lambda numbers, arrays: arrays[0].swapaxes(*numbers),
    "permute": lambda numbers, arrays: arrays[0].transpose(numbers[0]),
    "reshape": lambda numbers, arrays: arrays[0].reshape(numbers[0]),
    "norm": _row_norm,
    **{name: partial(_quantized, name) for name in PARTS},
}
_SHAPES: Mapping[str, Callable[[list[Any], list[Array]], Array]] = {"norm": lambda numbers, arrays: arrays[0][:, 0]}


def _parts(source: list[Any]) -> tuple[str, list[Any], list[Expression]]:
    count = _NUMBERS[source[0]]
    return source[0], source[1 : 1 + count], source[1 + count :]


def _well_formed(source: object, depth: int = _DEPTH) -> bool:
    if isinstance(source, str):
        return True
    if not depth or not isinstance(source, list) or not source or not isinstance(source[0], str) or source[0] not in _NUMBERS:
        return False
    name, numbers, inner = _parts(source)
    lists = name in ("permute", "reshape")
    fits = all(_count(item) if not lists else isinstance(item, list) and all(map(_count, item)) for item in numbers)
    alone = name in ("stack", "cat") or len(inner) == 1
    return (
        len(numbers) == _NUMBERS[name] and fits and bool(inner) and alone and all(_well_formed(item, depth - 1) for item in inner)
    )


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
