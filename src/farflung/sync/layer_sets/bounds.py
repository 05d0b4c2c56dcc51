"""A proven lower bound of the period of any sets, contiguous or not.

Let c_j be the exchange of unit j and d_j its slack: seconds of backward left when it is ready. Exchanges of a set from its unit k
on can't begin before k is ready, so the set's exposure is at least ``sum of c over its units from k on - d_k``, and at least 0.

Take any subset J of the units, and in each set its first unit that lies in J. The exposures then sum to at least ``c(J)`` minus
the slacks of these first units. There are H of them at most, all different, so

    exposed >= max over J of  c(J) - (sum of the H largest d in J)

Slack falls in backward order. So the best J holds, for some m, all units from m on and before m the H - 1 units with the largest
c - d; or it is just the units with c > d, H at most. Cost O(L log H). Taking every first unit to be m gives the simple
bound ``C(from m on) - H d_m``, which is weaker where single layers are large.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from farflung.sync.layer_sets.layers import Layers
from farflung.units import Seconds

__all__ = ["exposed_bound", "lower_bound_seconds"]

#: What the bound gives up so that rounding of long sums can't lift it above a period.
ROUNDING = 1e-12


def exposed_bound(layers: Layers, sync_every: int) -> float:
    """Seconds that a period takes at least beyond its backward passes, whatever the sets."""
    slack = np.maximum(layers.slack(), 0.0).tolist()  # with a latency it may be negative; the proof needs d >= 0
    gain = [comm - left for comm, left in zip(layers.comm, slack, strict=True)]
    rest = np.cumsum(np.asarray(layers.comm)[::-1])[::-1].tolist()
    best = math.fsum(heapq.nlargest(sync_every, (value for value in gain if value > 0)))
    chosen: list[float] = []
    total = 0.0
    for unit, value in enumerate(gain):
        if len(chosen) == sync_every - 1:
            best = max(best, total + rest[unit] - slack[unit])
            if chosen:
                total += value - heapq.heappushpop(chosen, value)
        else:
            heapq.heappush(chosen, value)
            total += value
    return best


def lower_bound_seconds(layers: Layers, sync_every: int) -> Seconds:
    """Seconds of the backward parts of a period at least, whatever the sets."""
    return Seconds((1 - ROUNDING) * (sync_every * layers.total + exposed_bound(layers, sync_every)))
