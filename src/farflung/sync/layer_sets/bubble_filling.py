"""Bubble filling, equation (12): late layers are exchanged more often where that takes no time."""

from __future__ import annotations

import numpy as np

from farflung.sync.layer_sets.contiguous import Units
from farflung.sync.layer_sets.layers import Layers, Sets

__all__ = ["fill_bubbles"]


def fill_bubbles(layers: Layers, sets: Sets) -> list[Units]:
    """For each set the units that can be added to it from the output on (L, L-1, ...) while its step takes no longer.

    Source: DreamDDP, equation (12) with the start times of (7); line 4's ``min`` means the smallest such l. What differs: added
    units take their place in the backward order. With all units up to k in the set, the last exchange ends at ``A_k + c(set
    after k)`` at the latest, where A_k is the end of the exchanges of all units up to k; the largest k that fits is found by
    bisection. Cost O(H L).
    """
    ready, comm = np.asarray(layers.ready), np.asarray(layers.comm)
    before = np.concatenate([[0.0], np.cumsum(comm)])
    chain = np.maximum.accumulate(ready - before[:-1]) + before[1:]
    added: list[Units] = []
    for chosen in sets:
        inside = np.zeros(len(layers), dtype=bool)
        inside[list(chosen)] = True
        after = np.cumsum((comm * inside)[::-1])[::-1] - comm * inside
        limit = layers.step_seconds(chosen)
        fits = int(np.searchsorted(np.maximum.accumulate(chain + after), limit * (1 + 1e-12), side="right"))
        added.append(tuple(unit for unit in range(fits) if not inside[unit]))
    return added
