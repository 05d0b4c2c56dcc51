"""The devices that a job's limits let its plans use."""

from __future__ import annotations

from farflung.cluster import Device, Topology
from farflung.job.engine_ranges import in_ranges
from farflung.job.spec import LimitSpec

__all__ = ["allowed_devices"]


def allowed_devices(topology: Topology, limits: LimitSpec) -> list[Device]:
    """Those that ``limits`` neither exclude nor avoid, in the order of ``topology``; names that it lacks are passed over."""
    gone = set(limits.exclude)
    avoids = limits.unreliable == "avoid"
    return [
        device
        for device in topology.devices
        if not {device.name, device.region} & gone
        and (device.reliable or not avoids)
        and in_ranges(device.engine, limits.engines)
    ]
