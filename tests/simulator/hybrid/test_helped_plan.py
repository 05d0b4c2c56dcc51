"""A hybrid plan with its helpers: the figures come from plan and topology."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.job.spec import JobSpec, PlanSpec
from farflung.plan import LinkPlan
from farflung.planners import get_planner
from farflung.simulator import HelpedRun, HelperLosses, simulate_helped
from farflung.units import FlopsPerSecond
from tests.support.plans.chains import chain


def run(helpers: int, losses: HelperLosses | None = None) -> HelpedRun:
    graph = chain((64,) * 5, rows=4)
    job = JobSpec(micro_batch_sizes=(4,) * 8, plan=PlanSpec(helpers=True, schedule="gpipe"))
    plain = Topology.preset(f"homogeneous-{2 + helpers}")
    devices = [replace(d, reliable=i < 2, speed=FlopsPerSecond(1e5)) for i, d in enumerate(plain.devices)]
    topology = plain.with_devices(devices)
    servers = topology.select(topology.names[:2])
    plan = get_planner("equal_number").plan(graph, servers, job=job)
    return simulate_helped(plan, topology, graph, job, losses)


def test_helpers_spread_over_the_stages_and_shorten_the_step() -> None:
    found = run(2)
    assert sorted(found.servers.values()) == ["device-0", "device-1"]
    assert 0.4 < found.step_seconds / found.alone_seconds < 0.75
    assert found.lossy_seconds == found.step_seconds
    assert found.losses == 0


def test_a_device_with_several_stages_has_a_server_for_each() -> None:
    graph = chain((64,) * 5, rows=4)
    job = JobSpec(micro_batch_sizes=(4,) * 8, plan=PlanSpec(helpers=True, schedule="gpipe"))
    plain = Topology.preset("homogeneous-3")
    topology = plain.with_devices([replace(d, reliable=i < 2, speed=FlopsPerSecond(1e5)) for i, d in enumerate(plain.devices)])
    plan = get_planner("equal_number").plan(graph, topology.select(topology.names[:2]), job=job)
    bounds = enumerate([(0, 3), (3, 5), (5, 7), (7, 11)])
    stages = [replace(plan.stages[0], index=i, start=a, stop=b, device=f"device-{i % 2}") for i, (a, b) in bounds]
    links = tuple(LinkPlan(source=i, target=i + 1) for i in range(3))
    found = simulate_helped(replace(plan, stages=tuple(stages), links=links), topology, graph, job)
    assert set(found.servers) == {"device-2"}
    assert 0.6 < found.step_seconds / found.alone_seconds < 1.0


def test_losses_lengthen_the_step_to_that_without_helpers_at_most() -> None:
    found = run(2, HelperLosses(chance=0.9, steps=8))
    assert found.step_seconds < found.lossy_seconds <= 1.1 * found.alone_seconds
    assert 8 < found.losses <= 16
    assert run(2, HelperLosses(chance=0.9, steps=8)) == found


def test_a_chance_above_one_is_refused() -> None:
    with pytest.raises(InputError, match=r"simulating helpers needs a chance from 0 to 1 and steps, got 1\.5 and 20"):
        HelperLosses(chance=1.5)
