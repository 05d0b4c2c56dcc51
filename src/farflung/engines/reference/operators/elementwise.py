"""Operators that compute each element by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy import special

from farflung.engines.reference.operators.table import OPERATORS, operator
from farflung.engines.reference.tape import (
    Value,
    absorb,
    add,
    cast,
    divide,
    elementwise,
    multiply,
    subtract,
    value_of,
    where,
)

__all__: list[str] = []

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _float_result(x: Any) -> Any:
    """Functions such as ``exp`` give float32 for integers."""
    return x if np.issubdtype(x.dtype, np.inexact) else x.astype(np.float32)


def _unary(function: Callable[[Any], Any], slope: Callable[[Any, Any], Any], a: Any) -> Value:
    x = value_of(a)
    y = np.asarray(function(x)).astype(x.dtype, copy=False)
    return elementwise(a, y, lambda: slope(x, y))


#: Name -> function of x, and derivative from x and the result.
_UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "abs": (np.abs, lambda x, y: np.sign(x)),
    "acos": (np.arccos, lambda x, y: -1 / np.sqrt(1 - x * x)),
    "asin": (np.arcsin, lambda x, y: 1 / np.sqrt(1 - x * x)),
    "atan": (np.arctan, lambda x, y: 1 / (1 + x * x)),
    "ceil": (np.ceil, lambda x, y: 0),
    "cos": (np.cos, lambda x, y: -np.sin(x)),
    "cosh": (np.cosh, lambda x, y: np.sinh(x)),
    "erf": (special.erf, lambda x, y: 2 / np.sqrt(np.pi) * np.exp(-x * x)),
    "erfinv": (special.erfinv, lambda x, y: np.sqrt(np.pi) / 2 * np.exp(y * y)),
    "exp": (np.exp, lambda x, y: y),
    "exp2": (np.exp2, lambda x, y: y * np.log(2)),
    "expm1": (np.expm1, lambda x, y: y + 1),
    "floor": (np.floor, lambda x, y: 0),
    "hardsigmoid": (lambda x: np.clip(x / 6 + 0.5, 0, 1), lambda x, y: np.where((x > -3) & (x < 3), 1 / 6, 0)),
    "hardswish": (
        lambda x: x * np.clip(x + 3, 0, 6) / 6,
        lambda x, y: np.where(x <= -3, 0, np.where(x < 3, x / 3 + 0.5, 1)),
    ),
    "log": (np.log, lambda x, y: 1 / x),
    "log10": (np.log10, lambda x, y: 1 / (x * np.log(10))),
    "log1p": (np.log1p, lambda x, y: 1 / (1 + x)),
    "log2": (np.log2, lambda x, y: 1 / (x * np.log(2))),
    "log_sigmoid": (lambda x: -np.logaddexp(0, -x), lambda x, y: special.expit(-x)),
    "mish": (
        lambda x: x * np.tanh(np.logaddexp(0, x)),
        lambda x, y: np.tanh(np.logaddexp(0, x)) + x * special.expit(x) / np.cosh(np.logaddexp(0, x)) ** 2,
    ),
    "neg": (np.negative, lambda x, y: -1),
    "reciprocal": (lambda x: 1 / x, lambda x, y: -y * y),
    "relu": (lambda x: np.maximum(x, 0), lambda x, y: x > 0),
    "relu6": (lambda x: np.clip(x, 0, 6), lambda x, y: (x > 0) & (x < 6)),
    "round": (np.round, lambda x, y: 0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), lambda x, y: -y / (2 * x)),
    "selu": (
        lambda x: _SELU_SCALE * np.where(x > 0, x, _SELU_ALPHA * np.expm1(np.minimum(x, 0))),
        lambda x, y: _SELU_SCALE * np.where(x > 0, 1, _SELU_ALPHA * np.exp(np.minimum(x, 0))),
    ),
    "sigmoid": (special.expit, lambda x, y: y * (1 - y)),
    "sign": (np.sign, lambda x, y: 0),
    "silu": (lambda x: x * special.expit(x), lambda x, y: special.expit(x) * (1 + x * (1 - special.expit(x)))),
    "sin": (np.sin, lambda x, y: np.cos(x)),
    "sinh": (np.sinh, lambda x, y: np.cosh(x)),
    "sqrt": (np.sqrt, lambda x, y: 1 / (2 * y)),
    "square": (np.square, lambda x, y: 2 * x),
    "tan": (np.tan, lambda x, y: 1 + y * y),
    "tanh": (np.tanh, lambda x, y: 1 - y * y),
    "trunc": (np.trunc, lambda x, y: 0),
}
for _name, (_function, _slope) in _UNARY.items():
    OPERATORS[f"aten.{_name}.default"] = partial(_unary, _function, _slope)

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "ne": np.not_equal,
}


def _plain(function: Callable[..., Any], *operands: Any) -> Value:
    """A function without a gradient."""
    return Value(np.asarray(function(*(value_of(operand) for operand in operands))))


for _name, _compare in _COMPARE.items():
    for _kind in ("Scalar", "Tensor"):
        OPERATORS[f"aten.{_name}.{_kind}"] = partial(_plain, _compare)
_LOGIC: dict[str, Callable[..., Any]] = {
    "__and__.Tensor": np.bitwise_and,
    "__or__.Tensor": np.bitwise_or,
    "__xor__.Tensor": np.bitwise_xor,
    "bitwise_and.Tensor": np.bitwise_and,
    "bitwise_not.default": np.invert,
    "bitwise_or.Tensor": np.bitwise_or,
    "floor_divide.default": np.floor_divide,
    "isfinite.default": np.isfinite,
    "isinf.default": np.isinf,
    "isnan.default": np.isnan,
    "logical_and.default": np.logical_and,
    "logical_not.default": np.logical_not,
    "logical_or.default": np.logical_or,
    "logical_xor.default": np.logical_xor,
}
for _name, _logic in _LOGIC.items():
    OPERATORS[f"aten.{_name}"] = partial(_plain, _logic)


@operator("add.Tensor", "add.Scalar")
def _add(a: Any, b: Any, alpha: Any = 1) -> Value:
    return add(a, b if alpha == 1 else multiply(b, alpha))


@operator("sub.Tensor", "sub.Scalar")
def _sub(a: Any, b: Any, alpha: Any = 1) -> Value:
    return subtract(a, b if alpha == 1 else multiply(b, alpha))


@operator("rsub.Scalar")
def _rsub(a: Any, b: Any, alpha: Any = 1) -> Value:
    return subtract(b, a if alpha == 1 else multiply(a, alpha))


operator("mul.Tensor", "mul.Scalar")(multiply)
operator("div.Tensor", "div.Scalar")(divide)
operator("where.self", "where.Scalar", "where.ScalarOther", "where.ScalarSelf")(where)


@operator("addcdiv.default")
def _addcdiv(a: Any, b: Any, c: Any, value: Any = 1) -> Value:
    return add(a, multiply(divide(b, c), value))


@operator("addcmul.default")
def _addcmul(a: Any, b: Any, c: Any, value: Any = 1) -> Value:
    return add(a, multiply(multiply(b, c), value))


@operator("lerp.Scalar", "lerp.Tensor")
def _lerp(a: Any, b: Any, weight: Any) -> Value:
    return add(a, multiply(subtract(b, a), weight))


@operator("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def _pow(a: Any, b: Any) -> Value:
    x, y = value_of(a), value_of(b)
    result = np.power(x, y)
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithm = np.log(np.where(np.asarray(x) > 0, x, 1))
    return absorb(
        result,
        (a, lambda g: g * y * np.where(np.equal(y, 0), 0, np.power(x, np.where(np.equal(y, 0), 1, np.subtract(y, 1))))),
        (b, lambda g: g * result * logarithm),
    )


@operator("maximum.default", "max.other")
def _maximum(a: Any, b: Any) -> Value:
    return _extreme(a, b, np.maximum, np.greater)


@operator("minimum.default", "min.other")
def _minimum(a: Any, b: Any) -> Value:
    return _extreme(a, b, np.minimum, np.less)


def _extreme(a: Any, b: Any, function: Any, wins: Any) -> Value:
    """Where both are equal, each gets half of the gradient."""
    x, y = value_of(a), value_of(b)
    share = np.where(np.equal(x, y), 0.5, wins(x, y))
    return absorb(function(x, y), (a, lambda g: g * share), (b, lambda g: g * (1 - share)))


@operator("clamp.default", "clamp.Tensor")
def _clamp(a: Any, low: Any = None, high: Any = None, **bounds: Any) -> Value:
    low, high = bounds.get("min", low), bounds.get("max", high)
    found = a
    if low is not None:
        found = where(value_of(found) < value_of(low), low, found)
    if high is not None:
        found = where(value_of(found) > value_of(high), high, found)
    return cast(found, value_of(a).dtype)


@operator("clamp_min.default")
def _clamp_min(a: Any, low: Any) -> Value:
    return _clamp(a, low)


@operator("clamp_max.default")
def _clamp_max(a: Any, high: Any) -> Value:
    return _clamp(a, None, high)


@operator("hardtanh.default")
def _hardtanh(a: Any, min_val: Any = -1, max_val: Any = 1) -> Value:
    x = value_of(a)
    return elementwise(a, np.clip(x, min_val, max_val), lambda: (x > min_val) & (x < max_val))


@operator("gelu.default")
def _gelu(a: Any, approximate: str = "none") -> Value:
    x = value_of(a)
    if approximate == "tanh":
        factor = np.sqrt(2 / np.pi)
        bend = np.tanh(factor * (x + 0.044715 * x**3))
        slope = lambda: (1 + bend) / 2 + x / 2 * (1 - bend * bend) * factor * (1 + 3 * 0.044715 * x * x)  # noqa: E731
        return elementwise(a, (x / 2 * (1 + bend)).astype(x.dtype), slope)
    share = (1 + special.erf(x / np.sqrt(2))) / 2
    return elementwise(a, (x * share).astype(x.dtype), lambda: share + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi))


@operator("leaky_relu.default")
def _leaky_relu(a: Any, negative_slope: Any = 0.01) -> Value:
    x = value_of(a)
    return elementwise(a, np.where(x > 0, x, x * negative_slope), lambda: np.where(x > 0, 1, negative_slope))


@operator("elu.default")
def _elu(a: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    x = value_of(a)
    low = np.minimum(x, 0) * input_scale
    result = np.where(x > 0, x * scale, alpha * scale * np.expm1(low)).astype(x.dtype)
    return elementwise(a, result, lambda: np.where(x > 0, scale, alpha * scale * input_scale * np.exp(low)))


@operator("celu.default")
def _celu(a: Any, alpha: Any = 1) -> Value:
    return _elu(a, alpha, 1, 1 / alpha)


@operator("softplus.default")
def _softplus(a: Any, beta: Any = 1, threshold: Any = 20) -> Value:
    x = value_of(a)
    plain = x * beta > threshold
    result = np.where(plain, x, np.logaddexp(0, np.where(plain, 0, x * beta)) / beta).astype(x.dtype)
    return elementwise(a, result, lambda: np.where(plain, 1, special.expit(x * beta)))


@operator("softshrink.default")
def _softshrink(a: Any, lambd: Any = 0.5) -> Value:
    x = value_of(a)
    return elementwise(a, np.sign(x) * np.maximum(np.abs(x) - lambd, 0), lambda: np.abs(x) > lambd)


@operator("threshold.default")
def _threshold(a: Any, threshold: Any, value: Any) -> Value:
    return where(value_of(a) > threshold, a, value)


@operator("prelu.default")
def _prelu(a: Any, weight: Any) -> Value:
    x, slope = value_of(a), value_of(weight)
    sizes = [1] * x.ndim
    if x.ndim > 1:
        sizes[1] = slope.size
    wide = slope.reshape(sizes)
    axes = tuple(axis for axis in range(x.ndim) if sizes[axis] == 1)
    kept = lambda g: np.where(x > 0, 0, g * x).sum(axis=axes).reshape(slope.shape)  # noqa: E731
    parts = [(a, lambda g: g * np.where(x > 0, 1, wide)), (weight, kept)]
    parents = [(operand, pull) for operand, pull in parts if isinstance(operand, Value)]
    return Value(np.where(x > 0, x, x * wide), parents)


@operator("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(a: Any, mask: Any, value: Any) -> Value:
    return where(mask, cast(value, value_of(a).dtype) if isinstance(value, Value) else value, a)


@operator("tril.default")
def _tril(a: Any, diagonal: int = 0) -> Value:
    return multiply(a, np.tril(np.ones_like(value_of(a)), diagonal))


@operator("triu.default")
def _triu(a: Any, diagonal: int = 0) -> Value:
    return multiply(a, np.triu(np.ones_like(value_of(a)), diagonal))


@operator("glu.default")
def _glu(a: Any, dim: int = -1) -> Value:
    from farflung.engines.reference.operators.views import split_evenly

    first, second = split_evenly(a, value_of(a).shape[dim] // 2, dim)
    return multiply(first, OPERATORS["aten.sigmoid.default"](second))


@operator("farflung.variable")
def _variable(value: Any) -> Any:
    return value
