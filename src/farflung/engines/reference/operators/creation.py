"""Operators that make arrays from sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from farflung.engines.reference.operators.table import operator, shape_of
from farflung.engines.reference.tape import Value, value_of

__all__: list[str] = []


def _dtype(value: Any) -> Any:
    """The element type that PyTorch gives a number."""
    return np.bool_ if isinstance(value, bool) else np.int64 if isinstance(value, int) else np.float32


@operator("arange.default")
def _arange(end: Any, dtype: Any = None, **_: Any) -> Value:
    return Value(np.arange(end, dtype=dtype or _dtype(end)))


@operator("arange.start", "arange.start_step")
def _arange_start(start: Any, end: Any, step: Any = 1, dtype: Any = None, **_: Any) -> Value:
    known = np.result_type(*(_dtype(item) for item in (start, end, step)))
    return Value(np.arange(start, end, step).astype(dtype or (np.float32 if known.kind == "f" else known)))


@operator("linspace.default")
def _linspace(start: Any, end: Any, steps: int, dtype: Any = None, **_: Any) -> Value:
    return Value(np.linspace(start, end, steps, dtype=dtype or np.float32))


@operator("full.default")
def _full(size: Sequence[int], value: Any, dtype: Any = None, **_: Any) -> Value:
    return Value(np.full(tuple(size), value, dtype or _dtype(value)))


@operator("ones.default")
def _ones(size: Sequence[int], dtype: Any = None, **_: Any) -> Value:
    return Value(np.ones(tuple(size), dtype or np.float32))


@operator("zeros.default")
def _zeros(size: Sequence[int], dtype: Any = None, **_: Any) -> Value:
    return Value(np.zeros(tuple(size), dtype or np.float32))


@operator("scalar_tensor.default")
def _scalar(value: Any, dtype: Any = None, **_: Any) -> Value:
    return Value(np.asarray(value, dtype or np.float32))


@operator("full_like.default")
def _full_like(a: Any, value: Any, dtype: Any = None, **_: Any) -> Value:
    return Value(np.full_like(value_of(a), value, dtype or value_of(a).dtype))


@operator("ones_like.default")
def _ones_like(a: Any, dtype: Any = None, **_: Any) -> Value:
    return _full_like(a, 1, dtype)


@operator("zeros_like.default")
def _zeros_like(a: Any, dtype: Any = None, **_: Any) -> Value:
    return _full_like(a, 0, dtype)


@operator("new_full.default")
def _new_full(a: Any, size: Sequence[int], value: Any, dtype: Any = None, **_: Any) -> Value:
    return Value(np.full(tuple(size), value, dtype or value_of(a).dtype))


@operator("new_ones.default")
def _new_ones(a: Any, size: Sequence[int], dtype: Any = None, **_: Any) -> Value:
    return _new_full(a, size, 1, dtype)


@operator("new_zeros.default")
def _new_zeros(a: Any, size: Sequence[int], dtype: Any = None, **_: Any) -> Value:
    return _new_full(a, size, 0, dtype)


@operator("eye.default", "eye.m")
def _eye(n: int, m: int | None = None, dtype: Any = None, **_: Any) -> Value:
    return Value(np.eye(n, m, dtype=dtype or np.float32))


@operator("one_hot.default")
def _one_hot(a: Any, num_classes: int = -1) -> Value:
    classes = value_of(a)
    count = int(classes.max()) + 1 if num_classes < 0 else num_classes
    return Value((classes[..., None] == np.arange(count)).astype(np.int64).reshape(*shape_of(a), count))
