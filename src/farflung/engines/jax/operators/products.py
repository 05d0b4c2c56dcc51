"""Matrix products, convolutions and attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from farflung.engines.jax.operators.table import Tensor, operator

__all__ = ["many"]

operator("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default")(jnp.matmul)


@operator("linear.default")
def _linear(x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
    found = lax.dot_general(x, weight, (((x.ndim - 1,), (weight.ndim - 1,)), ((), ())))
    return found if bias is None else found + bias


@operator("addmm.default", "baddbmm.default", "addmv.default")
def _addmm(x: Tensor, one: Tensor, two: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    found = jnp.matmul(one, two)
    return (found if alpha == 1 else alpha * found) + (x if beta == 1 else beta * x)


@operator("linalg_solve_triangular.default")
def _solve_triangular(x: Tensor, other: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    batch = jnp.broadcast_shapes(x.shape[:-2], other.shape[:-2])
    matrix = jnp.broadcast_to(x, (*batch, *x.shape[-2:]))
    right = jnp.broadcast_to(other, (*batch, *other.shape[-2:]))
    return lax.linalg.triangular_solve(matrix, right, left_side=left, lower=not upper, unit_diagonal=unitriangular)


@operator("einsum.default")
def _einsum(equation: str, tensors: Sequence[Tensor], *, path: Any = None) -> Tensor:
    del path
    return jnp.einsum(equation, *tensors)


@operator("tensordot.default")
def _tensordot(x: Tensor, other: Tensor, dims: Sequence[int], dims_other: Sequence[int]) -> Tensor:
    return jnp.tensordot(x, other, (tuple(dims), tuple(dims_other)))


@operator("outer.default")
def _outer(x: Tensor, other: Tensor) -> Tensor:
    return jnp.outer(x, other)


def many(value: Any, count: int) -> list[int]:
    """``value`` for each of ``count`` axes."""
    items = [value] if isinstance(value, int) else list(value)
    return items * count if len(items) == 1 else items


@operator("conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding", "conv3d.padding")
def _convolution(x: Tensor, weight: Tensor, bias: Tensor = None, stride: Any = 1, padding: Any = 0, *rest: Any) -> Tensor:
    """``rest``: dilation and the number of groups."""
    dilation, groups = [*rest, 1, 1][:2]
    count = weight.ndim - 2
    spread = many(dilation, count)
    if isinstance(padding, str):
        whole = [gap * (size - 1) for gap, size in zip(spread, weight.shape[2:], strict=True)]
        pads = [(all_ // 2, all_ - all_ // 2) if padding == "same" else (0, 0) for all_ in whole]
    else:
        pads = [(pad, pad) for pad in many(padding, count)]
    alone = x.ndim == count + 1
    found = lax.conv_general_dilated(
        x[None] if alone else x,
        weight,
        many(stride, count),
        pads,
        rhs_dilation=spread,
        feature_group_count=groups,
        dimension_numbers=_LAYOUTS[count],
    )
    found = found[0] if alone else found
    return found if bias is None else found + bias.reshape(-1, *(1 for _ in range(count)))


_LAYOUTS = {
    1: ("NCH", "OIH", "NCH"),
    2: ("NCHW", "OIHW", "NCHW"),
    3: ("NCHWD", "OIHWD", "NCHWD"),
}


@operator("scaled_dot_product_attention.default")
def _attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, bits: Tensor = None, **options: Any) -> Tensor:
    """``rest`` and ``options``: the mask, the rate of the dropout, whether it is causal, the scale, and grouped heads."""
    given = {**dict(zip(("attn_mask", "dropout_p", "is_causal"), rest, strict=False)), **options}
    mask, dropout, scale = given.get("attn_mask"), given.get("dropout_p", 0.0), given.get("scale")
    if given.get("enable_gqa"):
        times = query.shape[-3] // key.shape[-3]
        key, value = jnp.repeat(key, times, axis=-3), jnp.repeat(value, times, axis=-3)
    size = 1 / sqrt(query.shape[-1]) if scale is None else scale
    scores = jnp.matmul(query, jnp.swapaxes(key, -1, -2)) * size
    if given.get("is_causal"):
        rows, columns = scores.shape[-2:]
        mask = jnp.tril(jnp.ones((rows, columns), bool))
    if mask is None:
        weights = jax.nn.softmax(scores, axis=-1)
    elif mask.dtype == bool:
        # A row without any element gives zeros, as in PyTorch.
        some = jnp.any(mask, axis=-1, keepdims=True)
        weights = jax.nn.softmax(jnp.where(some, jnp.where(mask, scores, -jnp.inf), 0), axis=-1)
        weights = jnp.where(some, weights, 0)
    else:
        weights = jax.nn.softmax(scores + mask.astype(scores.dtype), axis=-1)
    if dropout and bits is not None:
        weights = jnp.where(bits, weights / (1 - dropout), 0).astype(weights.dtype)
    return jnp.matmul(weights, value)
