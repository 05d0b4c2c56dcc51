"""Random topologies for grids, and the plain cost of an assignment."""

from itertools import pairwise, permutations

import numpy as np

from farflung.cluster import Device, Topology
from farflung.planners.grid.model import counts_of, data_parallel_seconds, make_problem, pipeline_seconds
from farflung.units import Bytes, FlopsPerSecond


def lognormal(n, seed):
    random = np.random.default_rng(seed)
    return Topology.from_matrices(0.05 * random.lognormal(0, 0.5, (n, n)), 125e6 * random.lognormal(0, 1, (n, n)))


def regions(sizes, seed):
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(sizes)), sizes)
    devices = [Device(name=f"d{i}", memory=Bytes(1e9), speed=FlopsPerSecond(1e9), region=f"r{g}") for i, g in enumerate(group)]
    shape = (len(sizes),) * 2
    return Topology.from_groups(devices, group, random.uniform(0.001, 0.2, shape), random.uniform(1e7, 1e9, shape))


def problem_of(topology, dp, pp):
    return make_problem(topology, dp=dp, pp=pp, dp_bytes=6e8, pp_bytes=4e8)


def cost(problem, rows):
    groups = data_parallel_seconds(problem, counts_of(problem, rows))
    return groups.max() + pipeline_seconds(problem, rows).sum()


def plain_cost(topology, rows, dp_bytes=6e8, pp_bytes=4e8):
    """Equations (1) to (3) as they are printed, for stages in their order."""
    alpha = (np.asarray(topology.alpha) + np.asarray(topology.alpha).T) / 2
    beta = (np.asarray(topology.beta) + np.asarray(topology.beta).T) / 2
    dp = len(rows[0])
    groups = [
        max(sum(2 * (alpha[d, e] + dp_bytes / (dp * beta[d, e])) for e in stage if e != d) for d in stage) for stage in rows
    ]
    edges = [
        min(max(2 * (alpha[d, e] + pp_bytes / beta[d, e]) for d, e in zip(a, order, strict=True)) for order in permutations(b))
        for a, b in pairwise(rows)
    ]
    return max(groups) + sum(edges)
