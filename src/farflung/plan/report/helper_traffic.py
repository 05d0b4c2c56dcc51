"""What a hybrid plan's estimate leaves out: when parameters are at the helpers, and what a delayed update hides of the way.

A plan's predicted step counts the helpers that are present, by the speed that their transfers leave. Before its first
slice of a step a helper must have the stage's trained parameters; with ``optimizer.delayed`` these go during the step before
(Hybrid-PS, Delayed Parameter Update), which hides as much of the way as that step takes. Cost: O(stages x servers x helpers).
"""

from __future__ import annotations

from collections.abc import Sequence

from farflung.cluster import Topology
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan.model import Plan, Stage
from farflung.units import Bytes, Seconds

__all__ = ["helped_lines", "hidden_seconds", "parameters_way"]


def parameters_way(stage: Stage, nbytes: float, topology: Topology) -> tuple[float, str] | None:
    """Seconds that ``nbytes`` take from a server of ``stage`` to the unreliable device that has them first, and its name; None:
    the topology has no unreliable device."""
    ways = [
        (float(topology.alpha[there, here] + nbytes / topology.beta[there, here]), device.name)
        for here, device in enumerate(topology.devices)
        if not device.reliable and device.name not in stage.devices
        for there in map(topology.index, stage.devices)
    ]
    return min(ways, default=None)


def hidden_seconds(way: float, step: float) -> float:
    """What of a ``way`` a delayed update hides behind a step of ``step`` seconds."""
    return min(way, step)


def helped_lines(
    plan: Plan, graph: Graph, pieces: Sequence[SubGraph], topology: Topology, job: JobSpec, step: float
) -> list[str]:
    """What helpers are sent in each step, and what a delayed update hides of that, where the job has helpers.

    ``topology``: of all devices. ``step``: seconds, as predicted.
    """
    if not job.plan.helpers:
        return []
    parts, hidden = [], 0.0
    for stage, piece in zip(plan.stages, pieces, strict=True):
        nbytes = float(sum(graph.state[name].spec.nbytes for name in piece.states if name in graph.trained))
        way = parameters_way(stage, nbytes, topology)
        parts.append(f"stage {stage.index} {Bytes(nbytes)}" + (f" ({Seconds(way[0])} to {way[1]})" if way is not None else ""))
        hidden = max(hidden, 0.0 if way is None else hidden_seconds(way[0], step))
    said = f", up to {Seconds(hidden)}" if hidden else ""
    if job.optimizer.delayed:
        end = f"optimizer.delayed hides this transfer behind the previous step{said}"
    else:
        end = f"optimizer.delayed would hide this transfer behind the previous step{said}, and change the result"
    return [
        (
            "helpers: their power counts in the predicted step as far as they are here now; in each step, a helper first "
            f"receives the trained parameters of its stage: {', '.join(parts)}; {end}"
        )
    ]
