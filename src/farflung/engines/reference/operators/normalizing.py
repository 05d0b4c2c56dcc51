"""Normalizations and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from farflung.engines.reference.operators.reductions import log_softmax, mean, variance
from farflung.engines.reference.operators.table import OPERATORS, operator, shape_of
from farflung.engines.reference.tape import (
    Value,
    absorb,
    add,
    cast,
    divide,
    multiply,
    pick,
    reshape,
    subtract,
    total,
    transpose,
    value_of,
    where,
)

__all__: list[str] = []

_MEAN, _SUM = 1, 2


def _scaled(a: Any, weight: Any, bias: Any) -> Any:
    found = a if weight is None else multiply(a, weight)
    return found if bias is None else add(found, bias)


def _normalized(a: Any, axes: tuple[int, ...], eps: float) -> Any:
    centered = subtract(a, mean(a, axes, keep=True))
    spread = mean(multiply(centered, centered), axes, keep=True)
    return multiply(centered, OPERATORS["aten.rsqrt.default"](add(spread, eps)))


@operator("layer_norm.default")
def _layer_norm(
    a: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, _: bool = False
) -> Any:
    axes = tuple(range(-len(normalized_shape), 0))
    return _scaled(_normalized(a, axes, eps), weight, bias)


@operator("rms_norm.default")
def _rms_norm(a: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    axes = tuple(range(-len(normalized_shape), 0))
    small = float(np.finfo(value_of(a).dtype).eps) if eps is None else eps
    size = mean(multiply(a, a), axes, keep=True)
    return _scaled(multiply(a, OPERATORS["aten.rsqrt.default"](add(size, small))), weight, None)


@operator("group_norm.default")
def _group_norm(a: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, _: bool = False) -> Any:
    shape = shape_of(a)
    found = reshape(_normalized(reshape(a, (shape[0], num_groups, -1)), (2,), eps), shape)
    return _scaled(found, _by_channel(weight, len(shape)), _by_channel(bias, len(shape)))


def _by_channel(a: Any, rank: int) -> Any:
    return None if a is None else reshape(a, (1, -1, *[1] * (rank - 2)))


@operator("farflung.batch_norm")
def _batch_norm_training(a: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, *rates: float) -> list[Any]:
    momentum, eps = rates
    rank = len(shape_of(a))
    axes = (0, *range(2, rank))
    found = _scaled(_normalized(a, axes, eps), _by_channel(weight, rank), _by_channel(bias, rank))
    plain = value_of(a)
    news = [mean(plain, axes, keep=False), variance(plain, axes, 1, keep=False)]
    olds = [value_of(running_mean), value_of(running_var)]
    kept = [Value((1 - momentum) * old + momentum * new.array) for old, new in zip(olds, news, strict=True)]
    return [found, *kept]


@operator("batch_norm.default")
def _batch_norm(a: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, *rest: Any) -> Any:
    training, _, eps, _ = rest
    rank = len(shape_of(a))
    if training:
        return _scaled(_normalized(a, (0, *range(2, rank)), eps), _by_channel(weight, rank), _by_channel(bias, rank))
    spread = OPERATORS["aten.rsqrt.default"](add(_by_channel(running_var, rank), eps))
    found = multiply(subtract(a, _by_channel(running_mean, rank)), spread)
    return _scaled(found, _by_channel(weight, rank), _by_channel(bias, rank))


def _reduced(a: Any, reduction: int) -> Any:
    return mean(a, None, keep=False) if reduction == _MEAN else total(a) if reduction == _SUM else a


@operator("mse_loss.default")
def _mse(a: Any, b: Any, reduction: int = _MEAN) -> Any:
    apart = subtract(a, b)
    return _reduced(multiply(apart, apart), reduction)


@operator("l1_loss.default")
def _l1(a: Any, b: Any, reduction: int = _MEAN) -> Any:
    return _reduced(OPERATORS["aten.abs.default"](subtract(a, b)), reduction)


@operator("smooth_l1_loss.default")
def _smooth_l1(a: Any, b: Any, reduction: int = _MEAN, beta: float = 1.0) -> Any:
    apart = subtract(a, b)
    size = OPERATORS["aten.abs.default"](apart)
    near = value_of(size) < beta
    return _reduced(where(near, multiply(multiply(apart, apart), 0.5 / (beta or 1)), subtract(size, 0.5 * beta)), reduction)


@operator("huber_loss.default")
def _huber(a: Any, b: Any, reduction: int = _MEAN, delta: float = 1.0) -> Any:
    apart = subtract(a, b)
    size = OPERATORS["aten.abs.default"](apart)
    near = value_of(size) < delta
    far = multiply(subtract(size, 0.5 * delta), delta)
    return _reduced(where(near, multiply(multiply(apart, apart), 0.5), far), reduction)


@operator("binary_cross_entropy_with_logits.default")
def _bce_logits(a: Any, b: Any, weight: Any = None, pos_weight: Any = None, reduction: int = _MEAN) -> Any:
    positive = OPERATORS["aten.log_sigmoid.default"](a)
    negative = OPERATORS["aten.log_sigmoid.default"](OPERATORS["aten.neg.default"](a))
    scaled = positive if pos_weight is None else multiply(positive, pos_weight)
    lost = multiply(add(multiply(scaled, b), multiply(negative, subtract(1, b))), -1)
    return _reduced(lost if weight is None else multiply(lost, weight), reduction)


@operator("binary_cross_entropy.default")
def _bce(a: Any, b: Any, weight: Any = None, reduction: int = _MEAN) -> Any:
    x = value_of(a)
    with np.errstate(divide="ignore"):
        logs = [np.maximum(np.log(part), -100) for part in (x, 1 - x)]
    y = value_of(b)
    slope = (x - y) / np.maximum(x * (1 - x), 1e-12)
    lost = absorb(-(y * logs[0] + (1 - y) * logs[1]), (a, lambda g: g * slope), (b, lambda g: g * (logs[1] - logs[0])))
    return _reduced(lost if weight is None else multiply(lost, weight), reduction)


@operator("kl_div.default")
def _kl_div(a: Any, b: Any, reduction: int = _MEAN, log_target: bool = False) -> Any:
    if log_target:
        return _reduced(multiply(OPERATORS["aten.exp.default"](b), subtract(b, a)), reduction)
    y = value_of(b)
    safe = where(y > 0, b, 1.0)
    logs = OPERATORS["aten.log.default"](safe)
    return _reduced(where(y > 0, multiply(b, subtract(logs, a)), 0.0), reduction)


@operator("nll_loss.default", "nll_loss2d.default", "nll_loss_nd.default")
def _nll(a: Any, target: Any, weight: Any = None, reduction: int = _MEAN, ignore_index: int = -100) -> Any:
    """The classes of ``a`` are its axis 1, or its only one."""
    shape, classes = shape_of(a), value_of(target)
    classes_last = transpose(a, (0, *range(2, len(shape)), 1)) if len(shape) > 1 else a
    rows = reshape(classes_last, (-1, shape[min(len(shape) - 1, 1)]))
    flat = classes.reshape(-1)
    counted = flat != ignore_index
    chosen = np.where(counted, flat, 0)
    own = np.ones(flat.shape, value_of(a).dtype) if weight is None else value_of(weight)[chosen]
    own = own * counted
    lost = multiply(pick(rows, (np.arange(flat.size), chosen)), -own)
    if reduction == _MEAN:
        with np.errstate(invalid="ignore", divide="ignore"):
            return divide(total(lost), own.sum())
    return total(lost) if reduction == _SUM else reshape(lost, classes.shape)


@operator("cross_entropy_loss.default")
def _cross_entropy(
    a: Any, target: Any, weight: Any = None, reduction: int = _MEAN, ignore_index: int = -100, label_smoothing: float = 0.0
) -> Any:
    axis = 0 if len(shape_of(a)) == 1 else 1
    logs = log_softmax(a, axis)
    goal = value_of(target)
    if np.issubdtype(goal.dtype, np.inexact):
        return _soft_cross_entropy(logs, target, weight, reduction, label_smoothing, axis)
    hard = _nll(logs, target, weight, reduction, ignore_index)
    if not label_smoothing:
        return hard
    classes = shape_of(a)[axis]
    counted = goal != ignore_index
    shaped = [1] * len(shape_of(a))
    shaped[axis] = classes
    scaled = logs if weight is None else multiply(logs, value_of(weight).reshape(shaped))
    even = multiply(where(counted, total(scaled, (axis,)), 0.0), -1)
    if reduction == _MEAN:
        count = counted.sum() if weight is None else value_of(weight)[np.where(counted, goal, 0)][counted].sum()
        even = divide(total(even), cast(np.asarray(count), value_of(a).dtype))
    elif reduction == _SUM:
        even = total(even)
    return add(multiply(hard, 1 - label_smoothing), multiply(even, label_smoothing / classes))


def _soft_cross_entropy(logs: Any, target: Any, weight: Any, reduction: int, smoothing: float, axis: int) -> Any:
    shape = shape_of(logs)
    goal = add(multiply(target, 1 - smoothing), smoothing / shape[axis]) if smoothing else target
    if weight is not None:
        shaped = [1] * len(shape)
        shaped[axis] = shape[axis]
        goal = multiply(goal, value_of(weight).reshape(shaped))
    lost = multiply(total(multiply(logs, goal), (axis,)), -1)
    count = max(int(np.prod(shape)) // shape[axis], 1)
    return multiply(total(lost), 1 / count) if reduction == _MEAN else total(lost) if reduction == _SUM else lost
