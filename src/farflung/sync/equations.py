"""DreamDDP's equations as it prints them, one function each; the schedulers are checked against these.

Steps, layers (from the input) and sets count from 0; the text counts all from 1. ``bp`` and ``comm`` are seconds per layer in
forward order. Where the text errs, the reading is named.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from farflung.units import Seconds

__all__ = [
    "backward_ends",
    "local_sgd_seconds",
    "partial_local_sgd_seconds",
    "period_objective",
    "set_of_step",
    "ssgd_seconds",
    "start_times",
    "summed_comm_seconds",
    "synchronizes",
    "timeline_comm_seconds",
]

Times = Sequence[float]


def synchronizes(step: int, sync_every: int) -> bool:
    """Equation (2): local SGD averages all parameters after step r if ``(r + 1) % H == 0``."""
    return (step + 1) % sync_every == 0


def set_of_step(step: int, sync_every: int) -> int:
    """Equation (5): the set that step r averages, ``r mod H``. (The text's ``r+1 % H = H_l`` never fires for set H.)"""
    return step % sync_every


def ssgd_seconds(steps: int, forward: float, bp: Times, comm: Times) -> Seconds:
    """Equation (3): ``R (t_FP + t_BP + t_COMM)``, nothing overlaps."""
    return Seconds(steps * (forward + math.fsum(bp) + math.fsum(comm)))


def local_sgd_seconds(steps: int, forward: float, bp: Times, comm: Times, sync_every: int) -> Seconds:
    """Equation (4): ``R (t_FP + t_BP) + R / H t_COMM``."""
    return Seconds(steps * (forward + math.fsum(bp)) + steps / sync_every * math.fsum(comm))


def backward_ends(bp: Times) -> list[float]:
    """When each layer's backward ends, in seconds after the backward pass began (the last layer goes first)."""
    ends = [0.0] * len(bp)
    now = 0.0
    for layer in range(len(bp) - 1, -1, -1):
        now += bp[layer]
        ends[layer] = now
    return ends


def start_times(bp: Times, comm: Times, chosen: Collection[int]) -> dict[int, float]:
    """Below equation (7): ``tau_j = max(end of layer j's backward, tau_{j-1} + t_{j-1})``, layers of a set in backward order."""
    ends = backward_ends(bp)
    found: dict[int, float] = {}
    free = 0.0
    for layer in sorted(chosen, reverse=True):
        found[layer] = max(ends[layer], free)
        free = found[layer] + comm[layer]
    return found


def timeline_comm_seconds(bp: Times, comm: Times, chosen: Collection[int]) -> float:
    """Equation (7)'s communication time of a set: ``tau_last + t_last - tau_first``, waiting included."""
    if not chosen:
        return 0.0
    starts = start_times(bp, comm, chosen)
    first, last = max(chosen), min(chosen)
    return starts[last] + comm[last] - starts[first]


def summed_comm_seconds(comm: Times, chosen: Collection[int]) -> float:
    """Equation (10)'s communication time of a set: the plain sum of its layers' times."""
    return math.fsum(comm[layer] for layer in chosen)


def period_objective(bp: Times, comm: Times, sets: Sequence[Collection[int]], *, summed: bool = False) -> Seconds:
    """Problem (8): backward parts of a period, for sets that are runs in backward order.

    ``sum_h [t_BP(sets before h) + t_BP(h_0) + max(t_BP(sets from h on) - t_BP(h_0), t_COMM(set h))]`` with h_0 the first layer of
    set h; an empty set takes one backward pass. ``summed``: the communication time of (10) instead of (7)'s.
    """
    total = math.fsum(bp)
    done = 0.0
    terms = []
    for chosen in sets:
        first = bp[max(chosen)] if chosen else 0.0
        taken = summed_comm_seconds(comm, chosen) if summed else timeline_comm_seconds(bp, comm, chosen)
        terms.append(done + first + max(total - done - first, taken))
        done += math.fsum(bp[layer] for layer in chosen)
    return Seconds(math.fsum(terms))


def partial_local_sgd_seconds(steps: int, forward: float, bp: Times, comm: Times, sets: Sequence[Collection[int]]) -> Seconds:
    """Equation (7): ``R t_FP + R / H`` times the period, for any disjoint sets.

    The text's terms assume runs; for others the first exchange of set h begins when the backward of its first layer has ended,
    which the text's ``t_BP(sets before h) + t_BP(h_0)`` is for runs.
    """
    total, ends = math.fsum(bp), backward_ends(bp)
    terms = [max(total, ends[max(s)] + timeline_comm_seconds(bp, comm, s)) if s else total for s in sets]
    return Seconds(steps * forward + steps / len(sets) * math.fsum(terms))
