"""Which neighboring layers travel as one message: a fitted cost of an exchange, and the best division of the layers under it.

Source: ASC-WFBP (Shi et al., "Exploiting Simultaneous Communications to Accelerate Data Parallel Distributed Deep Learning",
2021), which fits ``t(M) = a + b M`` to measured exchanges and merges layers where a start-up costs more than waiting.
What differs: the division is the best one by a dynamic program instead of a greedy rule, and with n simultaneous exchanges a
start-up counts a / n, because the other n - 1 use the link meanwhile. Cost: O(L^2) for L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from farflung.sync.world import LayerInfo

__all__ = ["fitted_exchange", "merged_layers"]


def fitted_exchange(layers: Sequence[LayerInfo]) -> tuple[float, float]:
    """Return (a, b): seconds to start an exchange, and seconds for each byte, by least squares over the layers' exchanges.

    Neither is negative. Layers of one size tell nothing about the start-up, so their latency counts as the start-up.
    """
    size = np.array([float(layer.nbytes) for layer in layers])
    took = np.array([float(layer.comm_seconds + layer.latency) for layer in layers])
    if np.ptp(size) > 0.0:
        per_byte, startup = np.polyfit(size, took, 1)
        if startup >= 0.0 and per_byte >= 0.0:
            return float(startup), float(per_byte)
    startup = float(np.median([float(layer.latency) for layer in layers]))
    return startup, float(np.maximum(took - startup, 0.0).sum() / size.sum()) if size.sum() else 0.0


def merged_layers(layers: Sequence[LayerInfo], simultaneous: int = 1) -> tuple[tuple[int, ...], ...]:
    """Return the messages of a step in backward order, each as layer numbers from the input, descending.

    A message begins when the backward of its last layer and the message before it have ended. The last message ends as early as
    any division allows. Of equally good divisions, the result has the longest last message.
    """
    startup, per_byte = fitted_exchange(layers)
    order = range(len(layers) - 1, -1, -1)
    ready = list(accumulate(float(layers[layer].bp_seconds) for layer in order))
    before = [0.0, *accumulate(float(layers[layer].nbytes) for layer in order)]
    ends, begins = [0.0], [0]
    for stop in range(1, len(layers) + 1):
        found = [
            max(ends[start], ready[stop - 1]) + startup / simultaneous + per_byte * (before[stop] - before[start])
            for start in range(stop)
        ]
        least = min(found)
        start = next(index for index, end in enumerate(found) if end <= least * (1 + 1e-12))
        ends.append(found[start])
        begins.append(start)
    messages: list[tuple[int, ...]] = []
    stop = len(layers)
    while stop:
        messages.append(tuple(order[begins[stop] : stop]))
        stop = begins[stop]
    return tuple(reversed(messages))
