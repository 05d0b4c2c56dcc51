"""Memory of one copy of a stage: what it computes with, and what it exchanges with other copies."""

from __future__ import annotations

import numpy as np

from farflung.cost import (
    MemorySettings,
    OpCost,
    StageMemory,
    cast_factor,
    stage_memory,
)
from farflung.graph.cut import SubGraph
from farflung.graph.drift import drifting
from farflung.job.spec import JobSpec
from farflung.optim import state_bytes
from farflung.plan.estimation.cost_tables import CostTables
from farflung.plan.model import Stage, SyncPlan
from farflung.plan.synchronization import made_strategy
from farflung.plan.traffic import gradient_bytes, sync_specs
from farflung.sync import Sent, Traits

#: Copies of the parameters where replicas verify each other: the totals, six past states, and a runner with its gradients.
_VERIFIED_COPIES = 9.0


def memory_of(
    cost: OpCost,
    stage: Stage,
    sub: SubGraph,
    job: JobSpec,
    in_flight_count: int,
    recompute: bool | None = None,
) -> StageMemory:
    """Memory of one stage (arrays of length 1), with ``recompute`` as in the stage or as given."""
    received = sum(edge.forward_bytes for edge in sub.requires_activations) * cost.part
    sent = {edge.value: edge.forward_bytes * cost.part for edge in sub.sends_activations}
    again = stage.recompute if recompute is None else recompute
    clones = sum(sub.graph.state[name].spec.nbytes for name in drifting(sub)) if again else 0
    settings = MemorySettings(
        optimizer=_state_factor(sub, job),
        in_flight=in_flight_count + (job.verify.share > 0 and len(stage.devices) > 1),  # the unit that is computed again
        casts=cast_factor(job.precision),
        recompute=again,
        clones=float(clones),
        slices=max((held.end - held.first for held in stage.replicas), default=job.micro_batches) if job.plan.helpers else 0,
        delayed=job.optimizer.delayed,
        offload=stage.offload == "optimizer",
    )
    arrays = np.array([received], dtype=np.float64), np.array([sum(sent.values())], dtype=np.float64)
    return stage_memory(cost, stage.start, [stage.stop], settings, *arrays)


def _state_factor(sub: SubGraph, job: JobSpec) -> float:
    """Bytes of optimizer state per byte of the stage's trained parameters."""
    trained = sum(sub.graph.state[name].spec.nbytes for name in sub.states if name in sub.graph.trained)
    return state_bytes(job.optimizer, sub.graph, sub.states) / trained if trained else 0.0


def exchange_memory(tables: CostTables, stage: Stage, sub: SubGraph, job: JobSpec, sync: SyncPlan | None) -> float:
    """The totals of all gradients before they are put in place, and the parts of others that wait for their turn.

    With a sync strategy: its registers, and what all members sent, or where only their mean counts, a copy of what is not
    averaged in place.
    """
    graph = tables.graph
    if sync is not None:
        traits = made_strategy(sync).traits
        return sum(spec.nbytes for spec in sync_specs(graph, sub, job.optimizer)) * sync_copies(traits, len(stage.replicas))
    if stage.adds is not None:
        return gradient_bytes(graph, sub) * (1.0 + stage.adds.most_waiting(len(stage.replicas)))
    verifies = job.verify.share > 0
    others = sum(verifies or end > stage.replicas[0].end for end in job.virtual_ends)
    copies = _VERIFIED_COPIES if verifies else 1.0
    return copies * gradient_bytes(graph, sub) + others * max(tables.served(sub, job.optimizer, len(stage.devices)))


def sync_copies(traits: Traits, members: int) -> float:
    """Memory that exchanges of ``members`` replicas and the registers take, in copies of the parameters."""
    summed = 0.05 if traits.sent is Sent.PARAMETERS else 1.05
    one_by_one = traits.sent is not Sent.SCALARS and not traits.adds_up
    return (members + 1.0 if one_by_one else summed) + len(traits.registers) + traits.memory_copies(members)
