"""Strides of arrays in elements: whether each index has a place of its own, and how many elements an array spans."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["distinct", "extent"]


def distinct(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether each index has a place of its own (gaps are allowed: a slice of a larger tensor keeps its strides)."""
    reach = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1):
        if stride < reach:
            return False
        reach = stride * (size - 1) + reach
    return True


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie between the first and the last one, both included (0 for an empty array); no stride is negative."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
