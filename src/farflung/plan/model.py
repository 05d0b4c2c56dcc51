"""The Plan: who computes what, over which links, with which compression and schedule.

An immutable, versioned document. Planners make it, the runtime runs it, the dashboard draws it, a checkpoint stores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from farflung.sync.reductions import Reduction

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

PLAN_VERSION = 2
#: What a stage can have on a disk.
Offload = Literal["none", "optimizer"]
#: What the ranks of a site can divide.
Shard = Literal["none", "parameters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A copy of a stage: ``device`` computes the micro-batches ``first`` to ``end`` (exclusive) of every step."""

    device: str
    first: int
    end: int

    @property
    def micro_batches(self) -> range:
        """The micro-batches that it computes."""
        return range(self.first, self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Positions ``start`` to ``stop`` (exclusive) of the graph, run on ``device``.

    ``recompute``: keep only the stage's inputs between forward and backward and run the forward again.
    ``offload``: what is on a disk while it is not needed: nothing, or the optimizer states.
    ``shard``: what the ranks of a site divide beside optimizer states: nothing, or the parameters.
    ``replicas``: copies that share the micro-batches, in their order; the first is on ``device``, the stage's home, which
    speaks for it (checkpoints, norms, evaluation). Empty: the home computes all of them.
    ``adds``: how replicas sum their gradients (members by their place in ``replicas``); None: in the job's order.
    """

    index: int
    start: int
    stop: int
    device: str
    recompute: bool = False
    replicas: tuple[Replica, ...] = ()
    adds: Reduction | None = None
    offload: Offload = "none"
    shard: Shard = "none"

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of its replicas, the home first."""
        return tuple(replica.device for replica in self.replicas) or (self.device,)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecChoice:
    """A codec by name, with its parameters; ``get_codec(name, **dict(params))`` makes it.

    ``memory``: what the ends of a link remember of samples that come again (empty: nothing): ``difference`` of values,
    ``error_feedback`` of gradients (``plan.link_memory``).
    """

    name: str = "identity"
    params: tuple[tuple[str, float | int | str], ...] = ()
    memory: str = ""

    def __str__(self) -> str:
        inner = ", ".join(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in self.params)
        text = f"{self.name}({inner})" if inner else self.name
        return f"{text} with {self.memory}" if self.memory else text


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPlan:
    """Codecs of the values that go from stage ``source`` to stage ``target`` and of the gradients that come back."""

    source: int
    target: int
    activations: CodecChoice = CodecChoice()
    gradients: CodecChoice = CodecChoice()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncLayer:
    """Parameters that a sync strategy treats as one, with estimated seconds of their backward and of their exchange.

    ``latency_seconds``: from the last byte of an exchange until its mean is everywhere; exchanges of a step overlap in it.
    """

    parameters: tuple[str, ...]
    bp_seconds: float
    comm_seconds: float
    latency_seconds: float = 0.0


#: A setting of a sync strategy.
Setting = int | float | bool | str | tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPlan:
    """How replicas agree: a strategy of ``farflung.sync`` by name, its settings, and the layers of each stage.

    Replica k of every stage together are pipeline k; pipelines compute the same micro-batches in all stages. ``local_steps``: how
    many steps of a period each pipeline takes (empty: all).
    """

    strategy: str
    settings: tuple[tuple[str, Setting], ...] = ()
    layers: tuple[tuple[SyncLayer, ...], ...] = ()
    local_steps: tuple[int, ...] = ()


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
        from farflung.plan.document import plan_to_json

        return plan_to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read what ``to_json`` wrote.

        Raises:
            VersionError: the document has another format version.
            PlanError: the text is no plan.
        """
        from farflung.plan.document import plan_from_json

        return plan_from_json(text)
