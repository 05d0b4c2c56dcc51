"""Directions of zeroth-order steps: signs drawn by seed and parameter, and the gradient that slopes along them stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from farflung.codecs.keys import derive, signs
from farflung.engines.base import Array
from farflung.sync.commands import Replay

__all__ = ["direction", "replayed"]


def direction(seed: int, name: str, like: Array) -> Array:
    """Return the signs of parameter ``name``, in ``like``'s shape and element type."""
    found: Array = signs(derive(seed, name), like.size).reshape(like.shape).astype(like.dtype)
    return found


def replayed(command: Replay, slopes: Mapping[int, Sequence[float]], states: Mapping[str, Array]) -> dict[str, Array]:
    """Return the gradient of ``states`` that all members' ``slopes`` (by rank, the oldest first) stand for."""
    factors: dict[int, float] = {}  # by seed: a direction is drawn once, however often it was taken
    numbers = {rank: iter(slopes[rank][-command.group.count(rank) :]) for rank in set(command.group)}
    for rank, seed, weight in zip(command.group, command.seeds, command.weights, strict=True):
        factors[seed] = factors.get(seed, 0.0) + weight * next(numbers[rank])
    found: dict[str, Array] = {}
    for name, like in states.items():
        total = np.zeros(like.shape, like.dtype)
        for seed, factor in factors.items():
            total += direction(seed, name, like) * like.dtype.type(factor)
        found[name] = total
    return found
