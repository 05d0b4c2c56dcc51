"""Which rank of a site owns which parameter: its gradient's sum, its optimizer state and its update.

A rank owns whole parameters, as in PyTorch's ``ZeroRedundancyOptimizer``. So every optimizer works, also one that reads whole
matrices, and norms for clipping have the bits of one process. Cost: a rank may own up to one parameter more than its share.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from farflung.engines.base import EngineSettings
from farflung.engines.stateful_runner import trained_states
from farflung.graph.cut import SubGraph
from farflung.graph.parameter_blocks import holders, parameters_of

__all__ = ["owners"]


def owners(subgraph: SubGraph, settings: EngineSettings, ranks: int, divided: Collection[str] = ()) -> Mapping[str, int]:
    """Return the owner of each parameter of the stage, trained or frozen. Those ``divided`` have none: each rank has a part."""
    trained = trained_states(subgraph, settings)
    sizes = {name: subgraph.graph.state[name].spec.nbytes for name in parameters_of(subgraph) if name not in divided}
    return holders(sizes, ranks, [name for name in sizes if name in trained])
