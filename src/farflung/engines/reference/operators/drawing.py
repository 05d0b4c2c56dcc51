"""Operators that draw random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from farflung.engines.reference.draws import Draw
from farflung.engines.reference.operators.table import operator, shape_of
from farflung.engines.reference.tape import Value, multiply, value_of

__all__ = ["dropped"]


def dropped(draw: Draw, a: Any, shape: Sequence[int], p: float) -> Value:
    """``a`` with zeros where the mask of ``shape`` drops, else divided by how likely an element is kept."""
    if p == 1:
        return multiply(a, np.zeros((), value_of(a).dtype))
    kept = draw.kept(tuple(shape), 1 - p, like=value_of(a))
    return multiply(a, kept.astype(value_of(a).dtype) / value_of(a).dtype.type(1 - p))


@operator("dropout.default", draws=True)
def _dropout(draw: Draw | None, a: Any, p: float, train: bool) -> Any:
    return a if draw is None or not train else dropped(draw, a, shape_of(a), p)


@operator("feature_dropout.default", draws=True)
def _feature_dropout(draw: Draw | None, a: Any, p: float, train: bool) -> Any:
    shape = shape_of(a)
    return a if draw is None or not train else dropped(draw, a, (*shape[:2], *[1] * (len(shape) - 2)), p)


@operator("bernoulli.default", draws=True)
def _bernoulli(draw: Draw, a: Any) -> Value:
    odds = value_of(a)
    return Value((draw.uniform(odds.shape) < odds).astype(odds.dtype))  # PyTorch's result is contiguous


@operator("rand.default", draws=True)
def _rand(draw: Draw, size: Sequence[int], **_: Any) -> Value:
    return Value(draw.uniform(tuple(size)))


@operator("rand_like.default", draws=True)
def _rand_like(draw: Draw, a: Any, **_: Any) -> Value:
    return Value(draw.uniform(shape_of(a), like=value_of(a)))


@operator("randn.default", draws=True)
def _randn(draw: Draw, size: Sequence[int], **_: Any) -> Value:
    return Value(draw.normal(tuple(size)))


@operator("randn_like.default", draws=True)
def _randn_like(draw: Draw, a: Any, **_: Any) -> Value:
    return Value(draw.normal(shape_of(a), like=value_of(a)))
