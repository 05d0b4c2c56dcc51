"""Elementwise operators: arithmetic, comparisons and activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from farflung.engines.jax.operators.table import Tensor, operator

__all__: list[str] = []

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": jnp.abs,
    "acos": jnp.arccos,
    "asin": jnp.arcsin,
    "atan": jnp.arctan,
    "bitwise_not": jnp.invert,
    "ceil": jnp.ceil,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "erf": lax.erf,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "floor": jnp.floor,
    "hardsigmoid": jax.nn.hard_sigmoid,
    "hardswish": jax.nn.hard_swish,
    "isfinite": jnp.isfinite,
    "isinf": jnp.isinf,
    "isnan": jnp.isnan,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "log_sigmoid": jax.nn.log_sigmoid,
    "logical_not": jnp.logical_not,
    "mish": jax.nn.mish,
    "neg": jnp.negative,
    "reciprocal": jnp.reciprocal,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "round": jnp.round,
    "rsqrt": lax.rsqrt,
    "selu": jax.nn.selu,
    "sigmoid": jax.nn.sigmoid,
    "sign": jnp.sign,
    "silu": jax.nn.silu,
    "sin": jnp.sin,
    "sinh": jnp.sinh,
    "sqrt": jnp.sqrt,
    "square": jnp.square,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "trunc": jnp.trunc,
}
_BINARY: dict[str, tuple[tuple[str, ...], Callable[[Any, Any], Tensor]]] = {
    "mul": (("Tensor", "Scalar"), jnp.multiply),
    "eq": (("Tensor", "Scalar"), jnp.equal),
    "ne": (("Tensor", "Scalar"), jnp.not_equal),
    "lt": (("Tensor", "Scalar"), jnp.less),
    "le": (("Tensor", "Scalar"), jnp.less_equal),
    "gt": (("Tensor", "Scalar"), jnp.greater),
    "ge": (("Tensor", "Scalar"), jnp.greater_equal),
    "remainder": (("Tensor", "Scalar"), jnp.remainder),
    "fmod": (("Scalar",), jnp.fmod),
    "__and__": (("Tensor",), jnp.bitwise_and),
    "__or__": (("Tensor",), jnp.bitwise_or),
    "__xor__": (("Tensor",), jnp.bitwise_xor),
    "bitwise_and": (("Tensor",), jnp.bitwise_and),
    "bitwise_or": (("Tensor",), jnp.bitwise_or),
    "logical_and": (("default",), jnp.logical_and),
    "logical_or": (("default",), jnp.logical_or),
    "logical_xor": (("default",), jnp.logical_xor),
    "atan2": (("default",), jnp.arctan2),
    "floor_divide": (("default",), jnp.floor_divide),
    "maximum": (("default",), jnp.maximum),
    "minimum": (("default",), jnp.minimum),
    "max": (("other",), jnp.maximum),
    "min": (("other",), jnp.minimum),
}

for _name, _function in _UNARY.items():
    operator(f"{_name}.default")(_function)
for _name, (_overloads, _function_of_two) in _BINARY.items():
    operator(*(f"{_name}.{overload}" for overload in _overloads))(_function_of_two)


@operator("add.Tensor", "add.Scalar")
def _add(x: Tensor, other: Any, alpha: float = 1) -> Tensor:
    return jnp.add(x, other if alpha == 1 else other * alpha)


@operator("sub.Tensor", "sub.Scalar")
def _sub(x: Tensor, other: Any, alpha: float = 1) -> Tensor:
    return jnp.subtract(x, other if alpha == 1 else other * alpha)


@operator("rsub.Scalar")
def _rsub(x: Tensor, other: Any, alpha: float = 1) -> Tensor:
    return _sub(other, x, alpha)


@operator("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode")
def _div(x: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode == "floor":
        return jnp.floor_divide(x, other)
    found = jnp.true_divide(x, other)
    return jnp.trunc(found) if rounding_mode == "trunc" else found


@operator("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def _pow(x: Any, exponent: Any) -> Tensor:
    if isinstance(exponent, float) and exponent == 0.5:
        return jnp.sqrt(x)
    if isinstance(exponent, float) and exponent.is_integer() and abs(exponent) <= 4:
        return lax.integer_pow(x, int(exponent))
    return jnp.power(x, exponent)


@operator("addcmul.default")
def _addcmul(x: Tensor, one: Tensor, two: Tensor, *, value: float = 1) -> Tensor:
    return x + value * one * two


@operator("addcdiv.default")
def _addcdiv(x: Tensor, one: Tensor, two: Tensor, *, value: float = 1) -> Tensor:
    return x + value * one / two


@operator("lerp.Scalar", "lerp.Tensor")
def _lerp(x: Tensor, end: Tensor, weight: Any) -> Tensor:
    return jnp.where(jnp.abs(weight) < 0.5, x + weight * (end - x), end - (end - x) * (1 - weight))


@operator("clamp.default", "clamp.Tensor", "hardtanh.default")
def _clamp(x: Tensor, least: Any = None, most: Any = None, *, min: Any = None, max: Any = None) -> Tensor:  # noqa: A002
    least, most = min if least is None else least, max if most is None else most
    x = x if least is None else jnp.maximum(x, least)
    return x if most is None else jnp.minimum(x, most)


operator("clamp_min.default")(jnp.maximum)
operator("clamp_max.default")(jnp.minimum)


@operator("gelu.default")
def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        return jax.nn.gelu(x, approximate=True)
    return x * 0.5 * (1 + lax.erf(x * 0.7071067811865476))


@operator("leaky_relu.default")
def _leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    return jnp.where(x > 0, x, x * slope)


@operator("elu.default")
def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return scale * jnp.where(x > 0, x, alpha * jnp.expm1(input_scale * jnp.minimum(x, 0)))


@operator("softplus.default")
def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return jnp.where(x * beta > threshold, x, jax.nn.softplus(x * beta) / beta)


@operator("prelu.default")
def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    shape = [1] * x.ndim
    if x.ndim > 1:
        shape[1] = weight.size
    return jnp.where(x > 0, x, x * weight.reshape(shape))


@operator("glu.default")
def _glu(x: Tensor, dim: int = -1) -> Tensor:
    first, second = jnp.split(x, 2, axis=dim)
    return first * jax.nn.sigmoid(second)


@operator("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(condition: Tensor, x: Any, other: Any) -> Tensor:
    return jnp.where(condition, x, other)


@operator("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return jnp.where(mask, jnp.asarray(value, x.dtype), x)


@operator("to.dtype")
def _to_dtype(x: Tensor, dtype: Any, *rest: Any, **options: Any) -> Tensor:
    del rest, options
    return x.astype(dtype)


@operator("to.device")
def _to_device(x: Tensor, device: Any, dtype: Any, *rest: Any, **options: Any) -> Tensor:
    del device, rest, options
    return x.astype(dtype)


@operator("to.dtype_layout", "_to_copy.default")
def _to_layout(x: Tensor, *, dtype: Any = None, **options: Any) -> Tensor:
    del options
    return x if dtype is None else x.astype(dtype)


@operator("to.other", "type_as.default")
def _to_other(x: Tensor, other: Tensor, *rest: Any, **options: Any) -> Tensor:
    del rest, options
    return x.astype(other.dtype)


@operator("nan_to_num.default")
def _nan_to_num(x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    return jnp.nan_to_num(x, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf)


operator("farflung.variable")(partial(jnp.asarray))
