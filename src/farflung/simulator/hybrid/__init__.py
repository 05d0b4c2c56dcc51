"""Hybrid plans in virtual time: the runtime's task pools, helpers that are lost and come back.

- ``parts``: servers, helpers, links between stages, losses: what is simulated.
- ``pipeline``: ``HelpedPipeline``: the event loop.
- ``helped_plan``: ``simulate_helped``: from a plan with its topology to step times, with losses drawn from a seed.
"""

from farflung.simulator.hybrid.helped_plan import (
    HelpedRun,
    HelperLosses,
    helped_pipeline,
    hop_between,
    simulate_helped,
    wire_between,
)
from farflung.simulator.hybrid.parts import HelpedServer, Helper, Hop, Loss, Wire
from farflung.simulator.hybrid.pipeline import HelpedPipeline

__all__ = [
    "HelpedPipeline",
    "HelpedRun",
    "HelpedServer",
    "Helper",
    "HelperLosses",
    "Hop",
    "Loss",
    "Wire",
    "helped_pipeline",
    "hop_between",
    "simulate_helped",
    "wire_between",
]
