"""Which rank of a site owns which parameter: its gradient's sum, its optimizer state and its update.

A rank owns whole parameters, as in PyTorch's ``ZeroRedundancyOptimizer``. So every optimizer works, also one that reads whole
matrices, and norms for clipping have the bits of one process. Cost: a rank may own up to one parameter more than its share.
"""

from __future__ import annotations

from collections.abc import Mapping

from farflung.engines.base import EngineSettings
from farflung.engines.stateful_runner import trained_states
from farflung.graph.cut import SubGraph

__all__ = ["owners"]


def owners(subgraph: SubGraph, settings: EngineSettings, ranks: int) -> Mapping[str, int]:
    """Return the owner of each trained state of the stage: the largest first, to the rank that owns the fewest bytes."""
    graph, trained = subgraph.graph, trained_states(subgraph, settings)
    names = [name for name in subgraph.states if name in trained]
    loads = [0] * ranks
    found: dict[str, int] = {}
    for name in sorted(names, key=lambda name: -graph.state[name].spec.nbytes):
        found[name] = min(range(ranks), key=lambda rank: loads[rank])
        loads[found[name]] += graph.state[name].spec.nbytes
    return found
