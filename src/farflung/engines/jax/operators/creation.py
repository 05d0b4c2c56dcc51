"""Operators that make tensors of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from farflung.engines.jax.operators.table import Tensor, operator

__all__: list[str] = []


@operator("arange.default")
def _arange(end: float, *, dtype: Any = None, **options: Any) -> Tensor:
    return _arange_step(0, end, dtype=dtype, **options)


@operator("arange.start", "arange.start_step")
def _arange_step(start: float, end: float, step: float = 1, *, dtype: Any = None, **options: Any) -> Tensor:
    del options
    kind = jnp.int64 if all(isinstance(item, int) for item in (start, end, step)) else jnp.float32
    return jnp.arange(start, end, step, dtype=kind if dtype is None else dtype)


@operator("full.default")
def _full(size: Sequence[int], value: Any, *, dtype: Any = None, **options: Any) -> Tensor:
    del options
    kind = jnp.bool_ if isinstance(value, bool) else jnp.int64 if isinstance(value, int) else jnp.float32
    return jnp.full(size, value, kind if dtype is None else dtype)


@operator("zeros.default", "empty.memory_format")
def _zeros(size: Sequence[int], *, dtype: Any = None, **options: Any) -> Tensor:
    del options
    return jnp.zeros(size, jnp.float32 if dtype is None else dtype)


@operator("ones.default")
def _ones(size: Sequence[int], *, dtype: Any = None, **options: Any) -> Tensor:
    del options
    return jnp.ones(size, jnp.float32 if dtype is None else dtype)


@operator("zeros_like.default", "empty_like.default")
def _zeros_like(x: Tensor, *, dtype: Any = None, **options: Any) -> Tensor:
    del options
    return jnp.zeros(x.shape, x.dtype if dtype is None else dtype)


@operator("ones_like.default")
def _ones_like(x: Tensor, *, dtype: Any = None, **options: Any) -> Tensor:
    del options
    return jnp.ones(x.shape, x.dtype if dtype is None else dtype)


@operator("full_like.default")
def _full_like(x: Tensor, value: Any, *, dtype: Any = None, **options: Any) -> Tensor:
    del options
    return jnp.full(x.shape, value, x.dtype if dtype is None else dtype)


@operator("new_zeros.default", "new_empty.default")
def _new_zeros(x: Tensor, size: Sequence[int], *, dtype: Any = None, **options: Any) -> Tensor:
    del options
    return jnp.zeros(size, x.dtype if dtype is None else dtype)


@operator("new_ones.default")
def _new_ones(x: Tensor, size: Sequence[int], *, dtype: Any = None, **options: Any) -> Tensor:
    del options
    return jnp.ones(size, x.dtype if dtype is None else dtype)


@operator("new_full.default")
def _new_full(x: Tensor, size: Sequence[int], value: Any, *, dtype: Any = None, **options: Any) -> Tensor:
    del options
    return jnp.full(size, value, x.dtype if dtype is None else dtype)


@operator("scalar_tensor.default")
def _scalar_tensor(value: Any, *, dtype: Any = None, **options: Any) -> Tensor:
    del options
    return jnp.asarray(value, jnp.float32 if dtype is None else dtype)


@operator("linspace.default")
def _linspace(start: float, end: float, steps: int, *, dtype: Any = None, **options: Any) -> Tensor:
    del options
    return jnp.linspace(start, end, steps, dtype=jnp.float32 if dtype is None else dtype)


@operator("one_hot.default")
def _one_hot(x: Tensor, classes: int = -1) -> Tensor:
    return (x[..., None] == jnp.arange(classes)).astype(jnp.int64)
