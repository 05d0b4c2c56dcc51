"""Memory and speed of the whole cluster. What workers of one machine share counts once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farflung.cluster.document import device_of_entry
from farflung.units import Bytes, FlopsPerSecond

__all__ = ["cluster_totals"]


def cluster_totals(members: Sequence[Mapping[str, Any]]) -> tuple[Bytes, FlopsPerSecond]:
    """Return memory and speed of ``members``, entries of ``farflung status --json``.

    Workers that share a machine's processors have at most its installed memory, and reach at most its capacity together.
    """
    machines: dict[str, list[Mapping[str, Any]]] = {}
    for one in members:
        host = device_of_entry(one["device"]).host
        machines.setdefault(host or f"worker {one['name']}", []).append(one)
    memory = speed = 0.0
    for workers in machines.values():
        offered = sum(float(one["memory"]) for one in workers)
        installed = max(float(one.get("installed") or 0.0) for one in workers)
        memory += min(offered, installed) if installed else offered
        capacity = min(device_of_entry(one["device"]).host_capacity for one in workers)
        speed += sum(float(one["speed"]) for one in workers) * min(1.0, capacity / len(workers))
    return Bytes(memory), FlopsPerSecond(speed)
