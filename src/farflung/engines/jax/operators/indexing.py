"""Reading and writing by index. Indices that are out of range are refused on the host (``engines.jax.indices``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from farflung.engines.jax.operators.table import Tensor, operator

__all__: list[str] = []


@operator("embedding.default")
def _embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    del sparse
    if scale_grad_by_freq:
        raise NotImplementedError("scale_grad_by_freq")
    found = jnp.take(weight, indices, axis=0)
    if padding_idx < 0:
        return found
    padding = (indices == padding_idx)[..., None]
    return jnp.where(padding, lax.stop_gradient(found), found)


@operator("gather.default", "take_along_dim.default")
def _gather(x: Tensor, dim: Any, index: Any, *, sparse_grad: bool = False) -> Tensor:
    del sparse_grad
    if not isinstance(dim, int):  # take_along_dim has the index first
        dim, index = index, dim
    if index.ndim == 0:
        return x.reshape(-1)[index]
    kept = tuple(slice(None) if at == dim % x.ndim else slice(0, size) for at, size in enumerate(index.shape))
    return jnp.take_along_axis(x[kept], index, axis=dim)


def _places(index: Tensor, dim: int) -> tuple[Tensor, ...]:
    """For each element of ``index`` its place, with ``index`` at ``dim``."""
    own = [lax.broadcasted_iota(jnp.int64, index.shape, at) for at in range(index.ndim)]
    own[dim % index.ndim] = index
    return tuple(own)


@operator("scatter.src", "scatter.value")
def _scatter(x: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
    if jnp.ndim(src):
        src = src[tuple(slice(0, size) for size in index.shape)]
    return x.at[_places(index, dim)].set(jnp.asarray(src, x.dtype))


@operator("scatter_add.default")
def _scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return x.at[_places(index, dim)].add(src[tuple(slice(0, size) for size in index.shape)].astype(x.dtype))


@operator("index_select.default")
def _index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return jnp.take(x, index, axis=dim)


@operator("index_add.default")
def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    place = (*(slice(None) for _ in range(dim % x.ndim)), index)
    return x.at[place].add((source if alpha == 1 else source * alpha).astype(x.dtype))


@operator("index_copy.default")
def _index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return x.at[(*(slice(None) for _ in range(dim % x.ndim)), index)].set(source.astype(x.dtype))


@operator("index_fill.int_Scalar")
def _index_fill(x: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    return x.at[(*(slice(None) for _ in range(dim % x.ndim)), index)].set(value)


@operator("index.Tensor")
def _index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return x[tuple(slice(None) if index is None else index for index in indices)]


@operator("index_put.default")
def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    place = x.at[tuple(slice(None) if index is None else index for index in indices)]
    values = values.astype(x.dtype)
    return place.add(values) if accumulate else place.set(values)
