"""Sums, means, extremes, running sums, softmax and sorting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from farflung.engines.reference.operators.table import OPERATORS, operator, shape_of
from farflung.engines.reference.tape import (
    Axes,
    Value,
    absorb,
    cast,
    divide,
    multiply,
    pick,
    reshape,
    subtract,
    total,
    value_of,
)

__all__ = ["amax", "axes_of", "log_softmax", "mean", "softmax", "variance"]


def axes_of(dim: Any) -> Axes:
    """The axes that ``dim`` names (``None``: all)."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return None
    return tuple(dim) if isinstance(dim, (list, tuple)) else (dim,)


def _summable(a: Any, dtype: Any) -> Any:
    """Sums of integers are int64."""
    known = value_of(a).dtype
    return cast(a, dtype or (known if np.issubdtype(known, np.inexact) else np.int64))


@operator("sum.default")
def _sum(a: Any, dtype: Any = None) -> Value:
    return total(_summable(a, dtype))


@operator("sum.dim_IntList")
def _sum_dim(a: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return total(_summable(a, dtype), axes_of(dim), keep=keepdim)


def mean(a: Any, axes: Axes, *, keep: bool) -> Value:
    """The mean over ``axes``."""
    shape = shape_of(a)
    count = np.prod([shape[axis] for axis in (range(len(shape)) if axes is None else axes)])
    return multiply(total(a, axes, keep=keep), 1 / float(count))


@operator("mean.default")
def _mean(a: Any, dtype: Any = None) -> Value:
    return mean(cast(a, dtype or value_of(a).dtype), None, keep=False)


@operator("mean.dim")
def _mean_dim(a: Any, dim: Any, keepdim: bool = False, dtype: Any = None) -> Value:
    return mean(cast(a, dtype or value_of(a).dtype), axes_of(dim), keep=keepdim)


def variance(a: Any, axes: Axes, correction: Any, *, keep: bool) -> Value:
    """The variance over ``axes``; ``correction`` is taken from the count."""
    shape = shape_of(a)
    count = float(np.prod([shape[axis] for axis in (range(len(shape)) if axes is None else axes)]))
    centered = subtract(a, mean(a, axes, keep=True))
    return multiply(total(multiply(centered, centered), axes, keep=keep), 1 / max(count - correction, 0.0))


@operator("var.correction")
def _var(a: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Value:
    return variance(a, axes_of(dim), 1 if correction is None else correction, keep=keepdim)


@operator("std.correction")
def _std(a: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Any:
    return OPERATORS["aten.sqrt.default"](_var(a, dim, correction, keepdim))


@operator("var_mean.correction")
def _var_mean(a: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> list[Value]:
    return [_var(a, dim, correction, keepdim), mean(a, axes_of(dim), keep=keepdim)]


def _extreme(function: Callable[..., Any], a: Any, axes: Axes, *, keep: bool = False) -> Value:
    """Equal extremes share the gradient."""
    x = value_of(a)
    best = function(x, axis=axes, keepdims=True)
    hit = x == best
    share = hit / hit.sum(axis=axes, keepdims=True)
    result = best if keep else np.squeeze(best, axis=axes) if axes is not None else best.reshape(())
    shape = best.shape
    return reduced(a, result, lambda g: g.reshape(shape) * share)


def reduced(a: Any, result: Any, pullback: Callable[[Any], Any]) -> Value:
    """A result whose gradient ``pullback`` brings back to the whole of ``a``."""
    return absorb(result, (a, pullback))


def amax(a: Any, axes: Axes, *, keep: bool = False) -> Value:
    """The maximum over ``axes``."""
    return _extreme(np.max, a, axes, keep=keep)


def _extreme_along(function: Callable[..., Any], a: Any, dim: Any = (), keepdim: bool = False) -> Value:
    return _extreme(function, a, axes_of(dim), keep=keepdim)


_EXTREMES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {"max": (np.max, np.argmax), "min": (np.min, np.argmin)}


def _at(function: Callable[..., Any], a: Any, dim: int, keepdim: bool = False) -> list[Value]:
    """The extreme along ``dim`` and its first place."""
    places = np.expand_dims(function(value_of(a), axis=dim), dim)
    found = OPERATORS["aten.gather.default"](a, dim, places)
    shape = shape_of(found) if keepdim else np.squeeze(places, dim).shape
    return [reshape(found, shape), Value(places.reshape(shape))]


def _place(function: Callable[..., Any], a: Any, dim: int | None = None, keepdim: bool = False) -> Value:
    return Value(np.asarray(function(value_of(a), axis=dim, keepdims=keepdim)))


def _truth(function: Callable[..., Any], a: Any, dim: Any = None, keepdim: bool = False) -> Value:
    return Value(np.asarray(function(value_of(a), axis=dim, keepdims=keepdim)))


for _name, (_best, _first) in _EXTREMES.items():
    OPERATORS[f"aten.{_name}.default"] = OPERATORS[f"aten.a{_name}.default"] = partial(_extreme_along, _best)
    OPERATORS[f"aten.{_name}.dim"] = partial(_at, _first)
    OPERATORS[f"aten.arg{_name}.default"] = partial(_place, _first)
_TRUTHS: dict[str, Callable[..., Any]] = {"all": np.all, "any": np.any}
for _name, _truthful in _TRUTHS.items():
    OPERATORS[f"aten.{_name}.default"] = OPERATORS[f"aten.{_name}.dim"] = partial(_truth, _truthful)


@operator("cumsum.default")
def _cumsum(a: Any, dim: int, dtype: Any = None) -> Value:
    x = _summable(a, dtype)
    back = lambda g: np.flip(np.cumsum(np.flip(g, dim), axis=dim), dim)  # noqa: E731
    return absorb(np.cumsum(value_of(x), axis=dim), (x, back))


@operator("softmax.int", "_softmax.default")
def softmax(a: Any, dim: int, dtype: Any = None) -> Value:
    """The softmax along ``dim``."""
    x = cast(a, dtype) if dtype not in (None, False) else a
    shifted = np.exp(value_of(x) - value_of(x).max(axis=dim, keepdims=True))
    y = shifted / shifted.sum(axis=dim, keepdims=True)
    return absorb(y, (x, lambda g: y * (g - (g * y).sum(axis=dim, keepdims=True))))


@operator("log_softmax.int", "_log_softmax.default")
def log_softmax(a: Any, dim: int, dtype: Any = None) -> Value:
    """The logarithm of the softmax along ``dim``."""
    x = cast(a, dtype) if dtype not in (None, False) else a
    shifted = value_of(x) - value_of(x).max(axis=dim, keepdims=True)
    y = shifted - np.log(np.exp(shifted).sum(axis=dim, keepdims=True))
    return absorb(y, (x, lambda g: g - np.exp(y) * g.sum(axis=dim, keepdims=True)))


@operator("logsumexp.default")
def _logsumexp(a: Any, dim: Any, keepdim: bool = False) -> Value:
    x, axes = value_of(a), axes_of(dim)
    top = x.max(axis=axes, keepdims=True)
    wide = np.log(np.exp(x - top).sum(axis=axes, keepdims=True)) + top
    return absorb(wide if keepdim else np.squeeze(wide, axis=axes), (a, lambda g: g.reshape(wide.shape) * np.exp(x - wide)))


@operator("linalg_vector_norm.default", "norm.ScalarOpt_dim")
def _norm(a: Any, power: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    if power not in (None, 2):
        raise ValueError(f"the norm of order {power} is not supported: the engine knows 2")
    x, axes = value_of(a), axes_of(dim)
    wide = np.sqrt((x * x).sum(axis=axes, keepdims=True))
    result = wide if keepdim else wide.reshape(()) if axes is None else np.squeeze(wide, axis=axes)
    back = lambda g: g.reshape(wide.shape) * np.where(wide == 0, 0, x / np.where(wide == 0, 1, wide))  # noqa: E731
    return absorb(result, (a, back))


@operator("prod.default")
def _prod(a: Any, dtype: Any = None) -> Value:
    x = cast(a, dtype or value_of(a).dtype)
    flat = value_of(x).reshape(-1)
    others = np.array([np.prod(np.delete(flat, at)) for at in range(flat.size)], flat.dtype).reshape(shape_of(x))
    return absorb(np.prod(flat), (x, lambda g: g * others))


@operator("topk.default")
def _topk(a: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Any]:  # noqa: A002 - PyTorch's name
    x = value_of(a)
    order = np.argsort(-x if largest else x, axis=dim, kind="stable")
    places = np.take(order, range(k), axis=dim)
    return [OPERATORS["aten.gather.default"](a, dim, places), Value(places)]


@operator("sort.default")
def _sort(a: Any, dim: int = -1, descending: bool = False) -> list[Any]:
    return _topk(a, shape_of(a)[dim], dim, descending)


@operator("argsort.default")
def _argsort(a: Any, dim: int = -1, descending: bool = False) -> Any:
    return _sort(a, dim, descending)[1]


@operator("diff.default")
def _diff(a: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    ends = [part for part in (prepend, a, append) if part is not None]
    found = OPERATORS["aten.cat.default"](ends, dim) if len(ends) > 1 else a
    for _ in range(n):
        size, lead = shape_of(found)[dim], [slice(None)] * (dim % len(shape_of(found)))
        after, before = pick(found, (*lead, slice(1, size))), pick(found, (*lead, slice(0, size - 1)))
        found = subtract(after, before) if value_of(after).dtype != bool else Value(value_of(after) ^ value_of(before))
    return found


@operator("cosine_similarity.default")
def _cosine(a: Any, b: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    norms = [OPERATORS["aten.clamp_min.default"](_norm(part, 2, [dim], True), eps) for part in (a, b)]
    return total(multiply(divide(a, norms[0]), divide(b, norms[1])), (dim,))


@operator("histc.default")
def _histc(a: Any, bins: int = 100, low: Any = 0, high: Any = 0) -> Value:
    x = value_of(a)
    ends = (float(x.min()), float(x.max())) if low == high else (low, high)
    return Value(np.histogram(x, bins=bins, range=ends)[0].astype(x.dtype))
