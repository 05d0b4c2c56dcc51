"""The joined workers as a topology."""

from __future__ import annotations

from typing import Any

from farflung.cluster import Device
from farflung.cluster.document import device_entry
from farflung.units import Bytes, FlopsPerSecond, Seconds
from farflung.web.sources.broker_poll import ClusterState, LinkRow
from farflung.web.sources.measured_topology import measured_topology


def member(name: str, **changes: Any) -> dict[str, Any]:
    device = Device(name=name, memory=Bytes(4e9), speed=FlopsPerSecond(1e10), **changes)
    return {"name": name, "bandwidth": None, "device": device_entry(device)}


def test_measured_links_and_supposed_ones() -> None:
    links = (LinkRow(source="a", target="b", alpha=0.02, beta=1e6), LinkRow(source="a", target="gone", alpha=1.0, beta=1.0))
    cluster = ClusterState(members=(member("a"), member("b", kind="cuda"), member("c")), links=links)
    found = measured_topology(cluster, {"a": "home"})
    assert found is not None
    assert (found.alpha[0, 1], found.beta[0, 1]) == (0.02, 1e6)
    assert (found.alpha[1, 0], found.beta[1, 0]) == (1e-3, 125e6)
    assert [(device.kind, device.region) for device in found.devices] == [("cpu", "home"), ("cuda", ""), ("cpu", "")]
    assert measured_topology(ClusterState(), {}) is None


def test_shared_cores_overhead_and_capped_uplinks_count_as_for_the_broker() -> None:
    own = {"speed_factor": 0.4, "overhead": Seconds(2e-5), "convolution": 1.5, "host": "host of a", "host_capacity": 2.0}
    cluster = ClusterState(members=tuple(member(name, **own) for name in "abc"), uplinks={"a": 1e6})
    found = measured_topology(cluster, {})
    assert found is not None
    assert found.hosts == ((2.0, (0, 1, 2)),)
    assert [device.overhead for device in found.devices] == [2e-5] * 3
    assert [(device.speed_factor, device.convolution, device.host) for device in found.devices] == [(0.4, 1.5, "host of a")] * 3
    assert (found.devices[0].uplink, found.beta[0, 1], found.beta[1, 0]) == (1e6, 1e6, 125e6)
