"""Rotation and block quantization of a CUDA tensor in one kernel, with the bits of ``codecs.quantization``.

A program takes some blocks. The Hadamard transform of a block takes sums and differences of neighbors and puts the sums before
the differences: after as many rounds as an index has bits, elements are in their order again, and each round has added what
``rotation`` adds. Divisions are rounded to nearest. Adding and subtracting 1.5 * 2^23 rounds to the nearest even integer. A
product with 1, -1 or a power of two is exact.
Cost: one pass of reading, one synchronization with the host; with a rotation one more of each, for the largest magnitude.

Triton is imported here and in ``triton_selection`` only. Under ``TRITON_INTERPRET=1`` the kernel takes CPU tensors (tests). It
has no types that mypy could check.
"""
# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl

from farflung.codecs.base import Payload
from farflung.codecs.keys import signs
from farflung.codecs.quantization.levels import Levels, code_bytes
from farflung.codecs.quantization.quantized import BlockQuantized
from farflung.engines.base import Array
from farflung.engines.torch.arrays import to_array
from farflung.engines.torch.codecs.quantize import DeferredOperators, FlatTensor

__all__ = ["LARGEST_BLOCK", "KernelOperators", "encode_quantized", "quantize_blocks"]

#: A block lies in the registers of one program.
LARGEST_BLOCK = 4096
#: Elements of a program that has several blocks.
_TILE = 2048


@triton.jit
def _splitmix(words):
    """Word ``words - 1`` of the seed that was added (``codecs.keys``)."""
    z = (words ^ (words >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def quantize_blocks(arrays, numel, seed, factor, levels: tl.constexpr, rows: tl.constexpr):
    """Write the codes and scales of ``rows`` blocks.

    ``arrays``: what is quantized, the signs of a rotation, the codes, the scales. ``levels``: bits, elements of a block,
    doublings of a rotation (0: there is none), and whether rounding is stochastic.
    """
    source, turned, codes, scales = arrays
    bits: tl.constexpr = levels[0]
    block: tl.constexpr = levels[1]
    doublings: tl.constexpr = levels[2]
    stochastic: tl.constexpr = levels[3]
    top: tl.constexpr = 2 ** (bits - 1) - 1
    first = tl.program_id(0).to(tl.int64) * rows
    numbers = first + tl.arange(0, rows)
    places = numbers[:, None] * block + tl.arange(0, block)[None, :]
    inside = places < numel
    if source.dtype.element_ty == tl.int16:  # bfloat16: the upper half of a float32
        x = (tl.load(source + places, mask=inside, other=0).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        x = tl.load(source + places, mask=inside, other=0).to(tl.float32)
    if doublings > 0:
        y = x * tl.load(turned + tl.arange(0, block))[None, :].to(tl.float32)
        for _ in tl.static_range(doublings):
            low, high = tl.split(tl.reshape(y, [rows, block // 2, 2]))
            y = tl.reshape(tl.permute(tl.join(low + high, low - high), (0, 2, 1)), [rows, block])
        x = tl.where(((numbers + 1) * block <= numel)[:, None], y * factor, x)
    peaks = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)  # magnitudes of floats have the order of their bits
    lost = peaks >= 0x7F800000
    scale = tl.where(lost, float("nan"), tl.math.div_rn(peaks.to(tl.float32, bitcast=True), tl.full([rows], top, tl.float32)))
    tl.store(scales + numbers, scale, mask=numbers * block < numel)
    x = tl.where(lost[:, None], 0.0, x)
    divisors = tl.broadcast_to(tl.where(scale > 0, scale, 1.0)[:, None], [rows, block])
    x = tl.math.div_rn(x, divisors)
    if stochastic:
        words = seed.to(tl.uint64) + ((places >> 2) + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
        parts = (_splitmix(words) >> ((places & 3) * 16).to(tl.uint64)) & 0xFFFF
        y = x + parts.to(tl.float32) * 0.0000152587890625
        x = (y + 12582912.0) - 12582912.0
        x = tl.where(x > y, x - 1.0, x)  # tl.floor takes the smallest numbers for zero
    else:
        x = (x + 12582912.0) - 12582912.0
    found = tl.minimum(tl.maximum(x, -top), top).to(tl.int32)
    if bits == 8:
        tl.store(codes + places, (found & 255).to(tl.uint8), mask=inside)
    else:
        even, odd = tl.split(tl.reshape(found + 8, [rows, block // 2, 2]))
        pairs = numbers[:, None] * (block // 2) + tl.arange(0, block // 2)[None, :]
        tl.store(codes + pairs, (even | (odd << 4)).to(tl.uint8), mask=pairs * 2 < numel)


class KernelOperators(DeferredOperators):
    """For levels that ``encode_quantized`` accepts, and not for float64."""

    def quantize(self, flat: FlatTensor, levels: Levels) -> tuple[Array, Array]:
        """See ``FlatOperators``."""
        tensor, block = flat.tensor.contiguous(), levels.block
        assert flat.chunk in (0, block)
        device, numel, rows = tensor.device, tensor.numel(), max(1, _TILE // block)
        count = triton.cdiv(numel, block)
        codes = torch.empty(code_bytes(numel, levels.bits), dtype=torch.uint8, device=device)
        scales = torch.empty(count, dtype=torch.float32, device=device)
        turned = torch.from_numpy(signs(flat.seed, block)).to(device)
        with torch.cuda.device(device) if tensor.is_cuda else nullcontext():
            doublings = block.bit_length() - 1 if flat.chunk else 0
            kinds = (levels.bits, block, doublings, levels.stochastic)
            source = tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor
            arrays = (source, turned, codes, scales)
            quantize_blocks[(triton.cdiv(count, rows),)](
                arrays, numel, levels.seed, block**-0.5, levels=kinds, rows=rows, enable_fp_fusion=False
            )
        return to_array(codes), to_array(scales)


def encode_quantized(codec: BlockQuantized, dtype: str, shape: tuple[int, ...], flat: torch.Tensor) -> Payload | None:
    """``codec.encode_flat`` of ``flat``; ``None`` if the kernel has no such levels.

    Blocks must be powers of two, which makes them the chunks of a rotation, too.
    """
    block = codec.levels(shape).block
    if codec.bits not in (4, 8) or block > LARGEST_BLOCK or block & (block - 1):
        return None
    return codec.encode_flat(dtype, shape, FlatTensor(tensor=flat), KernelOperators())
