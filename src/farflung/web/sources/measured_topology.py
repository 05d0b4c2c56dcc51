"""The joined workers as a topology, for scenarios: as the broker's status and its table of links describe them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np

from farflung.cluster import Device, Topology
from farflung.cluster.device import DeviceKind
from farflung.units import Bytes, FlopsPerSecond
from farflung.web.sources.broker_poll import ClusterState

__all__ = ["measured_topology"]

#: Of a link that was not measured, as the broker supposes: seconds, bytes per second.
_LATENCY, _BANDWIDTH = 1e-3, 125e6


def measured_topology(cluster: ClusterState, regions: Mapping[str, str]) -> Topology | None:
    """Return the topology of the joined workers (``None``: there are none). ``regions``: worker -> region, where known."""
    devices = tuple(_device(one, regions.get(str(one["name"]), "")) for one in cluster.members)
    if not devices:
        return None
    place = {device.name: index for index, device in enumerate(devices)}
    alpha = np.full((len(devices), len(devices)), _LATENCY)
    beta = np.full((len(devices), len(devices)), _BANDWIDTH)
    for link in cluster.links:
        if link.source in place and link.target in place and link.beta > 0:
            alpha[place[link.source], place[link.target]] = link.alpha
            beta[place[link.source], place[link.target]] = link.beta
    return Topology(devices=devices, alpha=alpha, beta=beta, name="this cluster")


def _device(one: Mapping[str, Any], region: str) -> Device:
    kind: DeviceKind = next((kind for kind in get_args(DeviceKind) if kind == one["kind"]), "cpu")
    return Device(
        name=str(one["name"]),
        memory=Bytes(max(float(one["memory"]), 1.0)),
        speed=FlopsPerSecond(max(float(one["speed"]), 1.0)),
        kind=kind,
        region=region,
    )
