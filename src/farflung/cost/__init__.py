"""Estimates: FLOPs and bytes per operator, the papers' equations, and fits of their constants.

- ``operands``: what a rule sees of an operator. ``flops``: operations. ``layout``: which values share memory.
- ``saved_tensors``: what autograd keeps. ``memory``: memory of a stage. ``table``: all figures of a graph.
- ``equations``: the papers' equations. ``fit``: their constants from measurements. ``other_systems``: models of other systems.
"""

from farflung.cost.equations import (
    bottleneck,
    latency_seconds,
    link_seconds,
    memory_lack,
    pipeline_seconds,
    throughput,
)
from farflung.cost.fit import SpeedFit, fit_speed_factor
from farflung.cost.memory import (
    ALLOCATOR,
    MemorySettings,
    StageMemory,
    cast_factor,
    serving_bytes,
    stage_memory,
)
from farflung.cost.table import Entries, OpCost, op_costs

__all__ = [
    "ALLOCATOR",
    "Entries",
    "MemorySettings",
    "OpCost",
    "SpeedFit",
    "StageMemory",
    "bottleneck",
    "cast_factor",
    "fit_speed_factor",
    "latency_seconds",
    "link_seconds",
    "memory_lack",
    "op_costs",
    "pipeline_seconds",
    "serving_bytes",
    "stage_memory",
    "throughput",
]
