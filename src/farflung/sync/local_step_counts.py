"""Slower replicas take fewer local steps between two synchronizations, so that nobody waits long for them.

A replica whose local step takes t seconds takes ``floor(H t_min / t)`` of the H steps of a period, at least one: the first, and
the others spread evenly. In the steps between it rests: it reads no samples and updates nothing, so while others go through them
it computes on at the local step before. In every mean a replica counts by the samples that it uses in a period. Others wait for
its losses, which are there before its last backward.

Source: our own; unequal numbers of local steps and what weights do about them: Wang et al., "Tackling the objective inconsistency
problem in heterogeneous federated optimization" (2020), who divide each update by its steps. What differs: here replicas draw
their samples alike, so more steps are more samples and not another objective.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from farflung.errors import InputError

__all__ = ["adapted_steps", "begun", "ended", "local_steps", "step_of", "takes"]


def local_steps(step_seconds: Sequence[float], sync_every: int) -> tuple[int, ...]:
    """How many of ``sync_every`` steps each replica takes. ``step_seconds``: of a local step of each.

    Raises:
        InputError: a time is no positive number.
    """
    for rank, seconds in enumerate(step_seconds):
        if not 0 < seconds < math.inf:
            raise InputError(
                f"a local step of replica {rank} takes {seconds} seconds: must be more than 0 and finite; measure again"
            )
    least = min(step_seconds, default=1.0)
    return tuple(max(1, math.floor(sync_every * least / seconds + 1e-6)) for seconds in step_seconds)


def adapted_steps(
    now: Sequence[int], step_seconds: Sequence[float], shares: Sequence[float], sync_every: int, adapt: float
) -> tuple[int, ...]:
    """The local steps that measured ``step_seconds`` of each replica ask for, or ``now`` where they would bring little.

    Little: at most ``adapt`` more samples per second. A period lasts as long as the replica that computes longest; ``shares``
    (empty: equal) are of a step's samples. A time of zero or that is not finite was not measured: ``now`` stays.
    """
    if not all(0 < seconds < math.inf for seconds in step_seconds) or len(step_seconds) != len(now):
        return tuple(now)
    weights = list(shares) or [1.0] * len(now)

    def rate(steps: Sequence[int]) -> float:
        samples = sum(share * count for share, count in zip(weights, steps, strict=True))
        return samples / max(count * seconds for count, seconds in zip(steps, step_seconds, strict=True))

    found = local_steps(step_seconds, sync_every)
    return found if rate(found) > (1.0 + adapt) * rate(now) else tuple(now)


def takes(step: int, steps: int, sync_every: int) -> bool:
    """Whether a replica that takes ``steps`` of ``sync_every`` steps takes step ``step``; it takes the first of a period."""
    place = step % sync_every
    return -(-(place + 1) * steps // sync_every) > -(-place * steps // sync_every)


def ended(step: int, steps: int, sync_every: int) -> int | None:
    """The step that such a replica took last, if it lasts until the end of step ``step``: it takes the next one.

    ``None``: it is still under way then.
    """
    if not takes(step + 1, steps, sync_every):
        return None
    return next(taken for taken in range(step, step - sync_every, -1) if takes(taken, steps, sync_every))


def begun(step: int, steps: int, sync_every: int) -> int:
    """How many local steps such a replica has begun when step ``step`` is over."""
    period, place = divmod(step, sync_every)
    return period * steps - (-(place + 1) * steps // sync_every)


def step_of(number: int, steps: int, sync_every: int) -> int:
    """The step in which such a replica takes its local step ``number`` (from 0)."""
    period, place = divmod(number, steps)
    return period * sync_every + place * sync_every // steps
