"""Sites around any planner: a plan with sites goes through its micro-batches in groups, one micro-batch for each rank.

A site counts as one device with the speed of its ranks together. Each rank has the parameters of the site's stages, so the inner
planner sees the memory of one rank (``engines.site.runner``).
"""

from __future__ import annotations

import math
from dataclasses import replace

from farflung.cluster import Device, Topology
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import Plan
from farflung.planners.base import Evaluate, Judged, Planner
from farflung.schedules import grouped
from farflung.units import Bytes

__all__ = ["Siting"]


class Siting:
    """``planner``, but plans with sites have a schedule in groups."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self.name = planner.name

    def judged_by(self, evaluate: Evaluate) -> Planner:
        """The same planner, whose plans are compared by ``evaluate``."""
        return Siting(self._planner.judged_by(evaluate)) if isinstance(self._planner, Judged) else self

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """See ``Planner.plan``."""
        ranks = {device.name: device.ranks for device in topology.devices}
        if set(ranks.values()) == {1}:
            return self._planner.plan(graph, topology, job=job)
        devices = tuple(_one_rank(device) for device in topology.devices)
        plan = self._planner.plan(graph, replace(topology, devices=devices), job=job)
        count = math.lcm(*(ranks[device] for device in plan.devices))
        return replace(plan, schedule=grouped(plan.schedule, min(count, len(plan.micro_batch_sizes))))


def _one_rank(device: Device) -> Device:
    return replace(device, memory=Bytes(device.memory / device.ranks))
