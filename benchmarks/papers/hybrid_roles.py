"""Front and back servers of Hybrid-PS against servers that have both roles, by the paper's equations (1) and (2).

Both have the same stages. With the paper's roles, back servers send to front servers of the next stage, and a slice crosses its
stage from a front to a back server. With both roles, the server of a slice receives, computes and sends the slice: it saves the
hop inside the stage, and may be far from one neighbor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from farflung.cluster import Topology
from farflung.planners.hybrid_ps import HybridPsStage, HybridPsWork, plan_hybrid_ps

__all__ = ["both_roles_seconds", "regional", "roles_of"]

Array = npt.NDArray[np.float64]


def both_roles_seconds(topology: Topology, work: HybridPsWork, stages: Sequence[HybridPsStage]) -> float:
    """Equation (2) where each server of a stage has both roles: seconds of a batch."""
    delay = np.asarray(topology.alpha) + work.message / np.asarray(topology.beta)
    links = [float(delay[np.ix_(a.servers, b.servers)].mean()) for a, b in pairwise(stages)]
    hops = [0.0, *links, 0.0]
    return work.mini_batches * max(hops[k] + hops[k + 1] + _stage(topology, work, stage) for k, stage in enumerate(stages))


def _stage(topology: Topology, work: HybridPsWork, stage: HybridPsStage) -> float:
    """Equation (1): a client has two hops to the server nearest to it, and a server has none."""
    speeds, servers = topology.speeds, list(stage.servers)
    total = float(speeds[[*servers, *stage.clients]].sum())
    worst = 0.0
    for i in stage.clients:
        slice_bytes = work.message * float(speeds[i]) / total
        there = topology.alpha[servers, i] + slice_bytes / topology.beta[servers, i]
        back = topology.alpha[i, servers] + slice_bytes / topology.beta[i, servers]
        worst = max(worst, float((there + back).min()))
    return worst + work.flops / work.mini_batches * stage.layers / work.layers / total


def roles_of(topology: Topology, work: HybridPsWork) -> dict[str, Any]:
    """Seconds of a batch with both ways, for the stages of ``plan_hybrid_ps``."""
    plan = plan_hybrid_ps(topology, work)
    both = both_roles_seconds(topology, work, plan.stages)
    several = sum(len(stage.servers) > 1 for stage in plan.stages)
    return {"stages": len(plan.stages), "with_several_servers": several, "roles": plan.seconds, "both": both}


def regional(base: Topology, seed: int) -> Topology:
    """``base`` with its devices in two to five regions: fast links inside, 50 to 300 Mbit/s and 10 to 150 ms between regions."""
    draw, count = np.random.default_rng(seed), len(base)
    regions = draw.integers(0, draw.integers(2, 6), count)
    same = regions[:, None] == regions[None, :]
    pairs = np.ix_(regions, regions)
    drawn = draw.uniform(0.01, 0.15, (6, 6)), draw.uniform(50, 300, (6, 6)) * 125e3
    alpha, beta = (((table + table.T) / 2)[pairs] for table in drawn)
    alpha, beta = np.where(same, 0.001, alpha), np.where(same, 1.25e8, beta)
    np.fill_diagonal(alpha, 0.0)
    np.fill_diagonal(beta, np.inf)
    return replace(base, alpha=alpha, beta=beta)
