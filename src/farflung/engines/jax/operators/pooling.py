"""Pooling of images and sequences."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from farflung.engines.jax.operators.products import many
from farflung.engines.jax.operators.table import Tensor, operator

__all__: list[str] = []


def _windows(
    x: Tensor, size: Any, stride: Any, padding: Any, *, ceil: bool
) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Sizes, strides and paddings of windows over all axes of ``x``."""
    count = 1 if isinstance(size, int) else len(size)
    sizes = many(size, count)
    steps = many(stride, count) if stride not in (None, [], ()) else sizes
    pads = []
    for length, width, step, pad in zip(x.shape[-count:], sizes, steps, many(padding, count), strict=True):
        more = 0
        if ceil:
            places = -(-(length + 2 * pad - width) // step) + 1
            places -= (places - 1) * step >= length + pad
            more = max((places - 1) * step + width - length - 2 * pad, 0)
        pads.append((pad, pad + more))
    rest = x.ndim - count
    return [1] * rest + sizes, [1] * rest + steps, [(0, 0)] * rest + pads


@operator("max_pool1d.default", "max_pool2d.default")
def _max_pool(x: Tensor, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False) -> Tensor:
    sizes, steps, pads = _windows(x, size, stride, padding, ceil=ceil)
    count = 1 if isinstance(size, int) else len(size)
    spread = [1] * (x.ndim - count) + many(dilation, count)
    least = np.asarray(-np.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min, x.dtype)
    return lax.reduce_window(x, least, lax.max, sizes, steps, pads, window_dilation=spread)


@operator("avg_pool1d.default", "avg_pool2d.default")
def _avg_pool(x: Tensor, size: Any, stride: Any = (), padding: Any = 0, *rest: Any) -> Tensor:
    """``rest``: whether sizes are rounded up, whether padding counts, and what sums are divided by."""
    defaults = (False, True, None)
    ceil, count_padding, divisor = tuple(rest) + defaults[len(rest) :]
    sizes, steps, pads = _windows(x, size, stride, padding, ceil=ceil)
    zero = np.zeros((), x.dtype)
    total = lax.reduce_window(x, zero, lax.add, sizes, steps, pads)
    if divisor is not None:
        return total / divisor
    if count_padding and not ceil:
        return total / int(np.prod(sizes))
    counted = jnp.ones(x.shape, x.dtype)
    if count_padding:
        plain = many(padding, len([width for width in pads if width != (0, 0)]) or 1)
        counted = jnp.pad(counted, [(0, 0)] * (x.ndim - len(plain)) + [(pad, pad) for pad in plain], constant_values=1)
        pads = [(low - low, high - low) for low, high in pads]
    return total / lax.reduce_window(counted, zero, lax.add, sizes, steps, pads)


@operator("adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default")
def _adaptive_avg_pool(x: Tensor, output: Any) -> Tensor:
    wanted = [output] if isinstance(output, int) else list(output)
    for place, size in enumerate(wanted):
        axis = x.ndim - len(wanted) + place
        length = x.shape[axis]
        bounds = [(at * length // size, -(-(at + 1) * length // size)) for at in range(size)]
        parts = [jnp.mean(lax.slice_in_dim(x, first, last, 1, axis), axis=axis, keepdims=True) for first, last in bounds]
        x = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=axis)
    return x
