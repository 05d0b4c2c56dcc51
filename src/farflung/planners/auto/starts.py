"""Layouts to begin with: grids of replicas and stages along orders of devices, and which devices of very many to look at.

An order visits clusters of devices, nearest first, and each cluster's devices fastest first. A grid takes a prefix of an order:
``near`` makes replicas of neighbours (they exchange gradients over fast links), ``far`` makes pipelines of neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from farflung.cluster import Topology
from farflung.planners.auto.layout import Context, Groups, Layout
from farflung.planners.communities import linkage_communities

__all__ = ["device_orders", "grids", "nearest", "steps"]

#: Up to so many devices clusters are found from links; beyond that the topology's regions are taken.
_CLUSTERED = 512
#: Orders begin in so many clusters at most.
_BEGINNINGS = 8


def steps(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, ... up to ``most``, which is one of them."""
    found = [1]
    while found[-1] < most:
        last = found[-1]
        found.append(min(most, last + max(1, last // 2) if last & (last - 1) == 0 else 4 * last // 3))
    return found


def _clusters(topology: Topology, nbytes: float) -> list[tuple[int, ...]]:
    if len(topology) <= _CLUSTERED:
        return list(linkage_communities(topology, nbytes))
    return list(topology.regions.values())


def _gaps(
    topology: Topology, clusters: Sequence[Sequence[int]], nbytes: float
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Seconds of a message between the first devices of each two clusters, the mean of both directions."""
    heads = [cluster[0] for cluster in clusters]
    grid = np.ix_(heads, heads)
    seconds = np.asarray(topology.alpha[grid]) + nbytes / np.asarray(topology.beta[grid])
    return np.asarray((seconds + seconds.T) / 2, dtype=np.float64)


def device_orders(topology: Topology, nbytes: float) -> list[tuple[int, ...]]:
    """Orders of all devices, those that begin in the strongest clusters first, and one by speed alone."""
    clusters = [tuple(sorted(c, key=lambda i: _rank(topology, i))) for c in _clusters(topology, nbytes)]
    gaps = _gaps(topology, clusters, nbytes)
    power = [sum(float(topology.speeds[i]) for i in cluster) for cluster in clusters]
    begin = sorted(range(len(clusters)), key=lambda c: (-power[c], c))[:_BEGINNINGS]
    found = [tuple(i for c in _path(gaps, start) for i in clusters[c]) for start in begin]
    found.append(tuple(sorted(range(len(topology)), key=lambda i: _rank(topology, i))))
    return list(dict.fromkeys(found))


def _rank(topology: Topology, index: int) -> tuple[float, float, int]:
    device = topology.devices[index]
    return -float(topology.speeds[index]), -float(device.memory), index


def _path(gaps: np.ndarray[tuple[int, int], np.dtype[np.float64]], start: int) -> list[int]:
    """From ``start`` always to the nearest cluster that was not visited."""
    path, left = [start], set(range(len(gaps))) - {start}
    while left:
        path.append(min(left, key=lambda c: (gaps[path[-1], c], c)))
        left.discard(path[-1])
    return path


def nearest(topology: Topology, count: int, nbytes: float) -> list[str]:
    """The names of ``count`` devices: the strongest region for its links, and the regions nearest to it; regions are units."""
    regions = list(topology.regions.values())
    gaps = _gaps(topology, regions, nbytes)
    power = np.array([sum(float(topology.speeds[i]) for i in region) for region in regions])
    best: tuple[float, list[int]] = (-1.0, [])
    for start in np.argsort(-power, kind="stable")[:16].tolist():
        order, chosen, reach = np.lexsort((np.arange(len(regions)), gaps[start])), list[int](), 0.0
        for c in [start, *(int(c) for c in order if c != start)]:
            reach += power[c] / (1.0 + float(gaps[start, c]))
            chosen += sorted(regions[c], key=lambda i: _rank(topology, i))
            if len(chosen) >= count:
                break
        if reach > best[0]:
            best = (reach, chosen[:count])
    return [topology.names[i] for i in sorted(best[1])]


def _groups(order: Sequence[int], dp: int, pp: int, far: bool) -> Groups:
    taken = order[: dp * pp]
    if far:
        return tuple(tuple(taken[stage::pp][:dp]) for stage in range(pp))
    return tuple(tuple(taken[stage * dp : stage * dp + dp]) for stage in range(pp))


def grids(context: Context, base: Layout, most: int, replicas: Sequence[int]) -> Iterator[Layout]:
    """Layouts without cuts (``base``'s) for every order, number of stages and of replicas; cut them with ``Context.divide``."""
    message = float(max(context.chain(base).ahead.max(), 1.0))
    limit = len(context.chain(base).positions) - 1
    for order in device_orders(context.topology, message):
        for dp in replicas:
            for pp in steps(max(1, min(most // dp, limit))):
                if dp * pp <= most:
                    for far in (False, True)[: 2 if dp > 1 and pp > 1 else 1]:
                        yield replace(base, groups=_groups(order, dp, pp, far))
