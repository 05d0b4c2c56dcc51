"""The random numbers of PyTorch's CPU generator, made with NumPy.

PyTorch seeds a Mersenne twister with the low 32 bits of the key. NumPy has the same generator, so masks and initial values have
the same bits on every engine (normal numbers up to the last bits, which depend on the logarithm and the cosine in use).
Source: MT19937RNGEngine.h and TransformationHelper.h in ATen/core, and ATen/native/cpu/DistributionTemplates.h of PyTorch 2.13.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.random import MT19937

from farflung.engines.base import Array

__all__ = ["Stream"]

_BLOCK = 16  # normal numbers are made in pairs of eight


class Stream:
    """The numbers that a CPU generator gives after ``manual_seed(seed)``."""

    def __init__(self, seed: int) -> None:
        self._twister: Any = MT19937()
        self._twister._legacy_seeding(seed & 0xFFFFFFFF)

    def _words(self, count: int) -> Array:
        found: Array = self._twister.random_raw(count)
        return found

    def _doubles(self, count: int) -> Array:
        """``count`` integers of 53 bits."""
        words = self._words(2 * count)
        found: Array = ((words[::2] << np.uint64(32)) | words[1::2]) & np.uint64((1 << 53) - 1)
        return found

    def uniform(self, shape: tuple[int, ...], dtype: str = "float32") -> Array:
        """Numbers of [0, 1) with as many bits as the element type has."""
        count = prod(shape)
        if dtype == "float64":
            return (self._doubles(count) * 2.0**-53).reshape(shape)
        digits = {"float32": 24, "float16": 11, "bfloat16": 8}[dtype]
        words = (self._words(count) & np.uint64((1 << digits) - 1)).astype(np.float32)
        return (words * np.float32(2.0**-digits)).reshape(shape)

    def kept(self, shape: tuple[int, ...], probability: float) -> Array:
        """True with ``probability`` (``bernoulli_``)."""
        found: Array = (self._doubles(prod(shape)) * 2.0**-53 < probability).reshape(shape)
        return found

    def normal(
        self, shape: tuple[int, ...], mean: float = 0.0, std: float = 1.0, *, dense: bool = True, dtype: str = "float32"
    ) -> Array:
        """Normal numbers. PyTorch makes those of a tensor that is not ``dense`` and row-major one by one."""
        count = prod(shape)
        if count < _BLOCK or not dense:
            return self._few_normal(count, mean, std).astype(dtype).reshape(shape)
        data = self.uniform((count,), dtype)
        whole = count - count % _BLOCK
        found = np.empty(count, dtype)
        found[:whole] = _box_muller(data[:whole], mean, std)
        if whole < count:  # the last block is made anew and overlaps
            found[-_BLOCK:] = _box_muller(self.uniform((_BLOCK,), dtype), mean, std)
        return found.reshape(shape)

    def _few_normal(self, count: int, mean: float, std: float) -> Array:
        pairs = (self._doubles(2 * (-(-count // 2))) * 2.0**-53).reshape(-1, 2)
        radius, angle = np.sqrt(-2.0 * np.log1p(-pairs[:, 1])), 2.0 * np.pi * pairs[:, 0]
        both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        found: Array = both.reshape(-1)[:count] * std + mean
        return found


def _box_muller(data: Array, mean: float, std: float) -> Array:
    kind = data.dtype.type
    halves = data.reshape(-1, 2, _BLOCK // 2)
    radius = np.sqrt(kind(-2) * np.log(kind(1) - halves[:, 0]))
    angle = kind(2 * np.pi) * halves[:, 1]
    both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    # PyTorch multiplies and adds with one rounding.
    found: Array = (both.astype(np.float64) * float(kind(std)) + float(kind(mean))).astype(data.dtype).reshape(-1)
    return found
