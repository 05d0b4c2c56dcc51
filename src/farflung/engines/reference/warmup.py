"""A short warm-up of the reference engine."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable

import numpy as np
import psutil

from farflung.clock import precise_time
from farflung.cost import op_costs
from farflung.engines.base import DeviceReport, EngineSettings, MicroBatch, StageRunner
from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import SubGraph, cut

__all__ = ["measure_cpu"]

_PRODUCT, _WIDTH, _ROWS, _REPEATS = 512, 128, 128, 3


def measure_cpu(open_stage: Callable[[SubGraph, EngineSettings], StageRunner], peak: float | None) -> DeviceReport:
    """Train a small model for a moment: its FLOPs over its seconds are the speed. Operators count as free beside their FLOPs."""
    graph = GraphBuilder("warm-up")
    last = graph.input("x", "float32", (_ROWS, _WIDTH))
    for block in range(2):
        last = graph.add(f"linear{block}", "Linear", last, in_features=_WIDTH, out_features=_WIDTH)
        last = graph.add(f"bend{block}", "GELU", last)
        last = graph.add(f"norm{block}", "LayerNorm", last, normalized_shape=_WIDTH)
    graph.label("label", "int64", (_ROWS,))
    graph.add("loss", "CrossEntropyLoss", last, "label")
    built = graph.build()
    (piece,) = cut(built, [(0, len(built.ops))])
    runner = open_stage(piece, EngineSettings())
    runner.initialize(list(piece.states))
    data = {"x": np.ones((_ROWS, _WIDTH), np.float32), "label": np.zeros(_ROWS, np.int64)}
    cost, best = op_costs(built, "cpu"), float("inf")
    for number in range(_REPEATS):
        start = precise_time()
        runner.forward(MicroBatch(0, number), {}, data)
        runner.backward(MicroBatch(0, number), {}, 1.0)
        best = min(best, precise_time() - start)
    speed, memory = float(cost.forward.sum() + cost.backward.sum()) / best, psutil.virtual_memory()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return DeviceReport(
        name=platform.processor() or "cpu",
        flops_per_second=speed,
        launch_seconds=0.0,
        total_bytes=memory.total,
        free_bytes=memory.available,
        peak_flops_per_second=max(peak or _product_rate(), speed),
        processors=tuple(str(core) for core in sorted(cores)),
    )


def _product_rate() -> float:
    a, best = np.ones((_PRODUCT, _PRODUCT), np.float32), float("inf")
    for _ in range(_REPEATS):
        start = precise_time()
        np.matmul(a, a)
        best = min(best, precise_time() - start)
    return 2.0 * _PRODUCT**3 / best
