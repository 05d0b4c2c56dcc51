"""Which operators compute in bfloat16 under ``precision = "bf16"``, and which in float32: as PyTorch's autocast on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["cast_arguments", "cast_results"]

_NARROW = frozenset(
    {
        "addmm", "baddbmm", "addbmm", "bmm", "conv1d", "conv2d", "conv3d", "einsum", "linear", "matmul", "mm", "mv", "tensordot",
        "scaled_dot_product_attention",
    }
)  # fmt: skip
_WIDE = frozenset(
    {
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy_loss", "huber_loss", "kl_div", "l1_loss",
        "linalg_vector_norm", "mse_loss", "nll_loss", "nll_loss2d", "nll_loss_nd", "prod", "smooth_l1_loss",
    }
)  # fmt: skip


def cast_arguments(target: str) -> Callable[[Any], Any] | None:
    """What bf16 does with each argument of the operator ``target`` (``None``: nothing)."""
    name = target.split(".")[1]
    if name in _NARROW:
        return lambda item: _cast(item, jnp.float32, jnp.bfloat16)
    if name in _WIDE:
        return lambda item: _cast(item, jnp.bfloat16, jnp.float32)
    return None


def _cast(item: Any, found: Any, wanted: Any) -> Any:
    if isinstance(item, list):
        return [_cast(part, found, wanted) for part in item]
    return item.astype(wanted) if isinstance(item, jax.Array) and item.dtype == found else item


def cast_results(result: Any, declared: Any, *, narrow: bool) -> Any:
    """``result`` in the ``declared`` element type; with ``narrow`` bfloat16 may stand for float32."""
    if result.dtype == declared or (narrow and result.dtype == jnp.bfloat16 and declared == jnp.float32):
        return result
    return result.astype(declared)
