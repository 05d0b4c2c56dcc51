"""A small graph that a worker trains for one micro-batch when it joins, so that the broker can check what its engine computes.

The broker knows the loss and the gradients from the reference engine in float64. It refuses a worker whose numbers deviate
beyond the tolerance of its kind of device, such as one with a broken library or a defective device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import isfinite

import numpy as np

from farflung.engines.base import Array, Engine, EngineSettings, MicroBatch
from farflung.engines.registry import get_engine
from farflung.errors import InputError
from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import cut
from farflung.graph.ir import Graph

__all__ = ["check_probe", "probe_engine"]

#: The largest deviation, over the norm of the gradient: of CPUs, whose engines deviate by 1e-6, and of accelerators, whose matrix
#: units may have 10 bits.
_CPU_TOLERANCE, _TOLERANCE = 1e-4, 5e-3
_ROWS, _WIDTH = 8, 16


@cache
def _graph() -> Graph:
    """Matrix products, an activation, a normalization and a loss: what almost every model has."""
    builder = GraphBuilder("probe")
    value = builder.input("x", "float32", (_ROWS, _WIDTH))
    for block in range(2):
        value = builder.add(f"linear{block}", "Linear", value, in_features=_WIDTH, out_features=_WIDTH)
        value = builder.add(f"bend{block}", "GELU", value)
        value = builder.add(f"norm{block}", "LayerNorm", value, normalized_shape=_WIDTH)
    builder.add("loss", "CrossEntropyLoss", value, builder.label("label", "int64", (_ROWS,)))
    return builder.build()


def _pattern(shape: Sequence[int], number: int) -> Array:
    """Numbers between -1 and 1 that every machine makes alike."""
    places = np.arange(1, int(np.prod(shape)) + 1, dtype=np.float64)
    return np.sin(places * (1.0 + 0.37 * number)).reshape(tuple(shape))


def probe_engine(engine: Engine, device: str) -> tuple[float, ...]:
    """Return the loss, and two sums of each gradient (empty: the engine lacks an operator of the graph)."""
    if not {op.target for op in _graph().ops} <= engine.support(device).operators:
        return ()
    loss, gradients = _trained(engine, device)
    return (loss, *(float((gradient * _pattern(gradient.shape, number)).sum()) for gradient in gradients for number in (5, 6)))


def _trained(engine: Engine, device: str) -> tuple[float, list[Array]]:
    graph = _graph()
    (piece,) = cut(graph, [(0, len(graph.ops))])
    runner = engine.open(piece, EngineSettings(device=device))
    runner.load({s.name: _pattern(s.spec.shape, 1 + n).astype(np.float32) for n, s in enumerate(graph.states)})
    key, labels = MicroBatch(0, 0), np.arange(_ROWS) % _WIDTH
    outputs = runner.forward(key, {}, {"x": _pattern((_ROWS, _WIDTH), 0).astype(np.float32), "label": labels}).outputs
    loss = float(outputs["loss"])
    runner.backward(key, {}, 1.0)
    runner.close_part(last=True)
    runner.finish_gradients({})
    found = runner.gradients()
    return loss, [found[state.name].astype(np.float64) for state in graph.states]


@cache
def _expected() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The numbers of the reference engine in float64, and the size that each deviation is compared with."""
    engine = get_engine("reference64")
    loss, gradients = _trained(engine, "cpu")
    norms = [max(float(np.linalg.norm(gradient)), 1e-6) for gradient in gradients]
    return probe_engine(engine, "cpu"), (abs(loss), *(norm for norm in norms for _ in range(2)))


def check_probe(found: Sequence[float], worker: str, engine: str, kind: str) -> None:
    """Check the numbers of the probe that ``worker`` has sent (none: it sends none). ``kind``: of its device.

    Raises:
        InputError: they deviate; the text names the worker and its engine.
    """
    expected, sizes = _expected()
    if not found:
        return
    apart = [abs(a - b) / size for a, b, size in zip(found, expected, sizes, strict=False)]
    worst = max(apart) if len(found) == len(expected) and all(map(isfinite, found)) else float("inf")
    tolerance = _CPU_TOLERANCE if kind == "cpu" else _TOLERANCE
    if worst > tolerance:
        raise InputError(
            f"worker {worker!r} is refused: the gradients that its engine ({engine}) computes deviate by {worst:.1e} of their "
            f"norm, at most {tolerance:g} is allowed; install the engine again, or use another --engine or --device"
        )
