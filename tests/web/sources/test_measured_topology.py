"""The joined workers as a topology."""

from __future__ import annotations

from typing import Any

from farflung.web.sources.broker_poll import ClusterState, LinkRow
from farflung.web.sources.measured_topology import measured_topology


def member(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "memory": 4e9, "speed": 1e10, "kind": "cpu", **changes}


def test_measured_links_and_supposed_ones() -> None:
    links = (LinkRow(source="a", target="b", alpha=0.02, beta=1e6), LinkRow(source="a", target="gone", alpha=1.0, beta=1.0))
    cluster = ClusterState(members=(member("a"), member("b", kind="cuda"), member("c", kind="tpu", speed=0.0)), links=links)
    found = measured_topology(cluster, {"a": "home"})
    assert found is not None
    assert (found.alpha[0, 1], found.beta[0, 1]) == (0.02, 1e6)
    assert (found.alpha[1, 0], found.beta[1, 0]) == (1e-3, 125e6)
    assert [(device.kind, device.region) for device in found.devices] == [("cpu", "home"), ("cuda", ""), ("cpu", "")]
    assert found.devices[2].speed > 0
    assert measured_topology(ClusterState(), {}) is None
