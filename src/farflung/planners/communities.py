"""Communities of devices: groups with fast links inside, and orders of groups along a chain.

Louvain on bandwidth is FusionLLM's choice; it tends to merge regions. Average linkage on transfer times, cut at the largest
jump, finds the regions of typical networks, so planners try both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, permutations

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from farflung.cluster import Topology

__all__ = ["chain_orders", "linkage_communities", "louvain_communities", "transfer_seconds"]

Groups = tuple[tuple[int, ...], ...]
Ends = tuple[frozenset[int], frozenset[int]]
Matrix = npt.NDArray[np.float64]

Gaps = list[list[float]]

_EXHAUSTIVE = 5
_BEGINNINGS = 16
_SEED = 0


def transfer_seconds(topology: Topology, nbytes: float) -> Matrix:
    """Seconds of a message between each two devices, the mean of both directions; (n, n), symmetric, 0 on the diagonal."""
    seconds = topology.alpha + nbytes / topology.beta
    mean: Matrix = (seconds + seconds.T) / 2
    return mean


def louvain_communities(topology: Topology) -> Groups:
    """Louvain communities of the complete graph weighted by bandwidth (the mean of both directions), with a fixed seed."""
    if len(topology) == 1:
        return ((0,),)
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(len(topology)))
    for i in range(len(topology)):
        for j in range(i):
            graph.add_edge(i, j, weight=float((topology.beta[i, j] + topology.beta[j, i]) / 2))
    found = nx.community.louvain_communities(graph, weight="weight", seed=_SEED)
    return tuple(sorted(tuple(sorted(group)) for group in found))


def linkage_communities(topology: Topology, nbytes: float) -> Groups:
    """Average linkage on transfer times, cut where the next merge costs the largest factor more than the last."""
    n = len(topology)
    if n < 3:
        return tuple((i,) for i in range(n))
    seconds = transfer_seconds(topology, nbytes)
    tree = linkage(squareform(seconds, checks=False), method="average")
    heights = np.maximum(tree[:, 2], 1e-12)
    jump = int(np.argmax(heights[1:] / heights[:-1]))
    labels = fcluster(tree, t=float(heights[jump]) * (1 + 1e-9), criterion="distance")
    groups: dict[int, list[int]] = {}
    for device, label in enumerate(labels):
        groups.setdefault(int(label), []).append(device)
    return tuple(sorted(tuple(group) for group in groups.values()))


def chain_orders(groups: Groups, seconds: Matrix, count: int, ends: Ends | None = None) -> list[Groups]:
    """At most ``count`` orders of the groups along a chain, the most promising first.

    Few groups: all orders, sorted by the longest and then the sum of the links between neighbours. Many: nearest-neighbour
    paths from up to sixteen starts, improved by reversing pieces (2-opt), each in both directions. ``ends``: the devices with
    memory for the first stage, and those with memory for the last; orders whose ends have none come after all others.
    """
    begins, stops = ends or (frozenset(range(len(seconds))),) * 2
    begin, stop = ([bool(able.intersection(group)) for group in groups] for able in (begins, stops))

    def unfit(path: Sequence[int]) -> int:
        return (not begin[path[0]]) + (not stop[path[-1]])

    gap = [[float(seconds[np.ix_(a, b)].min()) for b in groups] for a in groups]
    if len(groups) <= _EXHAUSTIVE:
        paths = [list(path) for path in permutations(range(len(groups)))]
    else:
        paths = []
        for start in range(0, len(groups), -(-len(groups) // _BEGINNINGS)):
            path = _two_opt(_nearest(gap, start), gap, unfit)
            paths += [path, _two_opt(path[::-1], gap, unfit)]
    unique = {tuple(path): (unfit(path), _length(path, gap)) for path in paths}
    ranked = sorted(unique, key=lambda path: (unique[path], path))
    return [tuple(groups[i] for i in path) for path in ranked[:count]]


def _length(path: Sequence[int], gap: Gaps) -> tuple[float, float]:
    steps = [gap[a][b] for a, b in pairwise(path)]
    return max(steps, default=0.0), sum(steps)


def _nearest(gap: Gaps, start: int) -> list[int]:
    path, left = [start], set(range(len(gap))) - {start}
    while left:
        path.append(min(left, key=lambda i: (gap[path[-1]][i], i)))
        left.discard(path[-1])
    return path


def _two_opt(path: list[int], gap: Gaps, unfit: Callable[[Sequence[int]], int]) -> list[int]:
    best = unfit(path), _length(path, gap)
    improved = True
    while improved:
        improved = False
        for i in range(len(path) - 1):
            for j in range(i + 2, len(path) + 1):
                other = path[:i] + path[i:j][::-1] + path[j:]
                length = unfit(other), _length(other, gap)
                if length < best:
                    path, best, improved = other, length, True
    return path
