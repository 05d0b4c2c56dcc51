"""All that a user can change about a job and its cluster, as data; and the topology and the job that result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from farflung.api.topology_changes import with_copies
from farflung.cluster import Device, Topology, with_relays
from farflung.cluster.topology import link_caps
from farflung.errors import InputError
from farflung.graph.ir import Graph
from farflung.job.load import make_job
from farflung.job.spec import JobSpec
from farflung.simulator import PriceTable, TrafficPrice
from farflung.simulator.typical_power import typical_power
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds

__all__ = ["MOST_MACHINES", "Choices", "LinkChange", "LinkGroup", "MachineChange", "Scenario", "link_groups"]

#: Machines of a scenario at most: beyond that, a change takes seconds instead of milliseconds.
MOST_MACHINES = 256
#: Machines that are links' ends on their own where all of them are in one region.
_SINGLE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChange:
    """The links between two regions or machines, both directions: a one-way latency and a bandwidth (``None``: unchanged)."""

    here: str
    there: str
    latency: Seconds | None = None
    bandwidth: BytesPerSecond | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineChange:
    """``count`` machines like ``name`` (0: none), ``speed`` times as fast, with ``memory`` (``None``: unchanged).

    ``rent``: the price of an hour of each, in the currency of the scenario.
    """

    name: str
    count: int = 1
    speed: float = 1.0
    memory: Bytes | None = None
    rent: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Settings of the job that differ from the job file (``None``: as in the job file).

    ``micro_batches``: their number in a step. ``samples``: of each of them. ``ratio`` is that of a sparse codec.
    """

    planner: str | None = None
    codec: str | None = None
    ratio: float | None = None
    strategy: str | None = None
    replicas: int | None = None
    micro_batches: int | None = None
    samples: int | None = None

    def job(self, job: JobSpec) -> JobSpec:
        """Return ``job`` with these settings.

        Raises:
            InputError: a value is not allowed.
        """
        body: dict[str, Any] = job.model_dump(mode="json")
        body["plan"] |= _given(planner=self.planner, replicas=self.replicas)
        body["codec"] |= _given(name=self.codec, ratio=self.ratio)
        if self.strategy is not None and self.strategy != job.sync.strategy:
            body["sync"] = {"strategy": self.strategy}
        if self.micro_batches is not None or self.samples is not None:
            body["micro_batch_sizes"] = self._sizes(job.micro_batch_sizes)
            body["virtual_replicas"] = None
        return make_job(body, source="settings")

    def _sizes(self, sizes: tuple[int, ...]) -> list[int]:
        """Return the samples of each micro-batch; without ``samples``, those of the job from the first on, again and again."""
        count = self.micro_batches or len(sizes)
        return [self.samples or sizes[index % len(sizes)] for index in range(count)]


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True, eq=False)
class Scenario:
    """A job on a changed topology.

    ``graph``: the model, where it is known, as that of a run (``None``: it is captured from the job).
    ``bandwidth`` and ``latency`` multiply the links between regions (between all machines where there is one region).
    ``links`` come first, then these factors, then the machines. ``energy_price`` is per kWh, ``traffic_price`` per 10^9 bytes
    between regions.
    """

    job: JobSpec
    topology: Topology
    graph: Graph | None = None
    choices: Choices = field(default_factory=Choices)
    bandwidth: float = 1.0
    latency: float = 1.0
    links: tuple[LinkChange, ...] = ()
    machines: tuple[MachineChange, ...] = ()
    energy_price: float = 0.0
    traffic_price: float = 0.0
    currency: str = "USD"

    def chosen_job(self) -> JobSpec:
        """Return the job with the user's settings.

        Raises:
            InputError: a value is not allowed.
        """
        return self.choices.job(self.job)

    def changed(self) -> Topology:
        """Return the topology after all changes.

        Raises:
            InputError: a change names nothing known, has an impossible value, or leaves no machine.
        """
        count = len(self.topology) + sum(max(change.count - 1, 0) for change in self.machines)
        if count > MOST_MACHINES:
            raise InputError(
                f"{count} machines: a scenario takes at most {MOST_MACHINES}; use farflung plan, or fewer machines of each kind"
            )
        found = self.topology
        for change in self.links:
            found = _linked(found, change)
        found = _scaled(found, self.bandwidth, self.latency)
        for machine in self.machines:
            found = _machined(found, machine)
        return with_relays(found)

    def prices(self, topology: Topology) -> PriceTable:
        """Return the prices of the machines of ``topology``, which may hold copies of machines of the scenario."""
        rents = {change.name: change.rent for change in self.machines}
        devices = tuple(
            replace(price, hour=rents.get(original(device.name, rents), 0.0))
            for device, price in zip(topology.devices, typical_power(topology.devices), strict=True)
        )
        traffic = (TrafficPrice(gigabyte=self.traffic_price),) if self.traffic_price else ()
        return PriceTable(devices=devices, traffic=traffic, energy_price=self.energy_price, currency=self.currency)


def original(name: str, known: Mapping[str, object]) -> str:
    """Return the machine of which ``name`` is a copy (``name`` itself: it is none)."""
    if name in known:
        return name
    return name.rpartition("-new-")[0] or name


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkGroup:
    """The links between two groups of machines (or inside one): their median latency and bandwidth, there and back."""

    here: str
    there: str
    latency: Seconds
    bandwidth: BytesPerSecond


def link_groups(topology: Topology) -> tuple[LinkGroup, ...]:
    """Return the links between regions, and inside each; between machines where one region holds at most 8 of them."""
    groups = _groups(topology)
    names = list(groups)
    found = []
    for i, here in enumerate(names):
        for there in names[i:]:
            rows = [(a, b) for a in groups[here] for b in groups[there] if a != b]
            if not rows:
                continue
            ends = tuple(np.array(side) for side in zip(*rows, strict=True))
            alpha, beta = np.asarray(topology.alpha[ends]), np.asarray(topology.beta[ends])
            found.append(
                LinkGroup(
                    here=here,
                    there=there,
                    latency=Seconds(float(np.median(alpha))),
                    bandwidth=BytesPerSecond(float(np.median(beta))),
                )
            )
    return tuple(found)


def _groups(topology: Topology) -> dict[str, list[int]]:
    if len(topology.regions) == 1 and len(topology) <= _SINGLE:
        return {name: [i] for i, name in enumerate(topology.names)}
    return {region or "no region": list(members) for region, members in topology.regions.items()}


def _linked(topology: Topology, change: LinkChange) -> Topology:
    """Set the links of ``change``; up- and downlinks of machines grow where they are below the new bandwidth."""
    groups = _groups(topology) | {name: [i] for i, name in enumerate(topology.names)}
    for name in (change.here, change.there):
        if name not in groups:
            raise InputError(f"no region and no machine is called {name!r}; known are {', '.join(list(groups)[:16])}")
    chosen = np.zeros((len(topology), len(topology)), dtype=bool)
    for rows, columns in ((change.here, change.there), (change.there, change.here)):
        chosen[np.ix_(groups[rows], groups[columns])] = True
    np.fill_diagonal(chosen, val=False)
    alpha, beta = np.array(topology.alpha), np.array(topology.beta)
    if change.latency is not None:
        alpha[chosen] = change.latency
    devices: Sequence[Device] = topology.devices
    if change.bandwidth is not None:
        if not change.bandwidth > 0:
            raise InputError(f"the bandwidth between {change.here} and {change.there} must be more than 0")
        beta[chosen] = change.bandwidth
        ends: list[bool] = np.any(chosen, axis=1).tolist()
        devices = [_with_caps(device, change.bandwidth) if ends[i] else device for i, device in enumerate(devices)]
    return replace(topology, devices=tuple(devices), alpha=alpha, beta=beta)


def _with_caps(device: Device, least: float) -> Device:
    return replace(
        device,
        uplink=None if device.uplink is None else BytesPerSecond(max(device.uplink, least)),
        downlink=None if device.downlink is None else BytesPerSecond(max(device.downlink, least)),
    )


def _scaled(topology: Topology, bandwidth: float, latency: float) -> Topology:
    """Multiply the links between regions, and the up- and downlinks of machines."""
    if (bandwidth, latency) == (1.0, 1.0):
        return topology
    if not 0 < bandwidth < float("inf") or not 0 <= latency < float("inf"):
        raise InputError(f"factors of links must be more than 0, got {bandwidth:g} (bandwidth) and {latency:g} (latency)")
    region = np.array([list(topology.regions).index(device.region) for device in topology.devices])
    apart = region[:, None] != region[None, :]
    if not apart.any():
        apart = ~np.eye(len(topology), dtype=bool)
    devices = tuple(
        replace(
            device,
            uplink=None if device.uplink is None else BytesPerSecond(device.uplink * bandwidth),
            downlink=None if device.downlink is None else BytesPerSecond(device.downlink * bandwidth),
        )
        for device in topology.devices
    )
    alpha = np.where(apart, np.asarray(topology.alpha) * latency, topology.alpha)
    beta = np.where(apart, np.asarray(topology.beta) * bandwidth, topology.beta)
    caps = link_caps(devices)
    np.fill_diagonal(caps, np.inf)
    return replace(topology, devices=devices, alpha=alpha, beta=np.minimum(beta, caps))


def _machined(topology: Topology, change: MachineChange) -> Topology:
    if change.name not in topology.names:
        raise InputError(f"no machine is called {change.name!r}; known are {', '.join(topology.names[:16])}")
    if change.count == 0:
        if len(topology) == 1:
            raise InputError("the scenario has no machine left; keep at least one")
        return topology.select([name for name in topology.names if name != change.name])
    if change.count < 0 or not 0 < change.speed < float("inf"):
        raise InputError(f"{change.name}: the number of machines must be from 0 on, and the speed more than 0")
    devices = [_changed(device, change) if device.name == change.name else device for device in topology.devices]
    found = topology.with_devices(devices)
    return found if change.count == 1 else with_copies(found, change.count - 1, change.name)


def _changed(device: Device, change: MachineChange) -> Device:
    return replace(
        device,
        speed=FlopsPerSecond(device.speed * change.speed),
        overhead=Seconds(device.overhead / change.speed),
        memory=device.memory if change.memory is None else change.memory,
    )
