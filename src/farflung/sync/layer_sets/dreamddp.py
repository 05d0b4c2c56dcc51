"""Algorithm 2 of DreamDDP, as a reference beside the exact optimum.

Source: DreamDDP, Algorithm 2 with problem (8) and the plain sum of (10) as a set's communication time. Errata: the last branch
goes to set h+1 (printed h-1), line 28 recurses on the copy that line 27 has edited, and only complete assignments are solutions.
What differs: branches meet again in the same sub-problem (next unit, next set), so its best value is computed once. The answer is
that of the depth-first search, in O(H L log L) instead of O(2^min(L-H, H)). ``depth_first`` is the search itself, and
``brute_force`` the text's other reference; both are for comparisons. Algorithm 2 plans with sums; periods are reported by (7).
"""

from __future__ import annotations

import math
from itertools import accumulate, combinations, pairwise

import numpy as np

from farflung.errors import InputError
from farflung.sync.layer_sets.contiguous import Units, without_empty
from farflung.sync.layer_sets.layers import Layers

__all__ = ["algorithm_2", "assigned", "brute_force", "depth_first"]

#: Splits that brute force looks at, and leaves of the depth-first search, at most.
_MOST = 500_000


def algorithm_2(layers: Layers, sync_every: int) -> list[Units]:
    """Runs of units as Algorithm 2 assigns them; sets that it leaves empty get a unit (its Property 3)."""
    return without_empty(assigned(layers, sync_every), sync_every)


def brute_force(layers: Layers, sync_every: int) -> list[Units]:
    """The best runs by equation (7), found by looking at all ``C(L - 1, H - 1)`` splits (the text's baseline).

    Raises:
        InputError: there are too many splits.
    """
    count = len(layers)
    _check_size(math.comb(count - 1, sync_every - 1), "brute_force")

    def runs(cuts: tuple[int, ...]) -> list[Units]:
        return [tuple(range(a, b)) for a, b in pairwise((0, *cuts, count))]

    return min(map(runs, combinations(range(1, count), sync_every - 1)), key=layers.period_seconds)


def depth_first(layers: Layers, sync_every: int) -> list[Units]:
    """Algorithm 2 as it is printed (with the errata): a depth-first search that visits every branch of its own.

    Raises:
        InputError: it would visit too many branches.
    """
    count = len(layers)
    _check_size(2 ** min(count - sync_every, sync_every), "depth_first")
    done: list[float] = [0.0, *accumulate(layers.comm)]
    slack: list[float] = [*layers.slack().tolist(), 0.0]

    def exposed(first: int, end: int) -> float:
        return max(0.0, done[end] - done[first] - slack[first])

    def search(first: int, left: int) -> tuple[float, list[Units]]:
        """Seconds that are not hidden of the units from ``first`` on in ``left`` sets, and these sets."""
        if first == count or left == 1:
            return (exposed(first, count) if first < count else 0.0), [tuple(range(first, count)), *[()] * (left - 1)]
        end = first + 1  # at least one unit in each set
        while end < count and done[end + 1] - done[first] <= slack[first]:  # optimal hiding
            end += 1
        overflowed = done[end] - done[first] > slack[first]
        # delayed overflow: once the communication overflows, the next unit begins the next set
        ends = (end,) if overflowed or end == count else (end + 1, end)
        found = []
        for stop in ends:
            seconds, rest = search(stop, left - 1)
            found.append((exposed(first, stop) + seconds, [tuple(range(first, stop)), *rest]))
        return min(found, key=lambda one: one[0])

    return without_empty(search(0, sync_every)[1], sync_every)


def _check_size(size: int, method: str) -> None:
    if size > _MOST:
        raise InputError(
            f"method = {method!r} would look at {size} assignments, and {_MOST} are the limit: take 'optimal', which is exact, "
            "or 'dreamddp', which gives the result of the search"
        )


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
