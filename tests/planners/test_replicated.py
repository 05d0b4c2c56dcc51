"""Replicas around any planner: groups, shares by speed, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.graph.builder import GraphBuilder
from farflung.graph.ir import Graph
from farflung.job import JobSpec
from farflung.job.load import make_job
from farflung.job.spec import SyncSpec
from farflung.plan import Estimate, Plan, check_plan, estimate
from farflung.planners import Judged, get_planner
from farflung.planners.replicated import shares
from farflung.units import Bytes, FlopsPerSecond


def chain_graph(layers: int) -> Graph:
    """Linear layers of one width, each followed by a GELU."""
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (32, 16))
    for i in range(layers):
        value = builder.add(f"fc{i}", "Linear", value, in_features=16, out_features=16)
        value = builder.add(f"act{i}", "GELU", value)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (32, 16)))
    return builder.build()


def job_of(replicas: int, sizes: tuple[int, ...] = (1,) * 8, **changes: object) -> JobSpec:
    document = {"micro_batch_sizes": list(sizes), "plan": {"replicas": replicas, "planner": "equal_compute"}}
    return make_job(document | changes)


def planned(topology: Topology, job: JobSpec, planner: str = "equal_compute") -> Plan:
    graph = chain_graph(8)
    plan = get_planner(planner).plan(graph, topology, job=job)
    check_plan(plan, graph, topology, job)
    return plan


@pytest.mark.parametrize("planner", ["equal_number", "equal_compute", "op_fence", "random"])
@pytest.mark.parametrize(("devices", "replicas", "stages"), [(4, 2, 2), (3, 3, 1), (6, 2, 3), (5, 2, 2), (8, 4, 2)])
def test_devices_form_groups(planner: str, devices: int, replicas: int, stages: int) -> None:
    plan = planned(Topology.preset(f"homogeneous-{devices}"), job_of(replicas), planner)
    assert 1 <= len(plan.stages) <= stages
    assert all(len(stage.devices) == replicas for stage in plan.stages)
    assert len(set(plan.devices)) == replicas * len(plan.stages)


def test_one_replica_is_the_planner_itself() -> None:
    plan = planned(Topology.preset("homogeneous-4"), job_of(1))
    assert len(plan.stages) == 4
    assert not plan.replicated


def faster(topology: Topology, speeds: dict[int, float]) -> Topology:
    devices = [
        replace(device, speed=FlopsPerSecond(device.speed * speeds.get(i, 1.0))) for i, device in enumerate(topology.devices)
    ]
    return topology.with_devices(devices)


def test_the_fast_replica_gets_more() -> None:
    plan = planned(faster(Topology.preset("homogeneous-2"), {1: 3.0}), job_of(2))
    found = {replica.device: len(replica.micro_batches) for replica in plan.replicas_of(0)}
    assert found == {"device-1": 6, "device-0": 2}


def test_groups_lie_where_links_are_fast() -> None:
    """Two sites: gradients are exchanged inside them, values cross between them."""
    site = np.array([0, 1, 0, 1])
    near = site[:, None] == site[None, :]
    topology = Topology.from_matrices(np.where(near, 1e-4, 0.05), np.where(near, 1e9, 1e6))
    plan = planned(topology, job_of(2))
    assert {frozenset(stage.devices) for stage in plan.stages} == {
        frozenset({"device-0", "device-2"}),
        frozenset({"device-1", "device-3"}),
    }


def test_too_few_devices_or_micro_batches() -> None:
    with pytest.raises(PlanError, match=r"plan\.replicas = 3 needs as many devices, there are 2: ask for fewer"):
        planned(Topology.preset("homogeneous-2"), job_of(3))
    with pytest.raises(PlanError, match=r"plan\.replicas = 3 with 2 virtual replicas: each replica needs at least one"):
        planned(Topology.preset("homogeneous-3"), job_of(3, (1, 1)))
    with pytest.raises(PlanError, match=r"plan\.replicas = 3 with 2 virtual replicas"):
        planned(Topology.preset("homogeneous-3"), job_of(3, virtual_replicas=2))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_shares_are_whole_and_best(data: st.DataObject) -> None:
    sizes = tuple(data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=7)))
    parts = data.draw(st.integers(1, len(sizes)))
    job = make_job({"micro_batch_sizes": list(sizes), "virtual_replicas": parts})
    speeds = data.draw(st.lists(st.floats(0.5, 4.0), min_size=1, max_size=parts))
    found = shares(speeds, job)
    ends = job.virtual_ends

    def slowest(cuts: tuple[int, ...]) -> float:
        bounds = [0, *cuts, len(sizes)]
        return max(sum(sizes[a:b]) / speed for a, b, speed in zip(bounds[:-1], bounds[1:], speeds, strict=True))

    assert [first for first, _ in found] == [0, *(end for _, end in found[:-1])]
    assert {end for _, end in found} <= set(ends)
    assert found[-1][1] == len(sizes)
    best = min(slowest(cuts) for cuts in combinations(ends[:-1], len(speeds) - 1))
    assert slowest(tuple(end for _, end in found[:-1])) == pytest.approx(best)


def roomy_for_pipelines_only(job: JobSpec) -> Topology:
    """Four devices with memory for what a strategy exchanges, and not for the parts of 64 virtual replicas in their order."""
    graph, topology = chain_graph(8), Topology.preset("homogeneous-4")
    plan = get_planner("equal_compute").plan(graph, topology, job=job)
    need = max(device.memory_bytes for device in estimate(graph, plan, topology, job).devices)
    exact = job.model_copy(update={"sync": SyncSpec()})
    summed = get_planner("equal_compute").plan(graph, topology, job=exact)
    assert max(device.memory_bytes for device in estimate(graph, summed, topology, exact).devices) > 1.02 * need
    return topology.with_devices([replace(device, memory=Bytes(1.02 * need)) for device in topology.devices])


@pytest.mark.parametrize("planner", ["equal_number", "equal_compute", "op_fence", "random"])
def test_memory_is_checked_for_the_exchange_that_the_job_has(planner: str) -> None:
    job = job_of(2, (1,) * 64, sync={"strategy": "ssgd"})
    topology = roomy_for_pipelines_only(job)
    plan = planned(topology, job, planner)
    assert plan.sync is not None
    assert estimate(chain_graph(8), plan, topology, job).feasible


def test_the_judge_sees_the_plan_that_runs() -> None:
    """The schedule is chosen for plans with the job's strategy, and the result is one of them."""
    graph, topology, job = chain_graph(8), Topology.preset("homogeneous-4"), job_of(2, sync={"strategy": "ssgd"})
    job = job.model_copy(update={"plan": job.plan.model_copy(update={"schedule": "auto"})})
    seen: list[Plan] = []

    def judge(plan: Plan) -> Estimate:
        seen.append(plan)
        return estimate(graph, plan, topology, job)

    planner = get_planner("equal_compute")
    assert isinstance(planner, Judged)
    plan = planner.judged_by(judge).plan(graph, topology, job=job)
    assert plan in seen
    assert all(tried.sync is not None and tried.replicated for tried in seen)


def test_the_planner_inside_leaves_memory_for_the_exchange() -> None:
    """Stages that the inner planner would fill to the brim leave room for what replicas exchange."""
    job, graph = job_of(2, (1,) * 8, sync={"strategy": "ssgd"}), chain_graph(8)
    unequal = faster(Topology.preset("homogeneous-4"), {0: 4.0, 1: 4.0})
    free = get_planner("op_fence").plan(graph, unequal, job=job)
    most = max(device.memory_bytes for device in estimate(graph, free, unequal, job).devices)
    tight = unequal.with_devices([replace(device, memory=Bytes(0.9 * most)) for device in unequal.devices])
    plan = get_planner("op_fence").plan(graph, tight, job=job)
    assert estimate(graph, plan, tight, job).feasible


def test_random_groups_are_random() -> None:
    """DT-FM's baseline without a scheduler: replicas that exchange gradients lie anywhere."""
    site = np.array([0, 1, 0, 1])
    near = site[:, None] == site[None, :]
    topology = Topology.from_matrices(np.where(near, 1e-4, 0.05), np.where(near, 1e9, 1e6))
    sites = dict(zip(topology.names, site.tolist(), strict=True))
    plans = [planned(topology, job_of(2, seed=seed), "random") for seed in range(8)]
    mixed = [any(len({sites[name] for name in stage.devices}) > 1 for stage in plan.stages) for plan in plans]
    assert True in mixed
    searched = [planned(topology, job_of(2, seed=seed), "equal_compute") for seed in range(8)]
    assert all(len({sites[name] for name in stage.devices}) == 1 for plan in searched for stage in plan.stages)
