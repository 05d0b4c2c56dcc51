"""Topology: the devices and, for each ordered pair, one-way latency ``alpha`` and bandwidth ``beta``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from farflung.cluster.blocks import BlockMatrix, Blocks, find_blocks
from farflung.cluster.device import Device, Link
from farflung.cluster.document import read_tables, to_json
from farflung.cluster.files import parse_topology, read_topology, write_topology
from farflung.cluster.presets import get_preset
from farflung.cluster.tables import Matrix, TopologyTables, link_caps
from farflung.errors import InputError
from farflung.ids import Pair, pair_of
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds

__all__ = ["Matrix", "Pair", "Topology", "link_caps", "pair_of"]

#: Links given by groups become dense arrays up to this many devices, and stay ``BlockMatrix`` beyond.
_DENSE = 2048


@dataclass(frozen=True, kw_only=True, eq=False)
class Topology:
    """Devices and the links between them.

    ``alpha[i, j]``: one-way latency from device i to device j in seconds. ``beta[i, j]``: bandwidth in bytes per second.
    Both are (n, n) float64 arrays that can't be written to; on the diagonal alpha is 0 and beta infinite. Where links were
    given by groups of devices (``from_groups``, files, presets) and there are more than 2,048 devices, both are a
    ``BlockMatrix``, which is indexed and calculated with like an array and dense only by ``np.asarray``.
    ``via``: pairs that can't reach each other -> who relays for them, the one that is used first (empty: nobody can); their
    alpha and beta are those through the relay (``cluster.relays``).

    Raises:
        InputError: a name is used twice, or a matrix has a wrong shape or an impossible value.
    """

    devices: tuple[Device, ...]
    alpha: Matrix
    beta: Matrix
    name: str = "topology"
    via: Mapping[Pair, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.devices:
            raise InputError(f"topology {self.name!r} has no device; add at least one [[device]]")
        seen: set[str] = set()
        for device in self.devices:
            if device.name in seen:
                raise InputError(f"topology {self.name!r}: two devices are called {device.name!r}; give each its own name")
            seen.add(device.name)
        object.__setattr__(self, "alpha", self._matrix("alpha", self.alpha, 0.0))
        object.__setattr__(self, "beta", self._matrix("beta", self.beta, np.inf))
        alpha, beta = self._table("alpha"), self._table("beta")
        for key, bad in (("alpha", ~np.isfinite(alpha) | (alpha < 0)), ("beta", ~(beta > 0))):
            if bad.any():
                i, j = self._where(key, *(int(x) for x in np.argwhere(bad)[0]))
                rule = "finite and not negative (seconds)" if key == "alpha" else "more than 0 (bytes per second)"
                raise InputError(
                    f"topology {self.name!r}: {key} from {self.devices[i].name!r} to {self.devices[j].name!r} must be {rule}, "
                    f"got {getattr(self, key)[i, j]}; correct the link between them"
                )

    def _table(self, key: str) -> Matrix:
        """The numbers that matrix ``key`` is made of."""
        matrix: object = getattr(self, key)
        return matrix.table if isinstance(matrix, BlockMatrix) else cast(Matrix, matrix)

    def _where(self, key: str, row: int, column: int) -> tuple[int, int]:
        """Two devices between which that number stands (the last of the second group, so that they differ)."""
        matrix: object = getattr(self, key)
        if not isinstance(matrix, BlockMatrix):
            return row, column
        return int(np.flatnonzero(matrix.group == row)[0]), int(np.flatnonzero(matrix.group == column)[-1])

    def _matrix(self, key: str, given: object, diagonal: float) -> Matrix:
        n = len(self.devices)
        if isinstance(given, BlockMatrix) and n > _DENSE and given.shape == (n, n):
            return cast(Matrix, given)
        matrix = np.array(given, dtype=np.float64)
        if matrix.shape != (n, n):
            raise InputError(
                f"topology {self.name!r}: {key} must have shape ({n}, {n}) for {n} devices, got {matrix.shape}; "
                "give one row and one column for each device"
            )
        np.fill_diagonal(matrix, diagonal)
        matrix.setflags(write=False)
        return matrix

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topology) or (self.name, self.devices) != (other.name, other.devices):
            return False
        if dict(self.via) != dict(other.via):
            return False
        rows = range(len(self.devices))
        return all(
            bool(np.array_equal(self.alpha[i, :], other.alpha[i, :]) and np.array_equal(self.beta[i, :], other.beta[i, :]))
            for i in rows
        )

    def __hash__(self) -> int:
        return hash(self.devices)

    def __len__(self) -> int:
        return len(self.devices)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The devices' names, in order."""
        return tuple(device.name for device in self.devices)

    @cached_property
    def _index(self) -> Mapping[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def regions(self) -> Mapping[str, tuple[int, ...]]:
        """Region -> indices of its devices, in order of first appearance."""
        table: dict[str, list[int]] = {}
        for i, device in enumerate(self.devices):
            table.setdefault(device.region, []).append(i)
        return {region: tuple(members) for region, members in table.items()}

    @property
    def in_blocks(self) -> bool:
        """Whether alpha and beta are kept by groups of devices and not as dense arrays."""
        return isinstance(cast(object, self.alpha), BlockMatrix)

    @cached_property
    def blocks(self) -> Blocks:
        """Groups of interchangeable devices and the links between them (each device its own group, at worst)."""
        alpha, beta = cast(object, self.alpha), cast(object, self.beta)
        if isinstance(alpha, BlockMatrix) and isinstance(beta, BlockMatrix):
            return Blocks(group=alpha.group, alpha=alpha.table, beta=beta.table)
        return find_blocks(self.alpha, self.beta)

    @cached_property
    def speeds(self) -> Matrix:
        """FLOP/s that each device reaches while all devices of its host compute, shape (n,)."""
        alone = np.array([device.achieved for device in self.devices], dtype=np.float64)
        return alone * np.array(self.host_shares, dtype=np.float64)

    @cached_property
    def host_shares(self) -> tuple[float, ...]:
        """The share of its full speed that each device reaches while all devices of its host compute."""
        shares = [1.0] * len(self)
        for capacity, members in self.hosts:
            for i in members:
                shares[i] = capacity / len(members)
        return tuple(shares)

    @cached_property
    def hosts(self) -> tuple[tuple[float, tuple[int, ...]], ...]:
        """(capacity, indices of the devices) of each host whose devices slow each other down when all of them compute."""
        members: dict[str, list[int]] = {}
        for i, device in enumerate(self.devices):
            if device.host:
                members.setdefault(device.host, []).append(i)
        found = ((min(self.devices[i].host_capacity for i in own), tuple(own)) for own in members.values())
        return tuple((capacity, own) for capacity, own in found if len(own) > capacity)

    @cached_property
    def memory(self) -> Matrix:
        """Bytes of each device, shape (n,)."""
        return np.array([device.memory for device in self.devices], dtype=np.float64)

    def index(self, name: str) -> int:
        """Row and column of the device called ``name``.

        Raises:
            InputError: there is none; the text lists the known names.
        """
        try:
            return self._index[name]
        except KeyError:
            shown = ", ".join(self.names[:12]) + (", ..." if len(self) > 12 else "")
            raise InputError(f"topology {self.name!r} has no device {name!r}; known are {shown}") from None

    def device(self, name: str) -> Device:
        """The device called ``name``."""
        return self.devices[self.index(name)]

    def link(self, source: str, target: str) -> Link:
        """The directed link between two devices."""
        i, j = self.index(source), self.index(target)
        return Link(source=source, target=target, latency=Seconds(self.alpha[i, j]), bandwidth=BytesPerSecond(self.beta[i, j]))

    def relay(self, source: str, target: str) -> str:
        """Who relays between two devices (empty: nobody has to, or nobody can)."""
        return next(iter(self.via.get(pair_of(source, target), ())), "")

    def seconds(self, source: str, target: str, nbytes: float) -> float:
        """``T_comm`` of a message of ``nbytes``; 0 on one device or for nothing."""
        i, j = self.index(source), self.index(target)
        return float(self.alpha[i, j] + nbytes / self.beta[i, j]) if i != j and nbytes > 0 else 0.0

    def select(self, names: Sequence[str]) -> Topology:
        """The topology of these devices only, in this order."""
        rows = [self.index(name) for name in names]
        devices = tuple(self.devices[i] for i in rows)
        if self.in_blocks:
            blocks = self.blocks
            return Topology.from_groups(devices, blocks.group[rows], blocks.alpha, blocks.beta, self.name)
        grid = np.ix_(rows, rows)
        via = {pair: relays for pair, relays in self.via.items() if set(pair) <= set(names)}
        return replace(self, devices=devices, alpha=self.alpha[grid], beta=self.beta[grid], via=via)

    def rename(self, names: Mapping[str, str]) -> Topology:
        """The same topology with devices renamed (old name -> new name)."""
        for name in names:
            self.index(name)
        devices = tuple(replace(d, name=names.get(d.name, d.name)) for d in self.devices)
        via = {
            pair_of(*(names.get(name, name) for name in pair)): tuple(names.get(name, name) for name in relays)
            for pair, relays in self.via.items()
        }
        return replace(self, devices=devices, via=via)

    def with_devices(self, devices: Sequence[Device]) -> Topology:
        """The same links under other device descriptions (for instance with fitted speed factors)."""
        return replace(self, devices=tuple(devices))

    @classmethod
    def from_matrices(
        cls,
        alpha_seconds: npt.ArrayLike,
        beta_bytes_per_second: npt.ArrayLike,
        devices: Sequence[Device] | None = None,
        name: str = "matrices",
    ) -> Topology:
        """A topology from two (n, n) matrices; without ``devices`` they are equal ones called ``device-0`` ...

        The default device has 16 GB and 1 TFLOP/s: enough to compare networks, not to check memory.
        """
        alpha = np.array(alpha_seconds, dtype=np.float64)
        if devices is None:
            rows = alpha.shape[0] if alpha.ndim else 0
            devices = [Device(name=f"device-{i}", memory=Bytes(16e9), speed=FlopsPerSecond(1e12)) for i in range(rows)]
        return cls(devices=tuple(devices), alpha=alpha, beta=np.array(beta_bytes_per_second, dtype=np.float64), name=name)

    @classmethod
    def from_groups(
        cls,
        devices: Sequence[Device],
        group: Sequence[int] | npt.NDArray[np.int64],
        alpha_seconds: npt.ArrayLike,
        beta_bytes_per_second: npt.ArrayLike,
        name: str = "groups",
    ) -> Topology:
        """A topology whose links depend on the devices' groups only.

        ``group``: (n,) numbers from 0. Both matrices are (k, k) for k groups; their diagonals are the links inside a group.

        Raises:
            InputError: a matrix has a wrong shape or an impossible value.
        """
        numbers = np.array(group, dtype=np.int64)
        tables = [np.array(table, dtype=np.float64) for table in (alpha_seconds, beta_bytes_per_second)]
        count = int(numbers.max(initial=-1)) + 1
        for table in tables:
            if len(numbers) != len(devices) or table.ndim != 2 or table.shape[0] != table.shape[1] or len(table) < count:
                raise InputError(
                    f"topology {name!r}: {len(devices)} devices in {count} groups need as many group numbers and square tables "
                    f"of at least {count} rows, got {len(numbers)} numbers and a table of shape {table.shape}; correct the tables"
                )
        used, numbers = np.unique(numbers, return_inverse=True)
        alpha, beta = (table[np.ix_(used, used)] for table in tables)
        single = np.bincount(numbers) == 1
        alpha[single, single], beta[single, single] = 0.0, np.inf
        return cls(
            devices=tuple(devices),
            alpha=cast(Matrix, BlockMatrix(numbers, alpha, 0.0)),
            beta=cast(Matrix, BlockMatrix(numbers, beta, float("inf"))),
            name=name,
        )

    @classmethod
    def of(cls, tables: TopologyTables) -> Topology:
        """The topology that ``tables`` describe.

        Raises:
            InputError: a name is used twice, or a table has a wrong shape or an impossible value.
        """
        if tables.group is not None:
            return cls.from_groups(tables.devices, tables.group, tables.alpha, tables.beta, tables.name)
        alpha, beta = (np.asarray(table, dtype=np.float64) for table in (tables.alpha, tables.beta))
        return cls(devices=tuple(tables.devices), alpha=alpha, beta=beta, name=tables.name, via=tables.via)

    @classmethod
    def from_toml(cls, path: str | Path) -> Topology:
        """Read a topology file (see ``cluster.files`` for its form).

        Raises:
            InputError: the file can't be read; the text names file, key, value and remedy.
        """
        return cls.of(read_topology(Path(path)))

    @classmethod
    def from_text(cls, text: str, source: str = "topology text") -> Topology:
        """Read the TOML text of a topology; ``source`` is what errors call it."""
        return cls.of(parse_topology(text, source))

    def to_toml(self, *, digits: int | None = None) -> str:
        """TOML text that ``from_text`` reads back to an equal topology; with ``digits`` for people: quantities with their units,
        rounded to so many digits, and no empty keys."""
        return write_topology(self, digits)

    @classmethod
    def preset(cls, name: str) -> Topology:
        """A named topology (see ``cluster.presets``)."""
        return cls.of(get_preset(name))

    def to_json(self) -> str:
        """The topology as JSON."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Topology:
        """Read what ``to_json`` wrote.

        Raises:
            InputError: the text is not such a document.
        """
        return cls.of(read_tables(text))
