"""Room and patience of a task pool follow from plan and job."""

from __future__ import annotations

import pytest

from farflung.cluster import Topology
from farflung.job.spec import JobSpec, PlanSpec
from farflung.planners import get_planner
from farflung.protocol.pool.pool_settings import PoolSettings
from tests.support.plans.chains import chain


@pytest.mark.parametrize(
    ("schedule", "replicas", "rooms"),
    [
        ("1f1b", 1, [(3, 3), (2, 2), (1, 2)]),
        ("gpipe", 1, [(12, 12)] * 3),
        ("gpipe", 2, [(12, 6)] * 3),
    ],
)
def test_rooms_follow_from_schedule_stage_and_servers(schedule: str, replicas: int, rooms: list[tuple[int, int]]) -> None:
    spec = PlanSpec(schedule=schedule, replicas=replicas)  # type: ignore[arg-type]
    job = JobSpec(micro_batch_sizes=(4,) * 12, plan=spec)
    topology = Topology.preset(f"homogeneous-{3 * replicas}")
    plan = get_planner("equal_number").plan(chain((8,) * 4, rows=4), topology, job=job)
    found = [PoolSettings.of(plan, job, stage.index) for stage in plan.stages]
    assert [(one.room, one.helper_room) for one in found] == rooms


def test_only_duplicates_let_idle_devices_repeat_tasks() -> None:
    topology, graph = Topology.preset("homogeneous-2"), chain((8,) * 3, rows=4)
    hedges = []
    for duplicates in (False, True):
        job = JobSpec(micro_batch_sizes=(4,) * 2, plan=PlanSpec(schedule="1f1b", helpers=True, duplicates=duplicates))
        plan = get_planner("equal_number").plan(graph, topology, job=job)
        hedges.append(PoolSettings.of(plan, job, 0).patience.hedge)
    assert hedges[0] == 0.0 < hedges[1]
