"""Optimizer states in 8 bits (``optim.eight_bits``) as tensors: the same bits, also on an accelerator."""

from __future__ import annotations

from typing import NamedTuple

import torch

from farflung.engines.torch.arrays import from_array
from farflung.optim.eight_bits import BLOCK, SIGNED, UNSIGNED

__all__ = ["Packed", "packed", "unpacked"]

#: Elements that are converted at a time.
_CHUNK = 1 << 18


class Packed(NamedTuple):
    """A state between steps: ``codes`` (uint8) of its shape, and ``scales`` (float32), one for each block."""

    codes: torch.Tensor
    scales: torch.Tensor


def packed(values: torch.Tensor) -> Packed:
    """Codes and scales of ``values`` (float32)."""
    flat, device = values.contiguous().view(-1), values.device
    codes = torch.empty(flat.numel(), dtype=torch.uint8, device=device)
    scales = torch.empty(-(-flat.numel() // BLOCK), device=device)
    levels = [from_array(both, device) for both in (SIGNED, UNSIGNED)]
    edges = [(both[1:] + both[:-1]) / 2 for both in levels]
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK]
        blocks = torch.zeros(-(-part.numel() // BLOCK), BLOCK, device=device)
        blocks.view(-1)[: part.numel()] = part
        peaks, signed = blocks.abs().amax(dim=1), (blocks < 0).any(dim=1)
        blocks /= torch.where(peaks > 0, peaks, 1.0)[:, None]
        own, others = (torch.bucketize(blocks, both, out_int32=True) for both in edges)
        found = torch.where(signed[:, None], own, others)
        codes[start : start + _CHUNK] = found.view(-1)[: part.numel()].to(torch.uint8)
        scales[start // BLOCK : start // BLOCK + len(peaks)] = torch.where(signed, peaks, -peaks)
    return Packed(codes.view(values.shape), scales)


def unpacked(state: Packed) -> torch.Tensor:
    """The float32 values of ``state``."""
    flat, device = state.codes.view(-1), state.codes.device
    found = torch.empty(flat.numel(), device=device)
    signed, unsigned = (from_array(both, device) for both in (SIGNED, UNSIGNED))
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK].to(torch.int32)
        each = state.scales[start // BLOCK : (start + _CHUNK) // BLOCK].repeat_interleave(BLOCK)[: part.numel()]
        found[start : start + _CHUNK] = torch.where(each > 0, signed[part], unsigned[part]) * each.abs()
    return found.view(state.codes.shape)
