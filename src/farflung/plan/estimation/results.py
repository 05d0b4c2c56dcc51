"""What a plan is predicted to cost: its stages, devices, links and exchanges of gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from farflung.cost import (
    memory_lack,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEstimate:
    """One stage: seconds and FLOPs per micro-batch (the largest), bytes of memory by part.

    ``backward_flops`` and ``backward_seconds`` include the second forward of a stage that recomputes; ``weight_seconds`` is the
    part of ``backward_seconds`` that makes gradients of parameters. ``micro_batches``: (first, end) of those that it computes.
    ``again_bytes``: of its activations, what a second forward makes and its backward frees (0: it does not recompute).
    ``disk_bytes``: of its optimizer states, if they are on a disk. ``sharded_bytes``: of its parameters, if ranks divide them.
    ``together``: if the ranks of a site compute each micro-batch together, the share of its parameters that they divide.
    """

    index: int
    device: str
    start: int
    stop: int
    operators: int
    modules: str
    parameters: int
    forward_flops: float
    backward_flops: float
    forward_seconds: float
    backward_seconds: float
    weight_seconds: float
    update_seconds: float
    in_flight: int
    recompute: bool
    micro_batches: tuple[int, int]
    memory: Mapping[str, float]
    memory_bytes: float
    again_bytes: float = 0.0
    disk_bytes: float = 0.0
    sharded_bytes: float = 0.0
    together: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEstimate:
    """Constraint (6) for one device: bytes needed by its stages, and its limit; busy seconds of a step; the same of its disk."""

    device: str
    memory_bytes: float
    memory_limit: float
    busy_seconds: float
    disk_bytes: float = 0.0
    disk_limit: float = 0.0

    @property
    def disk_lack(self) -> float:
        """Bytes that are missing on its disk (0: it fits)."""
        return max(0.0, self.disk_bytes - self.disk_limit)

    @property
    def lack(self) -> float:
        """Bytes that are missing (0: it fits)."""
        return float(memory_lack(self.memory_bytes, self.memory_limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEstimate:
    """One pair of stages: bytes and seconds per micro-batch, dense and after the codec, forward and backward.

    ``relay``: through whom the two devices reach each other (empty: directly). All seconds are those of that way.
    """

    source: int
    target: int
    source_device: str
    target_device: str
    activations: str
    gradients: str
    forward_dense_bytes: float
    backward_dense_bytes: float
    forward_bytes: float
    backward_bytes: float
    forward_seconds: float
    backward_seconds: float
    dense_seconds: float
    relay: str = ""


@dataclass(frozen=True, slots=True)
class GradientExchange:
    """Bytes that the copy ``source`` (a number of ``Estimate.replicas``) sends the copy ``target``; ``hidden``: those of them
    that travel while it computes, so that nothing waits for them.

    ``after``: the micro-batches after whose backwards it sends so much each time; empty: once per step, after all of them. Those
    of a later ``round`` wait for what the earlier ones brought.
    """

    source: int
    target: int
    nbytes: float
    round: int
    after: tuple[int, ...] = ()
    hidden: float = 0.0

    @property
    def total_bytes(self) -> float:
        """In a step."""
        return self.nbytes * max(1, len(self.after))


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingEstimate:
    """What saving memory costs: the plan's step over that of the same plan without it.

    ``needed``: whether that one does not fit. ``nbytes``: on all disks, or of all parameters that ranks divide.
    """

    factor: float
    needed: bool
    nbytes: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan is predicted to cost. Seconds, bytes, FLOPs, samples per second.

    ``latency_seconds``: (2). ``pipeline_seconds``: (3). ``throughput``: (4). ``compressed_seconds``: (8), with each link's
    real wire factor. ``step_seconds``: one optimizer step from the timed dry-run. ``exchange_bytes``: gradients of tied
    parameters between devices and all between replicas, per step (on average over a period); ``replica_bytes``: between replicas,
    which send each other ``exchanged``. ``stages``: each on its home; ``replicas``: all copies of all stages.
    ``offload``: None: nothing is on disks. ``shard``: None: no site divides parameters among its ranks.
    """

    stages: tuple[StageEstimate, ...]
    replicas: tuple[StageEstimate, ...]
    devices: tuple[DeviceEstimate, ...]
    links: tuple[LinkEstimate, ...]
    latency_seconds: float
    pipeline_seconds: float
    throughput: float
    compressed_seconds: float
    step_seconds: float
    step_throughput: float
    exchange_bytes: float
    replica_bytes: float
    exchanged: str
    exchanges: tuple[GradientExchange, ...]
    bound_by: str
    bound_share: float
    offload: SavingEstimate | None = None
    shard: SavingEstimate | None = None

    @property
    def feasible(self) -> bool:
        """Whether every device holds what is placed on it."""
        return all(device.lack == 0 and device.disk_lack == 0 for device in self.devices)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        body = asdict(self)
        body["feasible"] = self.feasible
        return body
