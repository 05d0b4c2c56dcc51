"""Rotation before quantization: signs by a key, then the Hadamard transform of chunks, which spreads what stands out.

A chunk of n = 2^m elements is multiplied by random signs (bit j mod 64 of word j // 64 of the seed: 1 is minus) and by the
Hadamard matrix divided by sqrt(n); the inverse takes the same steps in the opposite order. Lengths stay, so an error after the
rotation is as large as the same error before it, and a block no longer pays for its one outlier. N. Ailon, B. Chazelle,
"Approximate nearest neighbors and the fast Johnson-Lindenstrauss transform", 2006; for activations: S. Ashkboos et al.,
"QuaRot", 2024. There are only sums and differences in a fixed order: the same bits on every machine. What is left after the
last whole chunk stays as it is. Cost: m + 4 passes over blocks in cache.
"""

from __future__ import annotations

import numpy as np

from farflung.codecs.base import Array
from farflung.codecs.keys import signs

__all__ = ["rotate", "unrotate"]

_RUN = 1 << 16


def rotate(flat: Array, chunk: int, seed: int) -> Array:
    """A rotated copy of 1-D ``flat`` (float32 or float64) in chunks of ``chunk``, a power of two."""
    result = flat.copy()
    turned = signs(seed, chunk).astype(flat.dtype)
    for part in _runs(result, chunk):
        np.multiply(part, turned, out=part)
        _transform(part)
    return result


def unrotate(flat: Array, chunk: int, seed: int) -> Array:
    """The inverse of ``rotate``, in place."""
    turned = signs(seed, chunk).astype(flat.dtype)
    for part in _runs(flat, chunk):
        _transform(part)
        np.multiply(part, turned, out=part)
    return flat


def _runs(flat: Array, chunk: int) -> list[Array]:
    """The whole chunks as matrices of some rows that fit a cache."""
    rows = flat[: flat.size // chunk * chunk].reshape(-1, chunk)
    step = max(1, _RUN // chunk)
    return [rows[first : first + step] for first in range(0, len(rows), step)]


def _transform(rows: Array) -> None:
    """Hadamard transform of each row, in place, divided by the root of its length; it works on the transpose, whose rows are
    long, so that each sum runs over memory that lies together."""
    half, (count, chunk) = 1, rows.shape
    turned = np.ascontiguousarray(rows.T)
    with np.errstate(all="ignore"):
        while half < chunk:
            pairs = turned.reshape(-1, 2, half * count)
            low, high = pairs[:, 0], pairs[:, 1]
            difference = low - high
            low += high
            high[...] = difference
            half *= 2
        np.multiply(turned.T, rows.dtype.type(chunk**-0.5), out=rows)
