"""The Plan: who computes what, over which links, with which compression and schedule.

An immutable, versioned document. Planners make it, the runtime runs it, the dashboard draws it, a checkpoint stores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from farflung.plan.document import plan_fields, write_plan
from farflung.plan.parts import (
    PLAN_VERSION,
    CodecChoice,
    LinkPlan,
    Offload,
    Replica,
    Setting,
    Shard,
    Stage,
    SyncLayer,
    SyncPlan,
)

__all__ = [
    "PLAN_VERSION",
    "CodecChoice",
    "LinkPlan",
    "Offload",
    "Plan",
    "Replica",
    "Setting",
    "Shard",
    "Stage",
    "SyncLayer",
    "SyncPlan",
]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A complete plan for one graph (``graph_hash``) under one job.

    ``stages`` tile the graph's positions in order; several may name one device. ``links`` has an entry for each pair of
    stages that exchange values. ``micro_batch_sizes`` are the job's. ``sync``: how replicas agree (None: gradients are summed in
    the job's order in every step).
    """

    graph_hash: str
    planner: str
    stages: tuple[Stage, ...]
    links: tuple[LinkPlan, ...] = ()
    schedule: str = "1f1b"
    micro_batch_sizes: tuple[int, ...] = (1,)
    sync: SyncPlan | None = None
    version: int = PLAN_VERSION

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The devices in the order of their first stage, replicas in theirs."""
        return tuple(dict.fromkeys(device for stage in self.stages for device in stage.devices))

    @cached_property
    def link(self) -> Mapping[tuple[int, int], LinkPlan]:
        """(source stage, target stage) -> link."""
        return {(link.source, link.target): link for link in self.links}

    def stages_of(self, device: str) -> tuple[Stage, ...]:
        """The stages of which ``device`` holds a replica, in order."""
        return tuple(stage for stage in self.stages if device in stage.devices)

    def replicas_of(self, stage: int) -> tuple[Replica, ...]:
        """Who computes which micro-batches of ``stage``; at least one."""
        given = self.stages[stage]
        return given.replicas or (Replica(device=given.device, first=0, end=len(self.micro_batch_sizes)),)

    def device_of(self, stage: int, micro_batch: int) -> str:
        """Where ``micro_batch`` of ``stage`` is computed."""
        return next(r.device for r in self.replicas_of(stage) if r.first <= micro_batch < r.end)

    def steps_taken(self, stage: int, device: str) -> float:
        """The share of the steps in which the replica of ``stage`` on ``device`` computes."""
        if self.sync is None or not self.sync.local_steps:
            return 1.0
        return self.sync.local_steps[self.stages[stage].devices.index(device)] / max(self.sync.local_steps)

    @property
    def replicated(self) -> bool:
        """Whether any stage has several replicas."""
        return any(len(stage.devices) > 1 for stage in self.stages)

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """(start, stop) of each stage."""
        return tuple((stage.start, stage.stop) for stage in self.stages)

    def to_json(self) -> str:
        """The plan as JSON text."""
        return write_plan(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read what ``to_json`` wrote.

        Raises:
            VersionError: the document has another format version.
            PlanError: the text is no plan.
        """
        return cls(**plan_fields(text))
