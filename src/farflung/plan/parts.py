"""The parts of a plan: stages and their replicas, links, codecs, and how replicas agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from farflung.sync.reductions import Reduction

__all__ = [
    "PLAN_VERSION",
    "CodecChoice",
    "LinkPlan",
    "Offload",
    "PlanFields",
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
Shard = Literal["none", "parameters", "tensor"]


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
    ``shard``: what the ranks of a site divide beside optimizer states: nothing, the parameters, or each micro-batch (``tensor``).
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


class PlanFields(Protocol):
    """The fields of a plan (``model.Plan``), for code that writes a plan."""

    @property
    def graph_hash(self) -> str:
        """The hash of its graph."""

    @property
    def planner(self) -> str:
        """The planner's name."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in order."""

    @property
    def links(self) -> tuple[LinkPlan, ...]:
        """The links between stages."""

    @property
    def schedule(self) -> str:
        """The schedule's name."""

    @property
    def micro_batch_sizes(self) -> tuple[int, ...]:
        """The samples of each micro-batch."""

    @property
    def sync(self) -> SyncPlan | None:
        """How replicas agree."""

    @property
    def version(self) -> int:
        """The version of the format."""
