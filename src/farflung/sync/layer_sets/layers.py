"""Layers as a scheduler sees them: when each is ready in the backward pass, and how long its exchange takes.

Times are in backward order: index 0 is the layer whose backward ends first. A group of tied layers is one unit, ready when
the backward of its earliest layer has ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farflung.errors import InputError
from farflung.units import Seconds

__all__ = ["Layers", "Sets", "exposed_seconds", "set_end"]

Vector = npt.NDArray[np.float64]
#: For each step of a period, the units that are exchanged in it, in backward order.
Sets = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Units in backward order.

    ``ready``: when a unit's backward ends, seconds after the backward pass began (never falls), and the latency of an exchange
    on top: exchanges of a step overlap in it, so all of them end as much later. ``comm``: seconds of its exchange. ``total``:
    seconds of the whole backward pass. ``members``: for each unit its layers, forward numbers, descending.
    """

    ready: tuple[float, ...]
    comm: tuple[float, ...]
    total: float
    members: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.ready)

    @classmethod
    def make(
        cls,
        bp_seconds: Iterable[float],
        comm_seconds: Iterable[float],
        tied: Iterable[Iterable[int]] = (),
        latency: float = 0.0,
    ) -> Layers:
        """Units from sequences in forward order (seconds per layer).

        ``tied``: groups of layers that share a parameter. A group counts as its earliest layer: it is exchanged as one when
        that layer's backward has ended, and takes the sum of its layers' times (0 for a layer whose tensors are counted
        elsewhere). ``latency``: seconds from the last byte of an exchange until its mean is everywhere.

        Raises:
            InputError: lengths differ, there are no layers, a time is negative or not finite, or ``tied`` is no partition.
        """
        bp, comm = _times("bp_seconds", bp_seconds), _times("comm_seconds", comm_seconds)
        if len(bp) != len(comm):
            raise InputError(f"bp_seconds has {len(bp)} layers, comm_seconds has {len(comm)}: give one value of each per layer")
        if not bp:
            raise InputError("bp_seconds and comm_seconds are empty: give at least one layer")
        if not 0.0 <= latency < math.inf:
            raise InputError(f"latency_seconds = {latency}: seconds must be finite and not negative")
        first_layer = _first_layers(len(bp), tied)
        members: dict[int, list[int]] = {}
        for layer in range(len(bp) - 1, -1, -1):
            members.setdefault(first_layer[layer], []).append(layer)
        order = sorted(members, reverse=True)
        ends = np.cumsum(bp[::-1])[::-1]
        return cls(
            ready=tuple(float(ends[unit]) + latency for unit in order),
            comm=tuple(math.fsum(comm[layer] for layer in members[unit]) for unit in order),
            total=float(ends[0]),
            members=tuple(tuple(members[unit]) for unit in order),
        )

    def slack(self) -> Vector:
        """Seconds of backward that can hide exchanges that start with a unit (negative: even an empty one ends too late)."""
        return self.total - np.asarray(self.ready)

    def named(self, sets: Sets) -> tuple[tuple[int, ...], ...]:
        """Units as layers in forward numbers, each set in the order of its exchanges."""
        return tuple(tuple(layer for unit in sorted(chosen) for layer in self.members[unit]) for chosen in sets)

    def step_seconds(self, chosen: Iterable[int]) -> float:
        """Backward pass with the exchanges of one set: ``max(backward, end of the last exchange)``."""
        return max(self.total, set_end(self, chosen))

    def period_seconds(self, sets: Sets) -> Seconds:
        """The backward parts of a whole period, in seconds."""
        return Seconds(math.fsum(self.step_seconds(chosen) for chosen in sets))


def set_end(layers: Layers, chosen: Iterable[int]) -> float:
    """Equation (7)'s start times: when the last exchange of a set ends (0 for an empty one), seconds into the backward.

    Exchanges go in backward order: ``tau_j = max(end of layer j's backward, tau_{j-1} + t_{j-1})``.
    """
    end = 0.0
    ready, comm = layers.ready, layers.comm
    for unit in sorted(chosen):
        end = max(end, ready[unit]) + comm[unit]
    return end


def exposed_seconds(layers: Layers, sets: Sets) -> float:
    """What a period takes beyond its backward passes, in seconds."""
    return math.fsum(layers.step_seconds(chosen) - layers.total for chosen in sets)


def _times(name: str, values: Iterable[float]) -> list[float]:
    try:
        times = [float(value) for value in values]
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a sequence of seconds, one number per layer") from None
    for layer, value in enumerate(times):
        if not 0.0 <= value < math.inf:
            raise InputError(f"{name}[{layer}] = {value}: seconds must be finite and not negative; measure the layer again")
    return times


def _first_layers(count: int, tied: Iterable[Iterable[int]]) -> list[int]:
    first_layer = list(range(count))
    seen: set[int] = set()
    for group in tied:
        layers = sorted(set(group))
        outside = [layer for layer in layers if not 0 <= layer < count]
        if outside or len(layers) < 2:
            raise InputError(f"tied group {layers}: name at least two layers from 0 to {count - 1}")
        if seen & set(layers):
            raise InputError(f"tied group {layers} shares layer {min(seen & set(layers))} with another group: join the two")
        seen |= set(layers)
        for layer in layers:
            first_layer[layer] = layers[0]
    return first_layer
