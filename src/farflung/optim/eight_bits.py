"""Optimizer states in 8 bits: codes for levels between -1 and 1, and a scale for each block of 256 elements.

The levels are those of dynamic tree quantization, block by block (Dettmers et al., "8-bit Optimizers via Block-wise
Quantization", 2022, sections 1.3 and 2.1): the numbers of leading zeros choose a power of ten, and the rest of the bits a
fraction. A block without negative elements, such as one of a second moment, has levels of its own, without a sign. Its scale is
stored with a negative sign. Tensors with fewer than 4,096 elements stay in float32, as in that paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farflung.errors import CheckpointError
from farflung.optim.program import StateSlot

__all__ = ["BLOCK", "SCALE", "SIGNED", "UNSIGNED", "check_stored", "packed_states", "packs", "stored_shapes", "unpacked_states"]

Floats = NDArray[np.float32]

#: Elements that share a scale, and elements that a tensor in 8 bits has at least.
BLOCK, _LEAST = 256, 4096
#: What is appended to the name of a slot for the name of its scales.
SCALE = ".scale"
#: Elements that are converted at a time, so that a large state takes little memory beside itself.
_CHUNK = 1 << 18


def _levels(bits: int) -> list[float]:
    """Positive levels of ``bits`` bits without a sign, ascending: zero, fractions of powers of ten, and 1."""
    found = [0.0, 1.0]
    for zeros in range(bits):
        edges = np.linspace(0.1, 1.0, 2 ** (bits - 1 - zeros) + 1)
        found += (10.0**-zeros * (edges[1:] + edges[:-1]) / 2).tolist()
    return sorted(found)


#: The values of the codes, ascending: for blocks with negative elements, and for blocks without.
SIGNED: Floats = np.array([*(-level for level in reversed(_levels(7)[1:-1])), *_levels(7)], np.float32)
UNSIGNED: Floats = np.array([0.0, *_levels(8)[2:]], np.float32)


def packs(slot: StateSlot, shape: tuple[int, ...]) -> bool:
    """Return whether the state ``slot`` of a parameter of ``shape`` is stored in 8 bits."""
    return slot.narrows(shape) and slot.nbytes(shape) >= 4 * _LEAST


def stored_shapes(state: str, slots: Iterable[StateSlot], shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the arrays that a parameter of ``shape`` has between steps. ``state``: of ``OptimizerSpec``."""
    found: dict[str, tuple[int, ...]] = {}
    for slot in slots:
        found[slot.name] = slot.shape_for(shape)
        if state == "8bit" and packs(slot, shape):
            found[slot.name + SCALE] = (-(-(slot.nbytes(shape) // 4) // BLOCK),)
    return found


def check_stored(name: str, arrays: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """See that ``arrays`` are the optimizer states of parameter ``name``, which have ``shapes`` (see ``stored_shapes``).

    Raises:
        CheckpointError: one is missing, belongs to another optimizer, or has another shape.
    """
    if arrays.keys() != shapes.keys():
        wrong = min(arrays.keys() ^ shapes.keys())
        raise CheckpointError(f"optimizer state {wrong!r} of parameter {name!r} is missing, or of another optimizer")
    for slot, wanted in shapes.items():
        if arrays[slot].shape != wanted:
            raise CheckpointError(f"optimizer state '{slot}/{name}' has shape {arrays[slot].shape}, its rule {wanted}")


def packed_states(values: NDArray[Any]) -> tuple[NDArray[np.uint8], Floats]:
    """Codes of the shape of ``values`` (float32), and scales ``(blocks,)``."""
    flat = np.ascontiguousarray(values).reshape(-1)
    codes, scales = np.empty(flat.size, np.uint8), np.empty(-(-flat.size // BLOCK), np.float32)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        blocks = np.zeros((-(-part.size // BLOCK), BLOCK), np.float32)
        blocks.reshape(-1)[: part.size] = part
        peaks: Floats = np.abs(blocks).max(axis=1)
        signed: NDArray[np.bool_] = np.less(blocks.min(axis=1), 0)
        blocks /= np.where(peaks > 0, peaks, np.float32(1.0))[:, None]
        found = np.where(signed[:, None], _nearest(SIGNED, blocks), _nearest(UNSIGNED, blocks))
        codes[start : start + _CHUNK] = found.reshape(-1)[: part.size]
        scales[start // BLOCK : start // BLOCK + len(peaks)] = np.where(signed, peaks, -peaks)
    return codes.reshape(values.shape), scales


def unpacked_states(codes: NDArray[np.uint8], scales: Floats) -> Floats:
    """The float32 values that ``codes`` and ``scales`` stand for."""
    flat, found = codes.reshape(-1), np.empty(codes.size, np.float32)
    for start in range(0, flat.size, _CHUNK):
        part, own = flat[start : start + _CHUNK], scales[start // BLOCK : (start + _CHUNK) // BLOCK]
        each = np.repeat(own, BLOCK)[: part.size]
        found[start : start + _CHUNK] = np.where(each > 0, SIGNED[part], UNSIGNED[part]) * np.abs(each)
    return found.reshape(codes.shape)


def _nearest(levels: Floats, values: Floats) -> NDArray[np.uint8]:
    return np.searchsorted((levels[1:] + levels[:-1]) / 2, values).astype(np.uint8)
