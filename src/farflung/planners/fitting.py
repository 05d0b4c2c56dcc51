"""Orders of devices that can hold a model where memory is tight: exact, over how many devices of each size are used.

Devices of one kind and memory are alike here, so a state is how many of each were used by the stages so far, and what it keeps
is at which candidates they can end. A stage's memory depends on its place (micro-batches in flight) and on both of its ends, and
need not grow with it, so sets of ends are kept instead of the farthest. Where there are too many sizes, neighbours count as the
smaller one: what is found fits, but something may be missed. Cost: O(states x sizes x candidates^2) for each number of stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from farflung.cluster import Topology
from farflung.cluster.device import DeviceKind
from farflung.planners.chain_dp import Chain

__all__ = ["fitting_orders"]

Flags = npt.NDArray[np.bool_]
Used = tuple[int, ...]

#: States of one number of stages, at most.
_STATES = 1024


@dataclass(frozen=True, slots=True)
class _Size:
    """Devices (indices) that count as alike, the fastest first."""

    kind: DeviceKind
    memory: float
    members: tuple[int, ...]


def fitting_orders(chain: Chain, most: int) -> Iterator[tuple[int, ...]]:
    """For each number of stages up to ``most`` an order of devices (indices) that can hold the model, where there is one."""
    sizes = _sizes(chain.problem.topology)
    for stages in range(1, min(most, len(chain.positions) - 1) + 1):
        order = _order(chain, sizes, stages)
        if order is not None:
            yield order


def _sizes(topology: Topology) -> list[_Size]:
    found: dict[tuple[DeviceKind, float], list[int]] = {}
    for index, device in enumerate(topology.devices):
        found.setdefault((device.kind, float(device.memory)), []).append(index)
    sizes = [_Size(kind, memory, tuple(members)) for (kind, memory), members in sorted(found.items())]
    while prod(len(size.members) + 1 for size in sizes) > _STATES:
        pairs = [i for i in range(len(sizes) - 1) if sizes[i].kind == sizes[i + 1].kind]
        if not pairs:
            break
        at = min(pairs, key=lambda i: sizes[i + 1].memory / sizes[i].memory)
        sizes[at : at + 2] = [_Size(sizes[at].kind, sizes[at].memory, sizes[at].members + sizes[at + 1].members)]
    speeds = topology.speeds
    return [_Size(size.kind, size.memory, tuple(sorted(size.members, key=lambda i: (-speeds[i], i)))) for size in sizes]


def _order(chain: Chain, sizes: Sequence[_Size], stages: int) -> tuple[int, ...] | None:
    fits = [[chain.fits(size.kind, size.memory, stages, at) for at in range(stages)] for size in sizes]
    start = np.zeros(len(chain.positions), dtype=np.bool_)
    start[0] = True
    layers: list[dict[Used, Flags]] = [{(0,) * len(sizes): start}]
    for at in range(stages):
        layer: dict[Used, Flags] = {}
        for used, reached in layers[-1].items():
            for number, size in enumerate(sizes):
                if used[number] < len(size.members):
                    ends: Flags = np.asarray(fits[number][at][reached].any(axis=0))
                    key = _one_more(used, number)
                    if ends.any():
                        layer[key] = layer[key] | ends if key in layer else ends
        layers.append(layer)
    goal = next((used for used, reached in layers[-1].items() if reached[-1]), None)
    if goal is None:
        return None
    chosen: list[int] = []
    end = len(start) - 1
    for at in reversed(range(stages)):
        number, end = next(
            (number, int(starts.argmax()))
            for number in range(len(sizes))
            if goal[number]
            and (before := layers[at].get(_one_more(goal, number, -1))) is not None
            and (starts := before & fits[number][at][:, end]).any()
        )
        goal = _one_more(goal, number, -1)
        chosen.append(number)
    left = [iter(size.members) for size in sizes]
    return tuple(next(left[number]) for number in reversed(chosen))


def _one_more(used: Used, number: int, more: int = 1) -> Used:
    return (*used[:number], used[number] + more, *used[number + 1 :])
