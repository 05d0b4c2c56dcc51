"""OP-Fence as the text has it: all devices, communities in one piece, shares by speed."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from benchmarks.papers.fusionllm_text import OpFenceAsWritten, shares
from farflung.cluster import Device, Topology
from farflung.errors import PlanError
from farflung.job.spec import JobSpec
from farflung.planners.finish import Problem
from farflung.units import Bytes, FlopsPerSecond
from tests.support.plans.chains import chain

JOB = JobSpec(micro_batch_sizes=(32, 32))
GRAPH = chain([64] * 24)


def network(speeds: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0), memory: float = 1e9) -> Topology:
    """Two sites with the even and the odd devices."""
    count = len(speeds)
    devices = [Device(name=f"d{i}", memory=Bytes(memory), speed=FlopsPerSecond(1e9 * s)) for i, s in enumerate(speeds)]
    site = np.arange(count) % 2
    same = site[:, None] == site[None, :]
    beta = np.where(same, 1e9, 1e6)
    np.fill_diagonal(beta, np.inf)
    return Topology.from_matrices(np.where(same, 0.0, 0.1), beta, devices)


def test_each_community_has_one_piece_of_the_model() -> None:
    plan = OpFenceAsWritten().plan(GRAPH, network(), job=JOB)
    sites = [site for site, _ in groupby(int(stage.device[1:]) % 2 for stage in plan.stages)]
    assert len(plan.stages) == 4, "all devices"
    assert len(sites) == 2


def test_shares_are_in_proportion_to_speed() -> None:
    topology = network((1.0, 1.0, 2.0, 4.0))
    problem = Problem.of(GRAPH, topology, JOB)
    work = problem.cost.forward_sum + problem.cost.backward_sum
    found = shares(problem, [[0, 2], [1, 3]])
    assert [device for *_, device in found] == ["d0", "d2", "d1", "d3"]
    parts = [float(work[stop] - work[start]) / float(work[-1]) for start, stop, _ in found]
    assert parts == pytest.approx([1 / 8, 2 / 8, 1 / 8, 4 / 8], abs=0.06)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(PlanError, match="memory"):
        OpFenceAsWritten().plan(GRAPH, network(memory=1e3), job=JOB)
