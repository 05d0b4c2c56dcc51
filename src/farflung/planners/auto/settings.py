"""What ``auto`` may do and how long, and the record of what it judged."""

from __future__ import annotations

from dataclasses import dataclass

from farflung.cluster import Topology
from farflung.errors import InputError, PlanError
from farflung.job.spec import SyncSpec
from farflung.plan import Plan

__all__ = ["AutoSettings", "Trial", "allowed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoSettings:
    """``evaluations``: plans that are judged beyond those of the other planners; ``seconds``: stop after so long instead.

    ``schedules``: which ones may be taken. ``ratios``: of top-k, beside the job's own codec (empty: the codec stays, since it
    changes what is learned). ``syncs``: strategies that replicas may use, beside the job's own (same reason).
    ``micro_batches``: whether the samples of a step may be divided otherwise than the job says, into micro-batches that are at
    most as large as the job's largest. ``replicas``: devices that share a stage, at most (None: as many as micro-batches; a job
    that asks for ``plan.replicas`` above 1 gets as many everywhere). ``exclude``: devices or regions that get nothing.
    ``stages``: at most so many. ``members``: planners to begin with (None: all). ``start``: further plans to begin with, for
    instance the one that runs now.
    """

    evaluations: int = 48
    seconds: float | None = None
    schedules: tuple[str, ...] = ("1f1b", "eager-2", "eager-3", "gpipe", "interleaved-2")
    ratios: tuple[float, ...] = ()
    syncs: tuple[SyncSpec, ...] = ()
    micro_batches: bool = False
    replicas: int | None = None
    exclude: frozenset[str] = frozenset()
    stages: int | None = None
    members: tuple[str, ...] | None = None
    start: tuple[Plan, ...] = ()

    def __post_init__(self) -> None:
        if self.evaluations < 0 or (self.stages is not None and self.stages < 1):
            raise InputError(
                f"the planner auto needs 0 or more evaluations and at least 1 stage, got {self.evaluations} and {self.stages}"
            )
        if self.replicas is not None and self.replicas < 1:
            raise InputError(f"the planner auto needs room for at least 1 replica, got {self.replicas}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A plan that was judged: by whom it was made, its step time in seconds (infinite: it does not fit)."""

    planner: str
    seconds: float
    plan: Plan


def allowed(topology: Topology, excluded: frozenset[str]) -> Topology:
    """``topology`` without the devices and regions that are excluded.

    Raises:
        InputError: nothing has such a name. PlanError: nothing is left.
    """
    known = {*topology.names, *topology.regions}
    if excluded - known:
        name = min(excluded - known)
        raise InputError(f"{name!r} is to be excluded, but topology {topology.name!r} has no such device or region")
    left = [d.name for d in topology.devices if not {d.name, d.region} & excluded]
    if not left:
        raise PlanError("every device is excluded; leave at least one")
    return topology.select(left) if excluded else topology
