"""Algorithm 2 of DreamDDP, as a reference beside the exact optimum.

Source: DreamDDP, Algorithm 2 with problem (8) and the plain sum of (10) as a set's communication time. Errata: the last branch
goes to set h+1 (printed h-1), line 28 recurses on the copy that line 27 has edited, and only complete assignments are solutions.
What differs: branches meet again in the same sub-problem (next unit, next set), so its best value is computed once. The answer is
that of the depth-first search, in O(H L log L) instead of O(2^min(L-H, H)). It plans with sums; periods are reported by (7).
"""

from __future__ import annotations

import numpy as np

from farflung.sync.layer_sets.contiguous import Units, without_empty
from farflung.sync.layer_sets.layers import Layers

__all__ = ["algorithm_2", "assigned"]


def algorithm_2(layers: Layers, sync_every: int) -> list[Units]:
    """Runs of units as Algorithm 2 assigns them; sets that it leaves empty get a unit (its Property 3)."""
    return without_empty(assigned(layers, sync_every), sync_every)


def assigned(layers: Layers, sync_every: int) -> list[Units]:
    """What the search itself gives; where everything is hidden early, the last sets are empty."""
    count = len(layers)
    done = np.concatenate([[0.0], np.cumsum(layers.comm)])
    slack = np.append(layers.slack(), 0.0)
    first = np.arange(count + 1)
    # ``hidden[l]``: the first unit that a set begun with l can't hide any more (optimal hiding); at least l itself is taken.
    hidden = np.searchsorted(done, done[first] + slack, side="right") - 1
    hidden = np.minimum(np.maximum(hidden, first + 1), count)
    overflowed = done[hidden] - done[first] > slack  # the first unit alone overflows: delayed, no choice
    longer = np.where(overflowed, hidden, np.minimum(hidden + 1, count))

    exposed_all = np.maximum(0.0, done[count] - done - slack)
    exposed_long = np.maximum(0.0, done[longer] - done - slack)
    exposed_short = np.maximum(0.0, done[hidden] - done - slack)
    value = np.where(first == count, 0.0, exposed_all)  # in set H: everything that is left
    ends = [np.full(count + 1, count)]
    for _ in range(sync_every - 1):
        take, leave = exposed_long + value[longer], exposed_short + value[hidden]
        ends.append(np.where(take <= leave, longer, hidden))
        value = np.where(first == count, 0.0, np.minimum(take, leave))
    sets: list[Units] = []
    begin = 0
    for choice in reversed(ends):
        sets.append(tuple(range(begin, int(choice[begin]))))
        begin = int(choice[begin])
    return sets
