"""Values of a sparse payload: floating-point numbers of some width, or block-quantized integers of 8 or 4 bits.

Kept values lie together once their indices are gone, so a block of them has a scale of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from farflung.codecs.base import FLOATING, Array, Payload, as_section
from farflung.codecs.dense import narrow, widen, wire_dtype
from farflung.codecs.quantization.levels import Levels, level_error, quantize
from farflung.codecs.quantization.quantized import read_quantized, scale_dtype
from farflung.errors import CodecError
from farflung.wire.arrays import DTYPES

__all__ = ["VALUES", "dense_values", "read_values", "value_bytes", "value_error", "write_values"]

#: The widest form in which values travel.
VALUES = ("float32", "float16", "bfloat16", "int8", "int4")
#: Elements for each scale: kept values are few and heavy-tailed.
_BLOCK = 64
_INTEGER_BITS = {"int8": 8, "int4": 4}


def dense_values(values: str) -> str:
    """The element type of the dense form that takes the place of a sparse one that doesn't pay."""
    return "float16" if values in _INTEGER_BITS else values


def value_bytes(values: str, itemsize: int) -> float:
    """Bytes for each value of an array with elements of ``itemsize`` bytes, scales included."""
    if values in _INTEGER_BITS:
        return _INTEGER_BITS[values] / 8 + (8 if itemsize == 8 else 4) / _BLOCK
    return float(min(itemsize, DTYPES[values].itemsize))


def value_error(values: str) -> float:
    """Bound on the relative error (2-norm) of finite values, for elements of any floating-point type."""
    if values in _INTEGER_BITS:
        return level_error(Levels(bits=_INTEGER_BITS[values], block=_BLOCK))
    return {"float32": 2.0**-24, "float16": 2.0**-10, "bfloat16": 2.0**-8}[values]


def write_values(chosen: Array, dtype: str, values: str) -> tuple[dict[str, Any], tuple[memoryview, ...]]:
    """Fields and sections of the 1-D array ``chosen`` of element type ``dtype``."""
    if values in _INTEGER_BITS:
        levels = Levels(bits=_INTEGER_BITS[values], block=_BLOCK)
        wide = chosen.astype(DTYPES[scale_dtype(dtype)], copy=False)
        codes, scales = quantize(wide, levels, wide.dtype)
        fields = {"values": "quantized", "bits": levels.bits, "block": levels.block}
        return fields, (as_section(codes), as_section(scales))
    cast, exponent = narrow(chosen, wire_dtype(dtype, values))
    return {"values": cast.dtype.name, "exponent": exponent}, (as_section(cast),)


def read_values(payload: Payload, sections: tuple[memoryview | bytes, ...], count: int) -> Array:
    """``count`` values from what ``write_values`` made, in the element type of ``payload``.

    Raises:
        CodecError: fields or sections don't fit.
    """
    if payload.choice("values", FLOATING | {"quantized"}) != "quantized":
        (section,) = _exactly(payload, sections, 1)
        return widen(payload.elements(section, payload.choice("values", FLOATING), count), payload, "exponent")
    if payload.dtype not in FLOATING:
        raise CodecError(f"bad {payload.codec} payload: {payload.dtype} elements are never quantized")
    codes, scales = _exactly(payload, sections, 2)
    with np.errstate(all="ignore"):
        return read_quantized(payload, codes, scales, count).astype(DTYPES[payload.dtype], copy=False)


def _exactly(payload: Payload, sections: tuple[memoryview | bytes, ...], count: int) -> tuple[memoryview | bytes, ...]:
    if len(sections) != count:
        extra = len(payload.sections) - len(sections)
        raise CodecError(f"bad {payload.codec} payload: it needs {extra + count} sections, got {len(payload.sections)}")
    return sections
