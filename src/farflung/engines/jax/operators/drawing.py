"""Operators that draw random numbers; ``bits`` holds the numbers, made on the host."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from farflung.engines.jax.operators.table import Tensor, operator

__all__: list[str] = []


@operator("dropout.default", "feature_dropout.default")
def _dropout(x: Tensor, p: float, train: bool, *, bits: Tensor = None) -> Tensor:
    if not train or p == 0:
        return x
    if p == 1:
        return x * jnp.zeros((), x.dtype)
    # As PyTorch rounds: the factor first, in the type of the values.
    factor = jnp.asarray(1, x.dtype) / jnp.asarray(1 - p, x.dtype)
    return x * jnp.where(bits, factor, jnp.zeros((), x.dtype))


@operator("bernoulli.default", "bernoulli.p")
def _bernoulli(x: Tensor, p: float | None = None, *, generator: Any = None, bits: Tensor = None) -> Tensor:
    del generator
    return (bits if p is not None else bits < x).astype(x.dtype)


@operator("rand_like.default", "randn_like.default")
def _like(x: Tensor, *, dtype: Any = None, bits: Tensor = None, **options: Any) -> Tensor:
    del options
    return bits.astype(x.dtype if dtype is None else dtype)
