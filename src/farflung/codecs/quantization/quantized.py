"""Block quantization: 8, 4, 3, 2 or 1 bits for each element and a scale for each block (``levels`` says how they are chosen).

``block="row"`` takes the last dim as the block: a scale for each token of an activation. ``rotate`` spreads outliers before
quantization (``rotation``). ``rounding="stochastic"`` is unbiased and draws by ``seed``; nothing of it travels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Protocol, TypeVar

import numpy as np

from farflung.codecs.base import FLOATING, Array, Payload, as_section, flatten
from farflung.codecs.dense import HEAD_BYTES, Identity, finite_max
from farflung.codecs.keys import MAX_SEED, check_seed, derive
from farflung.codecs.quantization.levels import BITS, Levels, code_bytes, dequantize, level_error, quantize
from farflung.codecs.quantization.rotation import rotate, unrotate
from farflung.errors import CodecError, InputError
from farflung.wire.arrays import DTYPES

__all__ = ["ROUNDINGS", "SCALES", "BlockQuantized", "FlatOperators", "read_quantized", "scale_dtype"]

Flat = TypeVar("Flat")

ROUNDINGS = ("nearest", "stochastic")
SCALES = ("peak", "normal")
_MAX_BLOCK = 1 << 20
_DEFAULT_BLOCK = 256
_MAX_CHUNK = 1 << 12
_ROTATION_HEAD = 32


class FlatOperators(Protocol[Flat]):
    """Operators of the quantizer on flat arrays of one kind. NumPy's are the specification, others give the same bits."""

    def widen(self, flat: Flat, dtype: str) -> Flat:
        """The elements as ``dtype`` (float32 or float64)."""

    def peak(self, flat: Flat) -> float:
        """The largest magnitude; NaN if there is one."""

    def rotate(self, flat: Flat, chunk: int, seed: int) -> Flat:
        """See ``rotation.rotate``."""

    def quantize(self, flat: Flat, levels: Levels) -> tuple[Array, Array]:
        """See ``levels.quantize``."""


class _NumPyOperators:
    """The specification."""

    def widen(self, flat: Array, dtype: str) -> Array:
        return flat.astype(DTYPES[dtype], copy=False)

    def peak(self, flat: Array) -> float:
        with np.errstate(all="ignore"):
            return float(max(flat.max(), -flat.min()))

    def rotate(self, flat: Array, chunk: int, seed: int) -> Array:
        return rotate(flat, chunk, seed)

    def quantize(self, flat: Array, levels: Levels) -> tuple[Array, Array]:
        return quantize(flat, levels, flat.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockQuantized:
    """``bits`` for each element and a float32 scale for each ``block`` elements or ``row`` (float64 for float64 arrays).

    ``scale``: ``peak`` reaches the block's largest magnitude; ``normal`` is best for normal numbers, which rotation makes of most
    others, and cuts off what is larger (three bits and more)."""

    bits: int = 8
    block: int | str = _DEFAULT_BLOCK
    rounding: str = "nearest"
    rotate: bool = False
    seed: int = 0
    scale: str = "peak"
    name: ClassVar[str] = "quantized"
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise InputError(f"codec 'quantized' needs bits 1, 2, 3, 4 or 8, got {self.bits!r}")
        number = type(self.block) is int and 2 <= self.block <= _MAX_BLOCK and self.block % 2 == 0
        if not number and self.block != "row":
            raise InputError(f"codec 'quantized' needs 'row' or an even block from 2 to {_MAX_BLOCK}, got {self.block!r}")
        if self.rounding not in ROUNDINGS:
            raise InputError(f"codec 'quantized' rounds {' or '.join(ROUNDINGS)}, got {self.rounding!r}")
        if self.scale not in SCALES:
            raise InputError(f"codec 'quantized' knows the scales {', '.join(SCALES)}, got {self.scale!r}")
        if not isinstance(self.rotate, (bool, int)):
            raise InputError(f"codec 'quantized' needs rotate true or false, got {self.rotate!r}")
        check_seed("quantized", self.seed)

    def encode(self, array: Array) -> Payload:
        """See ``Codec``; gives a payload of ``identity`` where that is smaller or the elements are not floating-point."""
        dtype, flat = flatten(array)
        payload = self.encode_flat(dtype, array.shape, flat, _NumPyOperators()) if dtype in FLOATING else None
        return Identity().encode(array) if payload is None else payload

    @property
    def exact(self) -> bool:
        """Whether each operator has one result: there are no sums whose order a device would choose."""
        return self.scale == "peak" and (self.bits >= 3 or self.rounding == "stochastic")

    def encode_flat(self, dtype: str, shape: tuple[int, ...], flat: Flat, operators: FlatOperators[Flat]) -> Payload | None:
        """The payload of the floating-point elements ``flat`` of an array; ``None`` if ``identity`` is smaller."""
        numel, levels, wide_dtype = prod(shape), self.levels(shape), scale_dtype(dtype)
        if _section_bytes(numel, levels, dtype) + _ROTATION_HEAD >= numel * DTYPES[dtype].itemsize:
            return None
        wide = operators.widen(flat, wide_dtype)
        fields: dict[str, int] = {"bits": levels.bits, "block": levels.block}
        chunk = _chunk(levels.block)
        # sums of a chunk must stay finite
        if self.rotate and 2 <= chunk <= numel and operators.peak(wide) * chunk < finite_max(wide_dtype) / 4:
            seed = derive(self.seed, "rotation") >> 32
            wide = operators.rotate(wide, chunk, seed)
            fields |= {"rotation": chunk, "seed": seed}
        codes, scales = operators.quantize(wide, levels)
        sections = (as_section(codes), as_section(scales))
        return Payload(codec=self.name, dtype=dtype, shape=shape, fields=fields, sections=sections)

    def decode(self, payload: Payload) -> Array:
        """See ``Codec``; the payload says itself how many bits and how large blocks it has."""
        if payload.codec == Identity.name:
            return Identity().decode(payload)
        if payload.codec != self.name:
            raise CodecError(f"quantized can't decode a payload of {payload.codec!r:.40}; take the codec that the payload names")
        if payload.dtype not in FLOATING:
            raise CodecError(f"bad quantized payload: {payload.dtype} elements are never quantized")
        codes, scales = payload.sections_of(2)
        flat = read_quantized(payload, codes, scales, payload.numel)
        if "rotation" in payload.fields:
            chunk = payload.integer("rotation", 2, _MAX_CHUNK)
            if chunk & (chunk - 1):
                raise CodecError(f"bad quantized payload: rotation must be a power of two, got {chunk}")
            top = finite_max(payload.dtype)
            flat = unrotate(flat, chunk, payload.integer("seed", 0, MAX_SEED))
            np.clip(flat, -top, top, out=flat)
        with np.errstate(all="ignore"):
            return flat.astype(DTYPES[payload.dtype], copy=False).reshape(payload.shape)

    def wire_bytes(self, numel: int, itemsize: int) -> float:
        """See ``Codec``."""
        return self.shaped_bytes((numel,), itemsize)

    def shaped_bytes(self, shape: tuple[int, ...], itemsize: int) -> float:
        """See ``codecs.base.ByShape``: rows may be short."""
        numel = prod(shape)
        levels = self.levels(shape)
        coded = _section_bytes(numel, levels, "float64" if itemsize == 8 else "float32")
        dense = numel * itemsize
        return HEAD_BYTES + float(coded if coded + _ROTATION_HEAD < dense else dense)

    def error_bound(self, shape: tuple[int, ...]) -> float:
        """See ``Codec``."""
        return level_error(self.levels(shape))

    def levels(self, shape: tuple[int, ...]) -> Levels:
        """How arrays of ``shape`` are quantized."""
        block = _row(shape) if self.block == "row" else int(self.block)
        stochastic, normal = self.rounding == "stochastic", self.scale == "normal"
        return Levels(bits=self.bits, block=block, stochastic=stochastic, seed=derive(self.seed, "rounding"), normal=normal)


def read_quantized(payload: Payload, codes: memoryview | bytes, scales: memoryview | bytes, numel: int) -> Array:
    """``numel`` elements from the sections of codes and scales, in the scales' type; ``payload`` has the fields bits and block.

    Raises:
        CodecError: fields or sections don't fit.
    """
    bits, block = payload.integer("bits", 1, 8), payload.integer("block", 2, _MAX_BLOCK)
    if bits not in BITS:
        raise CodecError(f"bad {payload.codec} payload: bits must be 1, 2, 3, 4 or 8, got {bits}")
    levels = Levels(bits=bits, block=block)
    packed = payload.elements(codes, "uint8", code_bytes(numel, bits))
    read = payload.elements(scales, scale_dtype(payload.dtype), -(-numel // block))
    return dequantize(packed, read, levels, numel, finite_max(payload.dtype))


def scale_dtype(dtype: str) -> str:
    """The element type of the scales of an array of ``dtype``."""
    return "float64" if dtype == "float64" else "float32"


def _row(shape: tuple[int, ...]) -> int:
    """The last dim as a block, where there is one of a sensible size."""
    return shape[-1] if len(shape) > 1 and 2 <= shape[-1] <= _MAX_BLOCK else _DEFAULT_BLOCK


def _chunk(block: int) -> int:
    """The largest power of two that divides the block, so that no chunk lies in two blocks."""
    return min(_MAX_CHUNK, block & -block)


def _section_bytes(numel: int, levels: Levels, dtype: str) -> int:
    return code_bytes(numel, levels.bits) + -(-numel // levels.block) * DTYPES[scale_dtype(dtype)].itemsize
