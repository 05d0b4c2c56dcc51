"""What a strategy knows of a replica's group: its members, its layers with their times, and who takes which local steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from farflung.errors import InputError
from farflung.sync.local_step_counts import takes
from farflung.units import Bytes, Seconds

__all__ = ["LayerInfo", "World"]

_NONE = Seconds(0.0)

Vector = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInfo:
    """One layer: bytes of its parameters, seconds of its backward, seconds of its exchange (measured or estimated).

    ``latency``: from the last byte of an exchange until its mean is everywhere. Measured exchanges hold it already.
    """

    nbytes: Bytes
    bp_seconds: Seconds
    comm_seconds: Seconds
    latency: Seconds = _NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One replica's view: its number, its group's size, the layers, and each member's share of a step's samples (empty: equal).

    ``local_steps``: how many steps of a period each member takes, for strategies ``by_speed`` (empty: all). ``shared``: layers
    with parameters that other stages of the pipeline hold, too: all of them are exchanged in the same steps, in every stage.
    ``codecs``: of each layer, where the strategy chooses them (``Traits.layer_codecs``; empty: not chosen yet).
    """

    rank: int
    members: int
    layers: tuple[LayerInfo, ...]
    shares: tuple[float, ...] = ()
    local_steps: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    codecs: tuple[str, ...] = ()

    @property
    def group(self) -> tuple[int, ...]:
        """All members."""
        return tuple(range(self.members))

    @property
    def every(self) -> tuple[int, ...]:
        """All layers."""
        return tuple(range(len(self.layers)))

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of means: shares of the samples that members use, or equal."""
        shares = self.shares or tuple(1.0 / self.members for _ in self.group)
        if not self.local_steps:
            return shares
        used = [share * steps for share, steps in zip(shares, self.local_steps, strict=True)]
        return tuple(part / sum(used) for part in used)

    def rests(self, step: int, sync_every: int) -> bool:
        """Whether the own replica takes no local step in step ``step``."""
        return bool(self.local_steps) and not takes(step, self.local_steps[self.rank], sync_every)

    def check(self) -> None:
        """A group has at least two members, and what is said about them fits.

        Raises:
            InputError: it has not, or it does not.
        """
        if self.members < 2:
            raise InputError(
                f"a group of {self.members} has nobody to synchronize with: give the stage 2 replicas or more, "
                "or remove the sync section"
            )
        if not 0 <= self.rank < self.members:
            raise InputError(f"rank {self.rank} in a group of {self.members}: ranks go from 0 to {self.members - 1}")
        if not self.layers:
            raise InputError("a group without layers has nothing to synchronize: give at least one layer")
        if self.shares and len(self.shares) != self.members:
            raise InputError(f"{len(self.shares)} shares for {self.members} members: give one of each, or none for equal shares")
        if self.local_steps and (len(self.local_steps) != self.members or min(self.local_steps) < 1):
            raise InputError(
                f"local steps {list(self.local_steps)} of {self.members} members: each takes at least one in a period"
            )
        if self.shares and not (all(0 < share < math.inf for share in self.shares) and abs(sum(self.shares) - 1) < 1e-6):
            raise InputError(f"shares {list(self.shares)}: each must be above 0, and they must add up to 1")

    @property
    def times(self) -> Vector:
        """The layers' times: float32[2 L], seconds of their backwards, then of their exchanges."""
        both = [layer.bp_seconds for layer in self.layers] + [layer.comm_seconds for layer in self.layers]
        return np.array(both, np.float32)

    @property
    def times_and_latencies(self) -> Vector:
        """``times``, then the latencies of the layers' exchanges: float32[3 L]. ``with_times`` makes the same layers from it."""
        return np.concatenate([self.times, np.array([layer.latency for layer in self.layers], np.float32)])

    def with_times(self, times: Vector) -> World:
        """The same group with other ``times`` of its layers: as measured, or ``times_and_latencies``."""
        count = len(self.layers)
        backward, exchange, latency = np.concatenate([times, np.zeros(3 * count - len(times), np.float32)]).reshape(3, count)
        layers = tuple(
            LayerInfo(
                nbytes=layer.nbytes,
                bp_seconds=Seconds(backward[index]),
                comm_seconds=Seconds(exchange[index]),
                latency=Seconds(latency[index]),
            )
            for index, layer in enumerate(self.layers)
        )
        return replace(self, layers=layers)
