"""A network as emulation needs it: a topology, what else its links do to packets, and how it changes in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from farflung.cluster.files import read_contents, read_text
from farflung.cluster.table_reader import QUEUE
from farflung.cluster.tables import Matrix
from farflung.cluster.timeline import Change
from farflung.cluster.topology import Topology
from farflung.errors import InputError
from farflung.units import BytesPerSecond, Seconds

__all__ = ["MAX_NETWORK", "Network"]

#: Devices that a network has at most: its matrices are dense, unlike a topology's.
MAX_NETWORK = 1024
#: Links of a change that are named.
_TOLD = 6


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
        return cls.from_text(read_text(Path(path)), str(path))

    @classmethod
    def from_text(cls, text: str, source: str = "network text") -> Network:
        """Read the TOML text of a topology file; ``source`` is what errors call it."""
        contents = read_contents(text, source)
        if len(contents.devices) > MAX_NETWORK:
            count = len(contents.devices)
            raise contents.reader.fail("device", f"a network has {MAX_NETWORK} devices at most, got {count}; choose fewer")
        grid = np.ix_(contents.group, contents.group)
        matrices = {key: table[grid] for key, table in contents.tables.items() if key != "latency"}
        return cls(topology=Topology.of(contents.topology), timeline=contents.changes, **matrices)

    @classmethod
    def preset(cls, name: str) -> Network:
        """The topology preset of that name, with links that neither lose nor jitter."""
        return cls(topology=Topology.preset(name))

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
