"""Levels of block quantization: floating-point elements to small integers with one scale for each block, and back.

Three bits and more have odd numbers of levels around zero, -L..L with L = 2^(bits-1) - 1, and the scale max|x| / L (T. Dettmers
et al., "8-bit Optimizers via Block-wise Quantization", 2022, with evenly spaced levels). One and two bits have no zero: the
levels are -1, 1 or -3, -1, 1, 3. Rounded to nearest, their scale is the one of least squared error for the chosen
levels, <|x|, |l|> / <l, l>; with one bit that is sign and mean magnitude (J. Bernstein et al., "signSGD", 2018; scaled as in
S. P. Karimireddy et al., "Error Feedback Fixes SignSGD", 2019), with two bits magnitudes above 0.9957 times the root mean square
take the outer level, which is best for normal numbers (J. Max, "Quantizing for minimum distortion", 1960).

Stochastic rounding goes up with the probability of the fraction, so that the expectation is the element (D. Alistarh et al.,
"QSGD", 2017); the scale then spans the largest magnitude at any number of bits. A block with a NaN or an infinity has the
scale NaN and comes back as NaN, so that neither is hidden. Cost: about ten passes over the array.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farflung.codecs.base import Array
from farflung.codecs.keys import fractions

__all__ = ["BITS", "Levels", "code_bytes", "dequantize", "level_error", "quantize"]

#: Known numbers of bits for each element.
BITS = (1, 2, 3, 4, 8)
_OUTER = 0.9957
_RUN = 1 << 16
#: The outermost level, in root mean squares, that is best for normal numbers (least squared error, found by search).
_NORMAL_TOP = {3: 1.95, 4: 2.5, 8: 4.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """``bits`` for each element, one scale for each ``block`` elements; ``stochastic`` rounding draws by ``seed``; ``normal``:
    the scale (three bits and more) is best for normal numbers of the block's mean square, and larger ones are cut off."""

    bits: int
    block: int
    stochastic: bool = False
    seed: int = 0
    normal: bool = False

    @property
    def top(self) -> float:
        """The largest level."""
        return float(2**self.bits - 1 if self.bits < 3 else 2 ** (self.bits - 1) - 1)

    @property
    def step(self) -> float:
        """The distance of neighbouring levels."""
        return 2.0 if self.bits < 3 else 1.0


def code_bytes(numel: int, bits: int) -> int:
    """Bytes of the codes of ``numel`` elements."""
    return -(-numel * bits // 8) if bits in (4, 8) else bits * -(-numel // 8)


def level_error(levels: Levels) -> float:
    """Bound on |x - x'| / |x| (2-norms) of a finite array: each element errs by half a step, or a step if stochastic."""
    if levels.normal and levels.bits in _NORMAL_TOP:
        return 1.0 + 0.5 * levels.stochastic  # what is cut off keeps its sign, so it loses less than itself
    step: float = levels.step * levels.block**0.5 / levels.top
    return step if levels.stochastic else min(1.0, step / 2)


def quantize(flat: Array, levels: Levels, scale_dtype: np.dtype[np.floating]) -> tuple[Array, Array]:
    """(codes as bytes, scales) of 1-D floating-point ``flat``."""
    numel = flat.size
    blocks = np.zeros((-(-numel // levels.block), levels.block), scale_dtype)
    blocks.reshape(-1)[:numel] = flat
    peaks = np.abs(np.maximum(blocks.max(axis=1), -blocks.min(axis=1)))  # of zeros of both signs the maximum is either
    lost = ~np.isfinite(peaks)
    if lost.any():
        peaks[lost], blocks[lost] = np.nan, 0
    scales = _normal_scales(blocks, peaks, levels, numel) if levels.normal else peaks / scale_dtype.type(levels.top)
    if levels.bits < 3 and not levels.stochastic:
        codes, scales = _nearest_without_zero(blocks, peaks, levels.bits, numel)
    else:
        blocks /= np.where(scales > 0, scales, 1)[:, None]
        codes = _round(blocks.reshape(-1)[:numel], levels)
    return _pack(codes, levels.bits), scales


def dequantize(packed: Array, scales: Array, levels: Levels, numel: int, limit: float) -> Array:
    """The elements, in the scales' type, none beyond ``limit``; ``packed`` has ``code_bytes`` bytes."""
    codes, block = _unpack(packed, levels.bits, numel), levels.block
    full = numel // block * block
    result = np.empty(numel, scales.dtype)
    with np.errstate(all="ignore"):
        np.multiply(codes[:full].reshape(-1, block), scales[: full // block, None], out=result[:full].reshape(-1, block))
        np.multiply(codes[full:], scales[full // block :], out=result[full:])
        if scales.size and not float(np.fmax.reduce(np.abs(scales), initial=0.0)) * 128 < limit * 0.99:
            np.clip(result, -limit, limit, out=result)
    return result


def _round(flat: Array, levels: Levels) -> Array:
    """``flat`` (divided by the scales; overwritten) to levels; one and two bits are always rounded stochastically here."""
    if levels.step > 1:
        flat += 1
        flat /= 2
    if levels.stochastic:
        for number, part in enumerate(fractions(levels.seed, flat.size, _RUN)):
            run = flat[number * _RUN : number * _RUN + part.size]
            run += part
            np.floor(run, out=run)
    else:
        np.rint(flat, out=flat)
    if levels.step > 1:
        flat += flat
        flat -= 1
    np.clip(flat, -levels.top, levels.top, out=flat)  # scales below the normal numbers are coarse
    return flat.astype(np.int8)


def _normal_scales(blocks: Array, peaks: Array, levels: Levels, numel: int) -> Array:
    """Scales from the blocks' mean squares, never more than the largest magnitude asks for."""
    if levels.bits not in _NORMAL_TOP:
        plain: Array = peaks / blocks.dtype.type(levels.top)
        return plain
    units = np.where(peaks > 0, peaks, 1)
    sizes = np.full(len(blocks), blocks.shape[1])
    if numel % blocks.shape[1]:
        sizes[-1] = numel % blocks.shape[1]
    even = blocks / units[:, None]  # squares stay finite
    spread = np.sqrt(np.einsum("ij,ij->i", even, even) / sizes)
    scales: Array = peaks * np.minimum(spread * _NORMAL_TOP[levels.bits], 1).astype(blocks.dtype) / blocks.dtype.type(levels.top)
    return scales


def _nearest_without_zero(blocks: Array, peaks: Array, bits: int, numel: int) -> tuple[Array, Array]:
    """Levels, and the scale of least squares for them."""
    exponents = np.frexp(np.where(peaks > 0, peaks, 1))[1] - 1
    blocks = np.ldexp(blocks, -exponents[:, None])  # magnitudes below 2: squares and sums stay finite
    sizes = np.full(len(blocks), blocks.shape[1])
    if numel % blocks.shape[1]:
        sizes[-1] = numel % blocks.shape[1]
    magnitudes = np.abs(blocks)
    outer = np.zeros(blocks.shape, np.bool_)
    if bits == 2:
        mean_square = np.einsum("ij,ij->i", blocks, blocks) / sizes
        outer = magnitudes > (_OUTER * np.sqrt(mean_square))[:, None]
    inner_product = magnitudes.sum(axis=1) + 2 * np.where(outer, magnitudes, 0).sum(axis=1)
    scales = (inner_product / (sizes + 8 * np.count_nonzero(outer, axis=1))).astype(blocks.dtype)
    scales = np.where(peaks > 0, np.ldexp(scales, exponents), peaks)
    codes = outer.astype(np.int8)
    codes += codes
    codes += 1
    np.negative(codes, out=codes, where=blocks < 0)
    return codes.reshape(-1)[:numel], scales


def _pack(codes: Array, bits: int) -> Array:
    """Codes as bytes: int8; nibbles plus 8; or bit planes of the code's place among the levels, from the least significant."""
    if bits == 8:
        return codes.view(np.uint8)
    if bits == 4:
        biased = np.full(codes.size + codes.size % 2, 8, np.uint8)
        biased[: codes.size] = (codes + 8).astype(np.uint8)
        packed: Array = biased[::2] | (biased[1::2] << np.uint8(4))
        return packed
    places = ((codes + (2**bits - 1)) >> 1 if bits < 3 else codes + 4).astype(np.uint8)
    return np.concatenate([np.packbits(places & np.uint8(1 << bit), bitorder="little") for bit in range(bits)])


def _unpack(packed: Array, bits: int, numel: int) -> Array:
    if bits == 8:
        return packed.view(np.int8)
    if bits == 4:
        nibbles = np.empty(2 * packed.size, np.int8)
        nibbles[::2] = (packed & np.uint8(15)).astype(np.int8) - np.int8(8)
        nibbles[1::2] = (packed >> np.uint8(4)).astype(np.int8) - np.int8(8)
        return nibbles[:numel]
    places = np.zeros(numel, np.int8)
    for bit, plane in enumerate(packed.reshape(bits, -1)):
        places |= np.unpackbits(plane, count=numel, bitorder="little").view(np.int8) << np.int8(bit)
    return 2 * places - np.int8(2**bits - 1) if bits < 3 else places - np.int8(4)
