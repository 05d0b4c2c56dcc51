"""The devices that a job's limits let its plans use."""

from __future__ import annotations

from farflung.cluster import Device, Topology
from farflung.job.spec import LimitSpec

__all__ = ["allowed_devices"]


def allowed_devices(topology: Topology, limits: LimitSpec) -> list[Device]:
    """Those that ``limits`` neither exclude nor avoid, in the order of ``topology``; names that it lacks are passed over."""
    gone = set(limits.exclude)
    avoids = limits.unreliable == "avoid"
    return [d for d in topology.devices if not {d.name, d.region} & gone and (d.reliable or not avoids)]
