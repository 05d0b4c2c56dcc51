"""Sums, means, extremes, orders and running sums."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from farflung.engines.jax.operators.table import Tensor, operator

__all__: list[str] = []


def _axes(dim: Any) -> Any:
    """``None`` and an empty list mean all axes."""
    if dim is None or isinstance(dim, int):
        return dim
    return tuple(dim) or None


@operator("sum.dim_IntList")
def _sum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    kind = dtype if dtype is not None else jnp.int64 if not jnp.issubdtype(x.dtype, jnp.inexact) else None
    return jnp.sum(x, axis=_axes(dim), keepdims=keepdim, dtype=kind)


@operator("mean.dim")
def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return jnp.mean(x, axis=_axes(dim), keepdims=keepdim, dtype=dtype)


@operator("sum.default")
def _sum_all(x: Tensor, *, dtype: Any = None) -> Tensor:
    return _sum(x, dtype=dtype)


@operator("mean.default")
def _mean_all(x: Tensor, *, dtype: Any = None) -> Tensor:
    return _mean(x, dtype=dtype)


@operator("prod.default")
def _prod_all(x: Tensor, *, dtype: Any = None) -> Tensor:
    return jnp.prod(x, dtype=dtype)


@operator("prod.dim_int")
def _prod(x: Tensor, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return jnp.prod(x, axis=dim, keepdims=keepdim, dtype=dtype)


@operator("amax.default")
def _amax(x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return jnp.max(x, axis=_axes(dim), keepdims=keepdim)


@operator("amin.default")
def _amin(x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return jnp.min(x, axis=_axes(dim), keepdims=keepdim)


operator("max.default")(jnp.max)
operator("min.default")(jnp.min)
operator("all.default")(jnp.all)
operator("any.default")(jnp.any)


@operator("all.dim")
def _all(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    return jnp.all(x, axis=dim, keepdims=keepdim)


@operator("any.dim")
def _any(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    return jnp.any(x, axis=dim, keepdims=keepdim)


@operator("argmax.default")
def _argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return jnp.argmax(x, axis=dim, keepdims=keepdim)


@operator("argmin.default")
def _argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return jnp.argmin(x, axis=dim, keepdims=keepdim)


def _picked(x: Tensor, place: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    index = jnp.expand_dims(place, dim)
    found = jnp.take_along_axis(x, index, axis=dim)
    return (found, index) if keepdim else (jnp.squeeze(found, dim), place)


@operator("max.dim")
def _max(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _picked(x, jnp.argmax(x, axis=dim), dim, keepdim)


@operator("min.dim")
def _min(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _picked(x, jnp.argmin(x, axis=dim), dim, keepdim)


@operator("logsumexp.default")
def _logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    return jax.nn.logsumexp(x, axis=_axes(dim), keepdims=keepdim)


@operator("var.correction")
def _var(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    less: Any = 1 if correction is None else correction
    return jnp.var(x, axis=_axes(dim), ddof=less, keepdims=keepdim)


@operator("std.correction")
def _std(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return jnp.sqrt(_var(x, dim, correction=correction, keepdim=keepdim))


@operator("var_mean.correction")
def _var_mean(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _var(x, dim, correction=correction, keepdim=keepdim), _mean(x, dim, keepdim)


@operator("linalg_vector_norm.default")
def _vector_norm(x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    x, axes = x if dtype is None else x.astype(dtype), _axes(dim)
    if order == 2:
        return jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=keepdim))
    return jnp.power(jnp.sum(jnp.power(jnp.abs(x), order), axis=axes, keepdims=keepdim), 1 / order)


@operator("cumsum.default")
def _cumsum(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    kind = dtype if dtype is not None else jnp.int64 if not jnp.issubdtype(x.dtype, jnp.inexact) else None
    return jnp.cumsum(x, axis=dim, dtype=kind)


@operator("cumprod.default")
def _cumprod(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    return jnp.cumprod(x, axis=dim, dtype=dtype)


@operator("diff.default")
def _diff(x: Tensor, n: int = 1, dim: int = -1, prepend: Tensor = None, append: Tensor = None) -> Tensor:
    return jnp.diff(x, n, axis=dim, prepend=prepend, append=append)


@operator("softmax.int", "_softmax.default")
def _softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    kind = None if dtype is None or isinstance(dtype, bool) else dtype
    return jax.nn.softmax(x if kind is None else x.astype(kind), axis=dim)


@operator("log_softmax.int", "_log_softmax.default")
def _log_softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    kind = None if dtype is None or isinstance(dtype, bool) else dtype
    return jax.nn.log_softmax(x if kind is None else x.astype(kind), axis=dim)


@operator("topk.default")
def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sort: bool = True) -> tuple[Tensor, Tensor]:
    del sort
    moved = jnp.moveaxis(x, dim, -1)
    _, index = lax.top_k(lax.stop_gradient(moved if largest else -moved), k)
    found = jnp.take_along_axis(moved, index, axis=-1)
    return jnp.moveaxis(found, -1, dim), jnp.moveaxis(index, -1, dim).astype(jnp.int64)


@operator("sort.default")
def _sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    index = _argsort(x, dim, descending)
    return jnp.take_along_axis(x, index, axis=dim), index


@operator("argsort.default")
def _argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return jnp.argsort(lax.stop_gradient(x), axis=dim, descending=descending, stable=True)
