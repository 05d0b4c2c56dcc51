"""A network as emulation needs it: a topology, what else its links do to packets, and how it changes in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from farflung.cluster.presets import get_preset
from farflung.cluster.topology import Matrix, Topology
from farflung.errors import InputError
from farflung.units import BytesPerSecond, Seconds

__all__ = ["MAX_NETWORK", "QUEUE", "Change", "Network"]

#: Devices that a network has at most: its matrices are dense, unlike a topology's.
MAX_NETWORK = 1024
#: Seconds that a packet waits for a link's rate at most, where nothing else is said.
QUEUE = 0.2
#: Links of a change that are named.
_TOLD = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What changes ``at`` seconds after the beginning of the timeline. One kind at a time; the others are empty.

    ``links``: (row, column) of links that get ``values`` (keys of ``reading.LINK_KEYS`` in base units, and ``up``).
    ``nodes``: devices that get ``values`` (``uplink``, ``downlink`` in bytes per second, 0 for no limit; ``nat``, a name or "").
    ``groups``: from now on only devices of the same group reach each other; a device of no group reaches nobody.
    ``heal``: everybody reaches everybody again, as far as links are up. ``reset``: packets under way and NAT flows are lost.
    """

    at: Seconds
    links: tuple[tuple[int, int], ...] = ()
    nodes: tuple[int, ...] = ()
    values: Mapping[str, float | bool | str] = field(default_factory=dict)
    groups: tuple[tuple[int, ...], ...] = ()
    heal: bool = False
    reset: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """``topology`` and, for each ordered pair, ``jitter`` (s), ``loss`` and ``corrupt`` (shares of packets), ``queue`` (s).

    ``bandwidth`` (bytes/s): that of the pair alone, where the topology's ``beta`` heeds the devices' caps (default: ``beta``).
    Matrices have shape (n, n). Caps and NAT are the devices' own. ``timeline`` is sorted by time.

    Raises:
        InputError: a matrix has a wrong shape or an impossible value.
    """

    topology: Topology
    bandwidth: Matrix = field(default_factory=lambda: np.zeros(()))
    jitter: Matrix = field(default_factory=lambda: np.zeros(()))
    loss: Matrix = field(default_factory=lambda: np.zeros(()))
    corrupt: Matrix = field(default_factory=lambda: np.zeros(()))
    queue: Matrix = field(default_factory=lambda: np.full((), QUEUE))
    timeline: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.topology)
        if not np.any(self.bandwidth):
            object.__setattr__(self, "bandwidth", self.topology.beta)
        for key in ("bandwidth", "jitter", "loss", "corrupt", "queue"):
            given = np.asarray(getattr(self, key), dtype=np.float64)
            if given.shape not in ((), (n, n)):
                raise InputError(
                    f"network {self.topology.name!r}: {key} must have shape ({n}, {n}), got {given.shape}; "
                    "give one row and one column for each device"
                )
            matrix = np.broadcast_to(given, (n, n))
            highest = 1.0 if key in ("loss", "corrupt") else np.inf
            if not ((matrix >= 0) & (matrix <= highest)).all():
                raise InputError(f"network {self.topology.name!r}: {key} must be from 0 to {highest:g}; correct its links")
            object.__setattr__(self, key, matrix)
        object.__setattr__(self, "timeline", tuple(sorted(self.timeline, key=lambda change: change.at)))

    @classmethod
    def from_toml(cls, path: str | Path) -> Network:
        """Read a topology file with all that it says (see ``cluster.files``).

        Raises:
            InputError: the file can't be read; the text names file, key, value and remedy.
        """
        from farflung.cluster.files import read_network

        return read_network(Path(path))

    @classmethod
    def from_text(cls, text: str, source: str = "network text") -> Network:
        """Read the TOML text of a topology file; ``source`` is what errors call it."""
        from farflung.cluster.files import parse_network

        return parse_network(text, source)

    @classmethod
    def preset(cls, name: str) -> Network:
        """The topology preset of that name, with links that neither lose nor jitter."""
        return cls(topology=get_preset(name))

    @classmethod
    def named(cls, text: str) -> Network:
        """A file (what ends in .toml or has a slash) or a preset."""
        return cls.from_toml(text) if text.endswith(".toml") or "/" in text else cls.preset(text)

    def told(self, change: Change) -> str:
        """What ``change`` of the timeline is, for people."""
        names = self.topology.names
        if change.heal:
            return "everybody reaches everybody again"
        if change.reset:
            return "the router restarts: packets under way are lost"
        if change.groups:
            return "only these reach each other: " + " | ".join(", ".join(names[i] for i in group) for group in change.groups)
        ends = [f"{names[i]} -> {names[j]}" for i, j in change.links] or [names[i] for i in change.nodes]
        places = ", ".join(ends[:_TOLD]) + (f" and {len(ends) - _TOLD} more" if len(ends) > _TOLD else "")
        return f"{places}: " + ", ".join(_told_value(key, value) for key, value in change.values.items())


def _told_value(key: str, value: float | bool | str) -> str:
    if isinstance(value, bool):
        return f"{key} = {str(value).lower()}"
    if isinstance(value, str):
        return f"{key} = {value!r}"
    if key in ("loss", "corrupt"):
        return f"{key} {100 * value:.3g} %"
    kind = BytesPerSecond if key in ("bandwidth", "uplink", "downlink") else Seconds
    if kind is BytesPerSecond and not 0 < value < float("inf"):
        return f"no limit of {key}"
    return f"{key} {kind(value).written()}"
