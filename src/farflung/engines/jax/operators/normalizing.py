"""Normalization over axes, groups and batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from farflung.engines.jax.operators.table import Tensor, operator

__all__: list[str] = []


def _wide(x: Tensor) -> Tensor:
    """Statistics of 16-bit numbers are computed in float32."""
    return x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x


def _scaled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


@operator("layer_norm.default")
def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor = None, bias: Tensor = None, eps: float = 1e-5, cudnn: bool = True
) -> Tensor:
    del cudnn
    axes, wide = tuple(range(-len(shape), 0)), _wide(x)
    centered = wide - jnp.mean(wide, axis=axes, keepdims=True)
    variance = jnp.mean(jnp.square(centered), axis=axes, keepdims=True)
    return _scaled(centered * lax.rsqrt(variance + eps), weight, bias).astype(x.dtype)


@operator("rms_norm.default")
def _rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor = None, eps: float | None = None) -> Tensor:
    axes, wide = tuple(range(-len(shape), 0)), _wide(x)
    least = float(jnp.finfo(wide.dtype).eps) if eps is None else eps
    return _scaled(wide * lax.rsqrt(jnp.mean(jnp.square(wide), axis=axes, keepdims=True) + least), weight, None).astype(x.dtype)


@operator("group_norm.default")
def _group_norm(
    x: Tensor, groups: int, weight: Tensor = None, bias: Tensor = None, eps: float = 1e-5, cudnn: bool = True
) -> Tensor:
    del cudnn
    wide = _wide(x).reshape(x.shape[0], groups, -1)
    centered = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
    found = (centered * lax.rsqrt(variance + eps)).reshape(x.shape)
    return _scaled(found, _channels(weight, x), _channels(bias, x)).astype(x.dtype)


def _channels(item: Tensor, x: Tensor) -> Tensor:
    """``item``, one number for each channel, shaped so that it multiplies ``x``."""
    return None if item is None else item.reshape(1, -1, *(1 for _ in x.shape[2:]))


def _normalized(x: Tensor, mean: Tensor, variance: Tensor, scales: tuple[Tensor, Tensor], eps: float) -> Tensor:
    factor = lax.rsqrt(variance + eps)
    factor = factor if scales[0] is None else factor * scales[0]
    found = (x - _channels(mean, x)) * _channels(factor, x)
    return found if scales[1] is None else found + _channels(scales[1], x)


@operator("farflung.batch_norm")
def _batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *rates: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalization in training; the new running statistics stand beside the result. ``rates``: momentum and epsilon."""
    momentum, eps = rates
    axes, wide = (0, *range(2, x.ndim)), _wide(x)
    count = x.size // x.shape[1]
    own = jnp.mean(wide, axis=axes)
    spread = jnp.mean(jnp.square(wide - _channels(own, x)), axis=axes)
    found = _normalized(wide, own, spread, (weight, bias), eps).astype(x.dtype)
    kept, unbiased = lax.stop_gradient((own, spread * (count / max(count - 1, 1))))
    return (
        found,
        (momentum * kept + (1 - momentum) * mean).astype(mean.dtype),
        (momentum * unbiased + (1 - momentum) * var).astype(var.dtype),
    )


@operator("batch_norm.default")
def _batch_norm_by_statistics(x: Tensor, *args: Any) -> Tensor:
    weight, bias, mean, var, training, _, eps, _ = args
    if training:
        return _batch_norm(x, weight, bias, jnp.zeros(x.shape[1]), jnp.ones(x.shape[1]), 0.0, eps)[0]
    return _normalized(_wide(x), mean, var, (weight, bias), eps).astype(x.dtype)
