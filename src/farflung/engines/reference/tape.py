"""Reverse-mode differentiation of NumPy functions: each result knows the values that it was computed from.

A function of ``operators`` is written with the functions of this module, and has its gradient by that. Results are never written
to. Source: A. Griewank and A. Walther, "Evaluating Derivatives", chapter 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from farflung.engines.base import Array

__all__ = [
    "Axes",
    "Operand",
    "Value",
    "absorb",
    "add",
    "cast",
    "concatenate",
    "detach",
    "divide",
    "elementwise",
    "gradients",
    "matmul",
    "multiply",
    "pick",
    "reshape",
    "scatter",
    "subtract",
    "total",
    "transpose",
    "value_of",
    "where",
]

Pullback = Callable[[Array], Array]
Axes = tuple[int, ...] | None
_ORDER = count()


class Value:
    """A result: its ``array``, and for each value that it was computed from the function that brings a gradient back to it."""

    __slots__ = ("array", "order", "parents")

    def __init__(self, array: Array, parents: Sequence[tuple[Value, Pullback]] = ()) -> None:
        self.array = array
        self.parents = tuple(parents)
        self.order = next(_ORDER)


#: An argument: a value, or an array or number that carries no gradient.
Operand = Value | Array | float | int | bool


def value_of(operand: Any) -> Any:
    """The array of ``operand``, or ``operand`` itself if it is no ``Value``."""
    return operand.array if isinstance(operand, Value) else operand


def detach(operand: Operand) -> Value:
    """``operand`` without its history."""
    return Value(np.asarray(value_of(operand)))


def gradients(seeds: Mapping[Value, Array], wanted: Iterable[Value]) -> dict[Value, Array]:
    """The gradients of the ``wanted`` values that the ``seeds`` (gradients of results) reach.

    Values are visited in the reverse order of their making. Cost: that of all pullbacks, and a sum for each further reader.
    """
    sums: dict[Value, Array] = dict(seeds)
    waiting: dict[int, Value] = {value.order: value for value in seeds}
    left = set(wanted)
    found: dict[Value, Array] = {}
    while waiting:
        value = waiting.pop(max(waiting))
        gradient = sums.pop(value)
        if value in left:
            found[value] = gradient
        for parent, pullback in value.parents:
            part = pullback(gradient)
            sums[parent] = sums[parent] + part if parent in sums else part
            waiting[parent.order] = parent
    return found


def _made(array: Any, *parents: tuple[Any, Pullback]) -> Value:
    return Value(np.asarray(array), [(parent, pullback) for parent, pullback in parents if isinstance(parent, Value)])


def _narrowed(gradient: Array, like: Array) -> Array:
    """``gradient`` summed over the axes along which ``like`` was broadcast, in the element type of ``like``."""
    extra = gradient.ndim - like.ndim
    if extra:
        gradient = gradient.sum(axis=tuple(range(extra)))
    axes = tuple(axis for axis, size in enumerate(like.shape) if size == 1 and gradient.shape[axis] != 1)
    found: Array = (gradient.sum(axis=axes, keepdims=True) if axes else gradient).astype(like.dtype, copy=False)
    return found


def absorb(array: Any, *parts: tuple[Any, Callable[[Array], Array]]) -> Value:
    """A result of broadcast arguments: each part is an argument and what its gradient is before the broadcast is undone."""

    def undone(operand: Any, pullback: Pullback) -> tuple[Any, Pullback]:
        return operand, lambda gradient: _narrowed(pullback(gradient), value_of(operand))

    return _made(array, *(undone(operand, pullback) for operand, pullback in parts))


def add(a: Operand, b: Operand) -> Value:
    """``a + b``."""
    return absorb(value_of(a) + value_of(b), (a, lambda g: g), (b, lambda g: g))


def subtract(a: Operand, b: Operand) -> Value:
    """``a - b``."""
    return absorb(value_of(a) - value_of(b), (a, lambda g: g), (b, np.negative))


def multiply(a: Operand, b: Operand) -> Value:
    """``a * b``."""
    x, y = value_of(a), value_of(b)
    return absorb(x * y, (a, lambda g: g * y), (b, lambda g: g * x))


def divide(a: Operand, b: Operand) -> Value:
    """``a / b``."""
    x, y = value_of(a), value_of(b)
    return absorb(np.true_divide(x, y), (a, lambda g: g / y), (b, lambda g: -g * x / (y * y)))


def elementwise(a: Operand, result: Array, slope: Callable[[], Any]) -> Value:
    """``result`` is a function of each element of ``a``; ``slope`` gives its derivative."""
    return _made(result, (a, lambda g: (g * slope()).astype(value_of(a).dtype, copy=False)))


def where(condition: Any, a: Operand, b: Operand) -> Value:
    """``a`` where the condition is true, else ``b``."""
    mask = value_of(condition)
    chosen = np.where(mask, value_of(a), value_of(b))
    return absorb(chosen, (a, lambda g: np.where(mask, g, 0)), (b, lambda g: np.where(mask, 0, g)))


def cast(a: Operand, dtype: Any) -> Value:
    """``a`` in another element type (itself if it has the type)."""
    x = np.asarray(value_of(a))
    if x.dtype == dtype:
        return a if isinstance(a, Value) else Value(x)
    result = x.astype(dtype)
    if not np.issubdtype(x.dtype, np.inexact) or not np.issubdtype(dtype, np.inexact):
        return Value(result)
    return _made(result, (a, lambda g: g.astype(x.dtype)))


def matmul(a: Operand, b: Operand) -> Value:
    """The matrix product, batched and broadcast as NumPy does; both have at least two dimensions."""
    x, y = value_of(a), value_of(b)
    return absorb(
        np.matmul(x, y),
        (a, lambda g: np.matmul(g, np.swapaxes(y, -1, -2))),
        (b, lambda g: np.matmul(np.swapaxes(x, -1, -2), g)),
    )


def total(a: Operand, axes: Axes = None, *, keep: bool = False) -> Value:
    """The sum over ``axes`` (``None``: all)."""
    x = value_of(a)
    held = tuple(range(x.ndim)) if axes is None else tuple(axis % max(x.ndim, 1) for axis in axes)
    shape = tuple(1 if axis in held else size for axis, size in enumerate(x.shape))
    result = x.sum(axis=axes, keepdims=keep)
    return _made(result, (a, lambda g: np.broadcast_to(g.reshape(shape), x.shape)))


def reshape(a: Operand, shape: Sequence[int]) -> Value:
    """``a`` in another shape."""
    x = value_of(a)
    return _made(x.reshape(tuple(shape)), (a, lambda g: g.reshape(x.shape)))


def transpose(a: Operand, axes: Sequence[int]) -> Value:
    """``a`` with its dimensions in the order ``axes``."""
    back = np.argsort(axes)
    return _made(np.transpose(value_of(a), axes), (a, lambda g: np.transpose(g, back)))


def pick(a: Operand, index: Any) -> Value:
    """``a[index]``: slices, numbers and arrays of indices; an element may be picked several times."""
    x = value_of(a)

    def back(gradient: Array) -> Array:
        found = np.zeros(x.shape, gradient.dtype)
        np.add.at(found, index, gradient)
        return found

    return _made(x[index], (a, back))


def scatter(base: Operand, index: Any, source: Operand, *, add_up: bool) -> Value:
    """``base`` with ``source`` put (or added) at ``base[index]``; without ``add_up`` no place stands twice in ``index``."""
    x, y = value_of(base), value_of(source)
    result = np.array(x)
    if add_up:
        np.add.at(result, index, y)
    else:
        result[index] = y

    def kept(gradient: Array) -> Array:
        found = np.array(gradient)
        if not add_up:
            found[index] = 0
        return found

    return _made(result, (base, kept), (source, lambda g: _narrowed(g[index], np.asarray(y))))


def concatenate(parts: Sequence[Operand], axis: int) -> Value:
    """The parts one after the other."""
    arrays = [value_of(part) for part in parts]
    ends = np.cumsum([array.shape[axis] for array in arrays])

    def piece(number: int) -> Pullback:
        begin = int(ends[number] - arrays[number].shape[axis])
        return lambda g: np.take(g, range(begin, int(ends[number])), axis=axis)

    return _made(np.concatenate(arrays, axis=axis), *((part, piece(number)) for number, part in enumerate(parts)))
