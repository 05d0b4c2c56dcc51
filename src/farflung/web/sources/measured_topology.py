"""The joined workers as a topology, for scenarios: as the broker's status and its table of links describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from farflung.cluster import Device, Topology
from farflung.cluster.document import device_of_entry
from farflung.units import BytesPerSecond
from farflung.web.sources.broker_poll import ClusterState

__all__ = ["measured_topology"]

#: Of a link that was not measured, as the broker supposes: seconds, bytes per second.
_LATENCY, _BANDWIDTH = 1e-3, 125e6


def measured_topology(cluster: ClusterState, regions: Mapping[str, str]) -> Topology | None:
    """Return the topology of the joined workers (``None``: there are none). ``regions``: worker -> region, where known."""
    devices = tuple(_device(one, regions, cluster.uplinks) for one in cluster.members)
    if not devices:
        return None
    place = {device.name: index for index, device in enumerate(devices)}
    alpha = np.full((len(devices), len(devices)), _LATENCY)
    beta = np.full((len(devices), len(devices)), _BANDWIDTH)
    for link in cluster.links:
        if link.source in place and link.target in place and link.beta > 0:
            alpha[place[link.source], place[link.target]] = link.alpha
            beta[place[link.source], place[link.target]] = link.beta
    for index, device in enumerate(devices):
        if device.uplink is not None:
            beta[index] = np.minimum(beta[index], device.uplink)
    return Topology(devices=devices, alpha=alpha, beta=beta, name="this cluster")


def _device(one: Mapping[str, Any], regions: Mapping[str, str], uplinks: Mapping[str, float]) -> Device:
    """Return the device as the broker plans for it: what it shares with others of its host counts."""
    found = device_of_entry(one["device"])
    caps = [rate for rate in (uplinks.get(found.name), one.get("bandwidth")) if rate]
    uplink = BytesPerSecond(min(caps)) if caps else None
    return replace(found, region=regions.get(found.name, found.region), uplink=uplink)
