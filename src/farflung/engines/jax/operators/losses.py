"""Losses. ``reduction`` is PyTorch's number: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from farflung.engines.jax.operators.table import Tensor, operator

__all__: list[str] = []


def _reduced(losses: Tensor, reduction: int) -> Tensor:
    return losses if reduction == 0 else jnp.mean(losses) if reduction == 1 else jnp.sum(losses)


@operator("mse_loss.default")
def _mse(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return _reduced(jnp.square(x - target), reduction)


@operator("l1_loss.default")
def _l1(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return _reduced(jnp.abs(x - target), reduction)


@operator("smooth_l1_loss.default")
def _smooth_l1(x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> Tensor:
    gap = jnp.abs(x - target)
    return _reduced(jnp.where(gap < beta, 0.5 * gap * gap / beta, gap - 0.5 * beta), reduction)


@operator("huber_loss.default")
def _huber(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    gap = jnp.abs(x - target)
    return _reduced(jnp.where(gap <= delta, 0.5 * gap * gap, delta * (gap - 0.5 * delta)), reduction)


@operator("binary_cross_entropy_with_logits.default")
def _bce_logits(x: Tensor, target: Tensor, weight: Tensor = None, pos_weight: Tensor = None, reduction: int = 1) -> Tensor:
    soft = jax.nn.softplus(-x)
    factor = soft if pos_weight is None else soft * ((pos_weight - 1) * target + 1)
    losses = (1 - target) * x + factor
    return _reduced(losses if weight is None else losses * weight, reduction)


@operator("nll_loss_nd.default", "nll_loss.default", "nll_loss2d.default")
def _nll(x: Tensor, target: Tensor, weight: Tensor = None, reduction: int = 1, ignore: int = -100) -> Tensor:
    axis = 1 if x.ndim > 1 else 0
    chosen = jnp.where(target == ignore, 0, target)
    picked = -jnp.squeeze(jnp.take_along_axis(x, jnp.expand_dims(chosen, axis), axis=axis), axis)
    factors = jnp.where(target == ignore, 0, 1).astype(x.dtype)
    factors = factors if weight is None else factors * weight[chosen]
    losses = picked * factors
    return jnp.sum(losses) / jnp.sum(factors) if reduction == 1 else _reduced(losses, reduction)


@operator("cross_entropy_loss.default")
def _cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor = None, reduction: int = 1, ignore: int = -100, smoothing: float = 0.0
) -> Tensor:
    axis = 1 if x.ndim > 1 else 0
    wide = x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x
    logs = jax.nn.log_softmax(wide, axis=axis)
    if jnp.issubdtype(target.dtype, jnp.floating):
        return _soft_targets(logs, target, weight, reduction, smoothing).astype(x.dtype)
    found = _nll(logs, target, weight, reduction, ignore)
    if not smoothing:
        return found.astype(x.dtype)
    scaled = logs if weight is None else logs * weight.reshape(-1, *(1 for _ in x.shape[axis + 1 :]))
    kept = target != ignore
    smooth = jnp.where(kept, -jnp.sum(scaled, axis=axis), 0)
    if reduction == 1:
        factors = kept.astype(x.dtype) if weight is None else jnp.where(kept, weight[jnp.where(kept, target, 0)], 0)
        smooth = jnp.sum(smooth) / jnp.sum(factors)
    else:
        smooth = _reduced(smooth, reduction)
    return ((1 - smoothing) * found + smoothing / x.shape[axis] * smooth).astype(x.dtype)


def _soft_targets(logs: Tensor, target: Tensor, weight: Any, reduction: int, smoothing: float) -> Tensor:
    axis = 1 if logs.ndim > 1 else 0
    target = target * (1 - smoothing) + smoothing / logs.shape[axis] if smoothing else target
    scaled = logs if weight is None else logs * weight.reshape(-1, *(1 for _ in logs.shape[axis + 1 :]))
    losses = -jnp.sum(scaled * target, axis=axis)
    return jnp.sum(losses) / (losses.size or 1) if reduction == 1 else _reduced(losses, reduction)
