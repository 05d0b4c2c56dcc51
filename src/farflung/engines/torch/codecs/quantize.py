"""Block quantization of tensors where they lie, with the bits of ``codecs.quantization``.

A tensor is widened, rotated and quantized in runs of whole blocks, so little memory is needed beside it. Each operator is a call
of its own, so no compiler fuses a product and a sum. Divisors are tensors: with a number, CUDA multiplies by its reciprocal,
which is not always the quotient. Cost: about 10 passes over the tensor, and 2 for each doubling of a chunk with a rotation; a
synchronization for each run. Memory: a byte for each element, and some copies of a run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from farflung.codecs.keys import signs
from farflung.codecs.quantization.levels import Levels
from farflung.engines.base import Array
from farflung.engines.torch.arrays import TORCH_DTYPES, to_array

__all__ = ["RUN", "DeferredOperators", "FlatTensor", "TensorOperators"]

#: Elements of a run, about.
RUN = 1 << 22
#: SplitMix64 (``codecs.keys``): its step, and the shifts and factors of its two rounds.
_GAMMA, _ROUNDS = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatTensor:
    """A 1-D tensor that will be widened to ``dtype``, and rotated in chunks of ``chunk`` by ``seed`` (0: it will not)."""

    tensor: torch.Tensor
    dtype: str = ""
    chunk: int = 0
    seed: int = 0


class DeferredOperators:
    """See ``codecs.quantization.quantized.FlatOperators``. What comes before ``quantize`` is done in it."""

    def widen(self, flat: FlatTensor, dtype: str) -> FlatTensor:
        """See ``FlatOperators``."""
        return replace(flat, dtype=dtype)

    def peak(self, flat: FlatTensor) -> float:
        """See ``FlatOperators``."""
        low, high = torch.aminmax(flat.tensor)
        return float(torch.maximum(high, -low))

    def rotate(self, flat: FlatTensor, chunk: int, seed: int) -> FlatTensor:
        """See ``FlatOperators``."""
        return replace(flat, chunk=chunk, seed=seed)


class TensorOperators(DeferredOperators):
    """For codecs that are ``exact``."""

    def quantize(self, flat: FlatTensor, levels: Levels) -> tuple[Array, Array]:
        """See ``FlatOperators``."""
        tensor, step = flat.tensor, 2 * levels.block * max(1, RUN // (2 * levels.block))  # random words belong to 4 elements
        found = []
        for first in range(0, tensor.numel(), step):
            part = tensor[first : first + step].to(TORCH_DTYPES[flat.dtype])
            found.append(_quantize(_rotate(part, flat.chunk, flat.seed) if flat.chunk else part, levels, first))
        codes, scales = (torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*found, strict=True))
        return to_array(_pack(codes, levels.bits)), to_array(scales)


def _rotate(flat: torch.Tensor, chunk: int, seed: int) -> torch.Tensor:
    """See ``codecs.quantization.rotation``."""
    whole = flat.numel() // chunk * chunk
    turned = torch.from_numpy(signs(seed, chunk)).to(flat.device, flat.dtype)
    rows = flat[:whole].view(-1, chunk) * turned
    spare, half = torch.empty_like(rows), 1
    while half < chunk:
        pairs, made = rows.view(-1, 2, half), spare.view(-1, 2, half)
        torch.add(pairs[:, 0], pairs[:, 1], out=made[:, 0])
        torch.sub(pairs[:, 0], pairs[:, 1], out=made[:, 1])
        rows, spare, half = spare, rows, 2 * half
    rows.mul_(torch.full((), chunk**-0.5, dtype=flat.dtype, device=flat.device))
    return rows.view(-1) if whole == flat.numel() else torch.cat([rows.view(-1), flat[whole:]])


def _quantize(flat: torch.Tensor, levels: Levels, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (int8) and scales of the run that begins with element ``first``."""
    numel, count = flat.numel(), -(-flat.numel() // levels.block)
    padded = torch.nn.functional.pad(flat, (0, count * levels.block - numel)) if numel % levels.block else flat
    blocks = padded.view(count, levels.block)
    low, high = torch.aminmax(blocks, dim=1)
    peaks = torch.maximum(high, -low).abs()
    lost = ~torch.isfinite(peaks)
    scales = (peaks / torch.full_like(peaks, levels.top)).masked_fill(lost, torch.nan)
    if bool(lost.any()):
        blocks = blocks.masked_fill(lost[:, None], 0)
    blocks = blocks / torch.where(scales > 0, scales, 1)[:, None]
    return _round(blocks.view(-1)[:numel], levels, first), scales


def _round(flat: torch.Tensor, levels: Levels, first: int) -> torch.Tensor:
    """See ``levels``; ``flat`` is overwritten."""
    if levels.step > 1:
        flat.add_(1).mul_(0.5)
    if levels.stochastic:
        flat.add_(_fractions(levels.seed, first, flat.numel(), flat.device)).floor_()
    else:
        flat.round_()
    if levels.step > 1:
        flat.add_(flat).sub_(1)
    return flat.clamp_(-levels.top, levels.top).to(torch.int8)


def _fractions(seed: int, first: int, count: int, device: torch.device) -> torch.Tensor:
    """``count`` of ``codecs.keys.fractions`` from number ``first`` on, a multiple of 4; integers of 64 bits wrap around."""
    words = (
        torch.arange(first // 4 + 1, first // 4 - (-count // 4) + 1, dtype=torch.int64, device=device)
        .mul_(_signed(_GAMMA))
        .add_(_signed(seed))
    )
    for shift, factor in _ROUNDS:
        words = words.bitwise_xor_(_shifted(words, shift)).mul_(_signed(factor))
    words = words.bitwise_xor_(_shifted(words, 31))
    return (words.view(torch.int16)[:count].to(torch.int32) & 0xFFFF).to(torch.float32).mul_(2.0**-16)


def _shifted(words: torch.Tensor, shift: int) -> torch.Tensor:
    """``words`` as unsigned numbers, shifted to the right."""
    return (words >> shift).bitwise_and_((1 << (64 - shift)) - 1)


def _signed(number: int) -> int:
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def _pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """See ``levels``."""
    if bits == 8:
        return codes.view(torch.uint8)
    if bits == 4:
        biased = torch.nn.functional.pad(codes + 8, (0, codes.numel() % 2), value=8).to(torch.uint8).view(-1, 2)
        return biased[:, 0] | (biased[:, 1] << 4)
    places = ((codes + (2**bits - 1)) >> 1 if bits < 3 else codes + 4).to(torch.uint8)
    places = torch.nn.functional.pad(places, (0, -codes.numel() % 8)).view(-1, 8)
    weights = torch.tensor([1 << place for place in range(8)], dtype=torch.uint8, device=codes.device)
    planes = [(((places >> bit) & 1) * weights).sum(1, dtype=torch.uint8) for bit in range(bits)]
    return torch.cat(planes)
