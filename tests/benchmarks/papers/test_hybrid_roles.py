"""Roles of servers by equations (1) and (2), by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.hybrid_roles import both_roles_seconds, regional, roles_of
from farflung.cluster import Device, Topology
from farflung.planners.hybrid_ps import HybridPsStage, HybridPsWork
from farflung.units import Bytes, FlopsPerSecond

WORK = HybridPsWork(flops=400.0, message=8.0, mini_batches=10, layers=2)


def network(alpha: float = 0.5, beta: float = 4.0) -> Topology:
    """Four servers and a client of equal speed and equal links."""
    kinds = (True, True, True, True, False)
    devices = [
        Device(name=f"d{i}", memory=Bytes(1e9), speed=FlopsPerSecond(2.0), reliable=reliable) for i, reliable in enumerate(kinds)
    ]
    off = 1.0 - np.eye(5)
    return Topology.from_matrices(alpha * off, np.where(off > 0, beta, np.inf), devices)


def test_both_roles_save_the_hop_of_servers_inside_a_stage() -> None:
    stages = [((0,), (1,)), ((2,), (3,))]
    alone = [HybridPsStage(front=front, back=back, clients=(), layers=1) for front, back in stages]
    hop, compute = 0.5 + 8.0 / 4.0, 40.0 / 2 / 4.0
    assert both_roles_seconds(network(), WORK, alone) == pytest.approx(10 * (hop + compute))
    helped = [alone[0], HybridPsStage(front=(2,), back=(3,), clients=(4,), layers=1)]
    client = 2 * (0.5 + 8.0 / 3 / 4.0)
    # the stage without a client computes longer than the client's hops take with its stage's third of the work
    assert both_roles_seconds(network(), WORK, helped) == pytest.approx(10 * max(hop + compute, hop + client + 20.0 / 6.0))


def test_servers_between_two_regions_are_what_roles_are_for() -> None:
    """One of two servers is near the stage before, the other near the stage after."""
    near, far = 0.01, 10.0
    alpha = np.full((4, 4), far)
    for i, j in ((0, 1), (1, 2), (2, 3)):
        alpha[i, j] = alpha[j, i] = near
    np.fill_diagonal(alpha, 0.0)
    topology = Topology.from_matrices(alpha, np.where(np.eye(4) > 0, np.inf, 1e9), list(network().devices[:4]))
    work = HybridPsWork(flops=4.0, message=1e-6, mini_batches=1, layers=3)
    stages = [((0,), (0,)), ((1,), (2,)), ((3,), (3,))]
    found = both_roles_seconds(topology, work, [HybridPsStage(front=f, back=b, clients=(), layers=1) for f, b in stages])
    assert found == pytest.approx(far + near + 4.0 / 3 / 4.0, rel=1e-3), "each neighbor is far from one of the two"


def test_networks_of_regions_have_a_plan_for_both_ways() -> None:
    base = network()
    links = [regional(base, seed) for seed in (1, 1, 2)]
    assert (links[0].alpha == links[1].alpha).all()
    assert (links[0].alpha != links[2].alpha).any()
    found = roles_of(links[0], WORK)
    assert 1 <= found["stages"] <= 2
    assert found["both"] > 0
    assert found["roles"] > 0
