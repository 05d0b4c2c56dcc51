"""Local steps by speed in plans: chosen from the devices' speeds, counted, written down and checked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.job import make_job
from farflung.plan import Plan, estimate
from farflung.plan.synchronization import check_sync, world_of
from farflung.planners import get_planner
from farflung.simulator import Simulator
from farflung.units import FlopsPerSecond
from tests.support.plans.hand_plans import chain, topology
from tests.support.plans.hand_replicas import GRAPH

JOB = make_job(
    {
        "micro_batch_sizes": [4, 4],
        "plan": {"replicas": 2, "planner": "equal_compute"},
        "sync": {"strategy": "local_sgd", "settings": {"sync_every": 4, "by_speed": True}},
    }
)


def slower(count: int, *speeds: float) -> Topology:
    plain = topology(count=count, beta=1e9, alpha=0.0)
    devices = [replace(d, speed=FlopsPerSecond(d.speed * speed)) for d, speed in zip(plain.devices, speeds, strict=True)]
    return plain.with_devices(devices)


def test_the_slow_replica_takes_fewer_steps_and_weighs_less() -> None:
    """Two micro-batches can't be shared by speed: each replica has one."""
    net = slower(2, 1.0, 0.4)
    plan = get_planner("equal_compute").plan(GRAPH, net, job=JOB)
    assert plan.sync is not None
    assert plan.sync.local_steps == (4, 1)
    assert world_of(plan, GRAPH, JOB, 0).weights == pytest.approx((0.8, 0.2))
    assert Plan.from_json(plan.to_json()) == plan
    every = replace(plan, sync=replace(plan.sync, local_steps=()))
    fewer, all_steps = (estimate(GRAPH, item, net, JOB).step_seconds for item in (plan, every))
    assert fewer == pytest.approx(all_steps * 0.4, rel=0.1), "the fast one, which takes all, bounds the mean step"
    assert Simulator(GRAPH, net, JOB).run(plan).step_seconds == pytest.approx(fewer, rel=0.05)


def test_equal_replicas_take_all_steps() -> None:
    plan = get_planner("equal_compute").plan(GRAPH, slower(2, 1.0, 1.0), job=JOB)
    assert plan.sync is not None
    assert plan.sync.local_steps == (4, 4)


def test_pipelines_have_the_same_share_in_all_stages_whatever_their_devices() -> None:
    plan = get_planner("equal_compute").plan(chain(), slower(4, 1.0, 1.0, 1.0, 0.5), job=JOB)
    assert len(plan.stages) == 2
    assert plan.replicas_of(0)[0].micro_batches == plan.replicas_of(1)[0].micro_batches
    assert plan.sync is not None
    assert max(plan.sync.local_steps) == 4
    assert min(plan.sync.local_steps) < 4


def test_what_plans_may_not_say() -> None:
    plan = get_planner("equal_compute").plan(GRAPH, slower(2, 1.0, 0.4), job=JOB)
    assert plan.sync is not None
    with pytest.raises(PlanError, match=r"local_steps = \[2, 1\]: the fastest takes all 4 of a period; plan again"):
        check_sync(replace(plan, sync=replace(plan.sync, local_steps=(2, 1))), GRAPH, JOB)
    plain = replace(plan, sync=replace(plan.sync, settings=(("sync_every", 4),)))
    with pytest.raises(PlanError, match=r"local_steps = \[4, 1\]: replicas take all steps unless by_speed = true"):
        check_sync(plain, GRAPH, JOB)
