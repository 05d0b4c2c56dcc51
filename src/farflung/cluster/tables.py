"""What a topology consists of: devices, and tables of the links between them or between groups of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from farflung.cluster.blocks import Blocks
from farflung.cluster.device import Device
from farflung.ids import Pair

__all__ = ["Matrix", "TopologyFields", "TopologyTables", "link_caps"]

Matrix = npt.NDArray[np.float64]
Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyTables:
    """Devices and tables, from which ``Topology.of`` makes a topology.

    ``alpha``: latencies in seconds. ``beta``: bandwidths in bytes per second. ``group``: the row of each device in the tables
    (``None``: each device has its own row). ``via``: as in ``Topology``.
    """

    devices: Sequence[Device]
    alpha: Matrix | Rows
    beta: Matrix | Rows
    name: str
    group: Sequence[int] | npt.NDArray[np.int64] | None = None
    via: Mapping[Pair, tuple[str, ...]] = field(default_factory=dict)


class TopologyFields(Protocol):
    """What code that writes a topology reads of it (``topology.Topology``)."""

    @property
    def name(self) -> str:
        """The topology's name."""

    @property
    def names(self) -> tuple[str, ...]:
        """The devices' names."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices."""

    @property
    def regions(self) -> Mapping[str, tuple[int, ...]]:
        """Region -> indices of its devices."""

    @property
    def alpha(self) -> Matrix:
        """Latencies in seconds."""

    @property
    def beta(self) -> Matrix:
        """Bandwidths in bytes per second."""

    @property
    def blocks(self) -> Blocks:
        """The links between groups of devices."""

    @property
    def in_blocks(self) -> bool:
        """Whether the links are stored by groups."""

    @property
    def via(self) -> Mapping[Pair, tuple[str, ...]]:
        """The relays of pairs."""


def link_caps(devices: Sequence[Device]) -> Matrix:
    """(n, n) bytes per second that no link exceeds: the sender's uplink and the receiver's downlink (infinite without them)."""
    up = np.array([np.inf if device.uplink is None else device.uplink for device in devices], dtype=np.float64)
    down = np.array([np.inf if device.downlink is None else device.downlink for device in devices], dtype=np.float64)
    least: Matrix = np.minimum(up[:, None], down[None, :])
    return least
