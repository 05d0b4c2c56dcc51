"""Sets of layers follow measured times: whether other sets would be worth it, decided alike by all members.

Source: DreamDDP profiles once; here layers are measured while they train. Members tell each other what they saw in a period,
every member takes the slowest of each layer, and at a period's end the sets are chosen anew if that shortens the period by more
than ``adapt``. Cost: that of ``partial_sync_schedule`` once per period, and eight bytes per layer to every other member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from farflung.sync.base import LayerInfo, World
from farflung.sync.local import PartialLocalSgd
from farflung.sync.timeline import timeline
from farflung.units import Seconds

__all__ = ["adapted", "period_seconds", "times_of", "with_times"]

Vector = npt.NDArray[Any]


def times_of(world: World) -> Vector:
    """The times that ``world`` counts with: float32[2 L], seconds of the layers' backwards, then of their exchanges."""
    both = [layer.bp_seconds for layer in world.layers] + [layer.comm_seconds for layer in world.layers]
    return np.array(both, np.float32)


def with_times(world: World, times: Vector) -> World:
    """``world`` with other times, as ``times_of`` gives them."""
    count = len(world.layers)
    layers = tuple(
        LayerInfo(nbytes=layer.nbytes, bp_seconds=Seconds(times[index]), comm_seconds=Seconds(times[count + index]))
        for index, layer in enumerate(world.layers)
    )
    return replace(world, layers=layers)


def adapted(strategy: PartialLocalSgd, world: World, told: Sequence[Vector]) -> World:
    """``world`` with the times that all members measured, where they ask for other sets; else ``world`` as it is.

    ``told``: ``times_of``-like vectors of all members, in any order; who measured nothing tells zeros and does not count.
    """
    count = len(world.layers)
    rows = [row.astype(np.float32) for row in told if row.shape == (2 * count,) and np.isfinite(row).all() and (row >= 0).all()]
    rows = [row for row in rows if row[:count].any() and row[count:].any()]
    if not rows:
        return world
    measured = with_times(world, np.maximum.reduce(rows))
    now = tuple(strategy.layers_of(step, world) for step in range(strategy.sync_every))
    fixed = replace(strategy, sets=now, fill=False, adapt=0.0)
    better = period_seconds(strategy, measured) < (1.0 - strategy.adapt) * period_seconds(fixed, measured)
    return measured if better else world


def period_seconds(strategy: PartialLocalSgd, world: World) -> Seconds:
    """The backward parts of a period, with the exchanges that they do not hide."""
    return Seconds(timeline(strategy, world, strategy.sync_every)[-1].end)
