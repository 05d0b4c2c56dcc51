"""Top-k of tensors where they lie, with the bytes of the NumPy codec; and PyTorch's own top-k, the codecs' peer.

``select_tensor`` is ``codecs.sparse.selection`` for any device: magnitudes as integers, an exact choice, ties to the lowest
index. Both are exact, so they choose the same elements, and only the kept values and their indices leave the device. CUDA devices
take the kernels of ``triton_selection`` where Triton is installed and compiles them; else, and for float64, tensor operators
find a threshold from a sample and choose among the candidates. Cost of these: three passes over the tensor; two synchronizations.
"""

from __future__ import annotations

import torch

from farflung.codecs.base import Payload
from farflung.codecs.sparse.topk import MAX_NUMEL, TopK
from farflung.engines.base import Array
from farflung.engines.torch.arrays import to_array
from farflung.engines.torch.codecs.kernels import by_kernels

__all__ = ["encode_topk", "plain_topk", "plain_untopk", "select_tensor"]

_SAMPLES = 1 << 14
_BITS = {2: (torch.int16, 0x7FFF), 4: (torch.int32, 0x7FFF_FFFF), 8: (torch.int64, 0x7FFF_FFFF_FFFF_FFFF)}


def select_tensor(flat: torch.Tensor, count: int) -> torch.Tensor:
    """Ascending indices of the ``count`` largest magnitudes of 1-D floating-point ``flat``; NaN first, zeros never."""
    count = min(count, flat.numel())
    if count <= 0:
        return torch.empty(0, dtype=torch.int64, device=flat.device)
    found = by_kernels(flat, "triton_selection", lambda found: found.select_by_kernels(flat, count))
    return _by_operators(flat, count) if found is None else found


def _by_operators(flat: torch.Tensor, count: int) -> torch.Tensor:
    kind, mask = _BITS[flat.element_size()]
    bits = flat.view(kind) & mask
    candidates = _candidates(bits, count)
    chosen = bits[candidates]
    if chosen.numel() > count:
        threshold = torch.topk(chosen, count, sorted=False).values.min()
        above = chosen > threshold
        ties = chosen == threshold
        keep = above | (ties & (torch.cumsum(ties, 0) <= count - above.sum()))
        candidates = candidates[keep]
    return candidates


def encode_topk(codec: TopK, dtype: str, shape: tuple[int, ...], flat: torch.Tensor) -> Payload | None:
    """The payload of the floating-point elements ``flat`` of an array; only what is kept leaves the device.

    ``None`` if a dense payload is smaller, or the selection is not exact.
    """
    numel = flat.numel()
    if not codec.exact or numel > MAX_NUMEL or not codec.pays(numel, flat.element_size()):
        return None
    indices = select_tensor(flat, codec.kept(numel))
    return codec.pack(dtype, shape, to_array(indices), to_array(flat[indices]))


def plain_topk(array: Array, count: int) -> tuple[Array, Array]:
    """(values, int64 indices) of the ``count`` largest magnitudes of 1-D ``array``, as ``torch.topk`` finds them."""
    tensor = torch.from_numpy(array)
    indices = torch.topk(tensor.abs(), count, sorted=False).indices
    return tensor[indices].numpy(), indices.numpy()


def plain_untopk(values: Array, indices: Array, numel: int) -> Array:
    """The array of ``numel`` elements that holds ``values`` at ``indices`` and zeros elsewhere."""
    result = torch.zeros(numel, dtype=torch.from_numpy(values).dtype)
    result[torch.from_numpy(indices)] = torch.from_numpy(values)
    array: Array = result.numpy()
    return array


def _candidates(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of a superset of the ``count`` largest, without zeros: few where a sample can tell, else all."""
    if bits.numel() >= 4 * _SAMPLES and count <= bits.numel() // 8:
        sample = bits[:: bits.numel() // _SAMPLES]
        expected = sample.numel() * count / bits.numel()
        rank = min(sample.numel(), int(expected + 4.0 * expected**0.5) + 2)
        threshold = torch.topk(sample, rank, sorted=False).values.min().clamp(min=1)
        found = torch.nonzero(bits >= threshold).reshape(-1)
        if found.numel() >= count:
            return found
    return torch.nonzero(bits).reshape(-1)
