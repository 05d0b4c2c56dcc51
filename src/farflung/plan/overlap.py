"""What of a strategy's exchanges is hidden behind computing: DreamDDP's equation (7) on the plan's own layers.

``sync.timeline`` runs a period of the strategy's programs on one clock: exchanges begin when the backward of their layers in the
last micro-batch has ended, or after it, and a step waits for those that it needs. What differs from (7): a step's other work
(forwards, the backwards of earlier micro-batches) counts as one stretch before that backward, which only exchanges of earlier
steps can use. Cost: O(layers) for each step of two periods; where that is too much nothing counts as hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan.model import Plan
from farflung.plan.synchronization import strategy_of, world_of
from farflung.sync import timeline

__all__ = ["hidden_share"]

#: A share below this is the rounding of sums.
_ROUNDING = 1e-6
#: Layers times steps that are looked at.
_MOST = 8192


def hidden_share(plan: Plan, graph: Graph, job: JobSpec, stage: int, computing: Sequence[float]) -> float:
    """The part of the seconds that exchanges of ``stage`` take in which no replica waits for them, 0 to 1.

    ``computing``: seconds of forwards and backwards in a step, of each replica.
    """
    assert plan.sync is not None
    layers = plan.sync.layers[stage] if stage < len(plan.sync.layers) else ()
    strategy = strategy_of(plan)
    steps = strategy.traits.sync_every
    if not layers or 2 * steps * len(layers) > _MOST:
        return 0.0
    world = world_of(plan, graph, job, stage)
    before = max(0.0, min(computing) - sum(layer.bp_seconds for layer in layers))
    spans = timeline(strategy, world, 2 * steps, forward_seconds=before)[steps:]
    busy = sum(sent.end - sent.begin for span in spans for sent in span.exchanges if sent.own)
    latency = max(layer.latency_seconds for layer in layers)  # the transfer of an exchange counts it by itself
    waits = sum(max(0.0, span.exposed - latency) for span in spans)
    share = 1.0 - waits / busy if busy > 0 else 0.0
    return share if share > _ROUNDING else 0.0
