"""Frozen weights in 8 or 4 bits: codes and scales, computed with NumPy where the weights are read.

``int8`` has one scale for each row (absolute maximum, symmetric). ``int4`` and ``nf4`` have one scale for each group of up to 64
elements of a row, and two codes in a byte. ``nf4`` chooses from the 16 values of Dettmers et al., "QLoRA", 2023, appendix E,
which are quantiles of a normal distribution; unlike there, scales stay float32. Cost: 8, 4.5 and 4.5 bits for each weight.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farflung.errors import CheckpointError

__all__ = ["METHODS", "NF4", "PARTS", "group_size", "part_shape", "quantized_part", "whole_weight"]

Array = NDArray[Any]

METHODS = ("int8", "int4", "nf4")
#: What an expression can ask for: codes, scales, and the weight that they stand for.
PARTS = tuple(f"{method}_{part}" for method in METHODS for part in ("codes", "scales", "rounded"))
#: The values of nf4, ascending; a code is an index.
NF4: NDArray[np.float32] = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
        *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
_GROUP = 64
#: Codes are made for this number of elements at a time, so that a large weight takes little memory beside itself.
_CHUNK = 1 << 20


def group_size(columns: int) -> int:
    """Elements of a row that share a scale of ``int4`` or ``nf4``."""
    return gcd(columns, _GROUP)


def part_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a part of a weight of ``shape`` ``(rows, columns)``.

    Raises:
        CheckpointError: the weight has no rows, or an odd number of columns for 4 bits.
    """
    method, _, part = name.partition("_")
    if len(shape) != 2 or (method != "int8" and shape[1] % 2):
        raise CheckpointError(
            f"a weight of shape {list(shape)} can't be stored in {method}: leave it out of the quantized layers"
        )
    rows, columns = shape
    if part == "rounded":
        return shape
    if part == "codes":
        return (rows, columns if method == "int8" else columns // 2)
    return (rows, 1 if method == "int8" else columns // group_size(columns))


def quantized_part(name: str, weight: Array) -> Array:
    """A part of ``weight``: ``codes``, ``scales`` (float32), or the weight that they stand for (``rounded``, float32).

    Codes are int8, or uint8 with two codes in a byte, the first one in the low bits.
    """
    method, _, part = name.partition("_")
    rows, columns = weight.shape
    group = columns if method == "int8" else group_size(columns)
    scales = _scales(method, weight, group)
    if part == "scales":
        return scales
    step = max(1, _CHUNK // columns)
    chunks = [_codes(method, weight[i : i + step], scales[i : i + step], group) for i in range(0, rows, step)]
    codes = np.concatenate(chunks) if chunks else np.empty((0, columns), np.int8)
    if part == "rounded":
        return _values(method, codes) * np.repeat(scales, group, axis=1)
    return codes if method == "int8" else _packed(codes if method == "nf4" else codes + 8)


def whole_weight(method: str, codes: Array, scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """The weight (float32) that the parts ``codes`` and ``scales`` stand for."""
    if method != "int8":
        both = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)
        codes = both if method == "nf4" else both.astype(np.int8) - np.int8(8)
    return _values(method, codes) * np.repeat(scales, codes.shape[1] // scales.shape[1], axis=1)


def _values(method: str, codes: Array) -> NDArray[np.float32]:
    found: NDArray[np.float32] = NF4[codes] if method == "nf4" else codes.astype(np.float32)
    return found


def _scales(method: str, weight: Array, group: int) -> NDArray[np.float32]:
    largest = {"int8": 127.0, "int4": 7.0, "nf4": 1.0}[method]
    peaks = np.abs(weight.reshape(weight.shape[0], -1, group)).max(axis=2).astype(np.float32)
    scales: NDArray[np.float32] = np.where(peaks > 0, peaks / np.float32(largest), np.float32(1.0))
    return scales


def _codes(method: str, weight: Array, scales: NDArray[np.float32], group: int) -> Array:
    scaled = weight.astype(np.float32) / np.repeat(scales, group, axis=1)
    if method == "nf4":
        return np.searchsorted((NF4[1:] + NF4[:-1]) / 2, scaled).astype(np.uint8)
    largest = 127 if method == "int8" else 7
    return np.clip(np.rint(scaled), -largest, largest).astype(np.int8)


def _packed(codes: Array) -> NDArray[np.uint8]:
    whole = codes.astype(np.uint8)
    packed: NDArray[np.uint8] = whole[:, ::2] | (whole[:, 1::2] << np.uint8(4))
    return packed
