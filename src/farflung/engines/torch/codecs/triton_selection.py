"""Exact top-k of a CUDA tensor by Triton kernels: the elements that ``codecs.sparse.selection`` chooses, in ascending order.

Magnitudes are compared as integers, as there. The exact threshold is found digit by digit from the highest: a histogram of the
digit over the elements that agree with the digits found so far, three passes for float32 (11, 10 and 10 bits), two for float16
and bfloat16 (8 and 7). Then a pass counts what lies above the threshold and on it in each tile, and a last one writes the
indices to their places; of those on the threshold the lowest come first. Radix selection as in T. Alabi et al., "Fast k-selection
algorithms for graphics processing units", 2012, section 3.3. What differs: nothing is compacted between passes, which costs reads
and saves writes. Cost: five passes of reading (four for 16 bits), one synchronization; 8 bytes for each 4096 elements.

Triton is imported here and nowhere else. Under ``TRITON_INTERPRET=1`` the kernels take CPU tensors (tests). They have no types
that mypy could check.
"""
# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl

__all__ = ["KINDS", "select_by_kernels"]

#: Bytes of an element -> integers of its width, widths of the magnitude's digits from the highest.
KINDS = {4: (torch.int32, (11, 10, 10)), 2: (torch.int16, (8, 7))}
_TILE = tl.constexpr(4096)
#: There is nothing to fuse, but Triton 3.9 warns where this is not said.
_OPTIONS = {"enable_fp_fusion": False}
#: Tiles that one program counts before it adds to the histogram of all.
_TILES = tl.constexpr(8)


@triton.jit
def _magnitudes(source, places, inside):
    """The elements as int32 without their sign; 0 outside."""
    mask: tl.constexpr = (1 << (source.dtype.element_ty.primitive_bitwidth - 1)) - 1
    return tl.load(source + places, mask=inside, other=0).to(tl.int32) & mask


@triton.jit
def count_digits(source, prefix, counts, numel, low: tl.constexpr, width: tl.constexpr):
    """Add to ``counts`` how often each digit (``width`` bits from bit ``low`` on) stands behind ``prefix``."""
    bins: tl.constexpr = 1 << width
    first = tl.program_id(0).to(tl.int64) * (_TILE * _TILES)
    wanted = tl.load(prefix)
    own = tl.zeros([bins], tl.int32)
    for number in range(_TILES):
        places = first + number * _TILE + tl.arange(0, _TILE)
        inside = places < numel
        bits = _magnitudes(source, places, inside)
        same = inside & ((bits >> (low + width)) == wanted)
        own += tl.histogram((bits >> low) & (bins - 1), bins, mask=same)
    tl.atomic_add(counts + tl.arange(0, bins), own, mask=own > 0)


@triton.jit
def count_kept(source, edge, above, equal, numel):
    """How many elements of each tile lie above the threshold ``edge[0]``, and on it."""
    program = tl.program_id(0)
    places = program.to(tl.int64) * _TILE + tl.arange(0, _TILE)
    inside = places < numel
    bits = _magnitudes(source, places, inside)
    threshold = tl.load(edge)
    tl.store(above + program, tl.sum((inside & (bits > threshold)).to(tl.int32), axis=0))
    tl.store(equal + program, tl.sum((inside & (bits == threshold)).to(tl.int32), axis=0))


@triton.jit
def write_kept(source, edge, above, equal, found, numel):
    """Write the indices that are kept; ``above`` and ``equal``: how many there are before each tile; ``edge[1]``: how many of
    those on the threshold are kept."""
    program = tl.program_id(0)
    places = program.to(tl.int64) * _TILE + tl.arange(0, _TILE)
    inside = places < numel
    bits = _magnitudes(source, places, inside)
    threshold = tl.load(edge)
    wanted = tl.load(edge + 1)
    before = tl.load(equal + program)
    on = (inside & (bits == threshold)).to(tl.int32)
    rank = before + tl.cumsum(on, axis=0) - on
    keep = (inside & (bits > threshold)) | ((on > 0) & (rank < wanted))
    kept = keep.to(tl.int32)
    start = tl.load(above + program) + tl.minimum(before, wanted)
    tl.store(found + (start + tl.cumsum(kept, axis=0) - kept), places, mask=keep)


def select_by_kernels(flat: torch.Tensor, count: int) -> torch.Tensor:
    """Ascending int64 indices of the ``count`` largest magnitudes of 1-D ``flat`` (float32, float16 or bfloat16), on its device;
    NaN first, zeros never, ties to the lowest index."""
    kind, digits = KINDS[flat.element_size()]
    bits = flat.contiguous().view(kind)
    numel, count = bits.numel(), min(count, bits.numel())
    if count <= 0:
        return torch.empty(0, dtype=torch.int64, device=flat.device)
    with torch.cuda.device(flat.device) if flat.is_cuda else nullcontext():
        edge = _edge(bits, count, digits)
        programs = triton.cdiv(numel, _TILE.value)
        above, equal = (torch.empty(programs, dtype=torch.int32, device=bits.device) for _ in range(2))
        count_kept[(programs,)](bits, edge, above, equal, numel, **_OPTIONS)
        sums = [torch.cumsum(part, 0, dtype=torch.int32) for part in (above, equal)]
        starts = [total - part for total, part in zip(sums, (above, equal), strict=True)]
        found = torch.empty(count, dtype=torch.int64, device=bits.device)
        write_kept[(programs,)](bits, edge, *starts, found, numel, **_OPTIONS)
        return found[: int(sums[0][-1] + edge[1])]


def _edge(bits: torch.Tensor, count: int, digits: tuple[int, ...]) -> torch.Tensor:
    """The ``count``-th largest magnitude, and how many of the elements that have it are kept (none of zeros); int32, not waited
    for."""
    prefix, wanted = (torch.full((1,), number, dtype=torch.int64, device=bits.device) for number in (0, count))
    low, programs = sum(digits), triton.cdiv(bits.numel(), _TILE.value * _TILES.value)
    for width in digits:
        low -= width
        counts = torch.zeros(1 << width, dtype=torch.int32, device=bits.device)
        count_digits[(programs,)](bits, prefix.to(torch.int32), counts, bits.numel(), low=low, width=width, **_OPTIONS)
        falling = counts.flip(0)
        reached = torch.cumsum(falling, 0)
        place = (reached < wanted).sum(0, keepdim=True)
        wanted = wanted - (reached - falling).gather(0, place)
        prefix = (prefix << width) + (1 << width) - 1 - place
    return torch.cat([prefix, torch.where(prefix > 0, wanted, 0)]).to(torch.int32)
