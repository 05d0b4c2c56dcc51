"""Whether the engines of a plan's devices support the operators of their stages, and the precision of the job."""

from __future__ import annotations

from collections.abc import Sequence

from farflung.cluster import Device, Topology
from farflung.errors import PlanError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph, Op
from farflung.job.spec import JobSpec
from farflung.plan.model import Plan

__all__ = ["OTHER_ENGINE", "check_engines", "computes_all", "unsupported", "unsupported_stages"]

#: The remedy where engines lack operators.
OTHER_ENGINE = "join a worker with another engine (farflung join --engine torch)"

#: Operators of which an error gives the name.
_NAMED = 3


def computes_all(device: Device, graph: Graph, job: JobSpec) -> bool:
    """Whether the engine of ``device`` supports the precision of ``job`` and every operator of ``graph``."""
    return _precise(device, job) and device.lacks.isdisjoint(_targets(graph))


def unsupported(device: Device, piece: SubGraph) -> list[Op]:
    """Return the operators of a stage that the engine of ``device`` does not support, in program order."""
    if not device.lacks:
        return []
    return [op for op in (piece.graph.ops[position] for position in piece.positions) if op.target in device.lacks]


def unsupported_stages(plan: Plan, pieces: Sequence[SubGraph], topology: Topology, job: JobSpec) -> dict[int, str]:
    """Return a text for each stage that is on a device whose engine can't compute it."""
    found: dict[int, str] = {}
    for stage, piece in zip(plan.stages, pieces, strict=True):
        for device in (topology.device(name) for name in stage.devices if name in topology.names):
            engine = device.engine or "its engine"
            ops = unsupported(device, piece)
            if not _precise(device, job):
                known = ", ".join(device.precisions)
                lacking = next(name for name in _precisions(job) if name not in device.precisions)
                found[stage.index] = f"worker {device.name!r} ({engine}) lacks the precision {lacking!r}, it has {known}"
            elif ops:
                names = list(dict.fromkeys(op.target for op in ops))
                listed = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
                where = f" of module {ops[0].module!r}" if ops[0].module else ""
                found[stage.index] = f"worker {device.name!r} ({engine}) lacks {listed}{where}, which stage {stage.index} needs"
    return found


def check_engines(plan: Plan, pieces: Sequence[SubGraph], topology: Topology, job: JobSpec) -> None:
    """Each device supports the operators of its stages.

    Raises:
        PlanError: one does not; the text names operator and worker.
    """
    found = unsupported_stages(plan, pieces, topology, job)
    if found:
        raise PlanError(f"{next(iter(found.values()))}; {OTHER_ENGINE}")


def _precise(device: Device, job: JobSpec) -> bool:
    return not device.precisions or set(_precisions(job)) <= set(device.precisions)


def _precisions(job: JobSpec) -> tuple[str, ...]:
    """The precision of ``job``, and how parameters of lower precision are updated, where an engine needs code for it."""
    update = job.optimizer.update
    return (job.precision,) if update == "plain" else (job.precision, update)


def _targets(graph: Graph) -> frozenset[str]:
    return frozenset(op.target for op in graph.ops)
