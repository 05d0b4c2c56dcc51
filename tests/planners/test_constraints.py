"""Limits of a job around any planner: each is kept to, or the error says which one is broken and what would do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.cluster import Device, Topology
from farflung.errors import InputError, PlanError
from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import cut
from farflung.graph.ir import Graph, OpKind
from farflung.job.spec import JobSpec, LimitSpec, PlanSpec, TrafficSpec
from farflung.plan import Plan, check_plan, estimate
from farflung.planners import Constrained, get_planner
from farflung.planners.auto import Auto, AutoSettings
from farflung.planners.base import Planner
from farflung.planners.constraints import broken_limits, check_limits, moved_bytes, traffic_price
from farflung.units import Bytes, FlopsPerSecond

NAMES = ("equal_number", "equal_compute", "random", "op_fence", "auto")


def chain(layers: int = 8) -> Graph:
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (16, 64))
    for i in range(layers):
        value = builder.add(f"fc{i}", "Linear", value, in_features=64, out_features=64)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (16, 64)))
    return builder.build()


GRAPH = chain()


def network(count: int = 4, memory: float = 1e9, unreliable: tuple[int, ...] = (), speed: float = 2e7) -> Topology:
    devices = [
        Device(name=f"d{i}", memory=Bytes(memory), speed=FlopsPerSecond(speed), region=f"r{i // 2}", reliable=i not in unreliable)
        for i in range(count)
    ]
    regions = count // 2 + count % 2
    return Topology.from_groups(
        devices, [i // 2 for i in range(count)], [[1e-3] * regions] * regions, [[1e7] * regions] * regions
    )


def job(**limits: object) -> JobSpec:
    return JobSpec(micro_batch_sizes=(16,) * 4, steps=100, limits=LimitSpec(**limits))


def with_engines(*engines: str) -> Topology:
    made = network(len(engines))
    devices = [replace(device, engine=engine) for device, engine in zip(made.devices, engines, strict=True)]
    return replace(made, devices=tuple(devices))


@pytest.mark.parametrize("name", NAMES)
def test_engines_outside_of_the_ranges_get_no_work(name: str) -> None:
    topology = with_engines("torch 2.13.0", "torch 2.15.0", "jax 0.10.2", "torch 2.13.1+cpu")
    assert set(planned(name, topology, job(engines=("torch>=2.13,<2.14",))).devices) <= {"d0", "d3"}
    assert set(planned(name, topology, job(engines=("jax", "torch>2.14"))).devices) <= {"d1", "d2"}


def test_no_engine_within_the_ranges_is_an_error() -> None:
    topology = with_engines("torch 2.13.0", "jax 0.10.2")
    with pytest.raises(PlanError) as caught:
        planned("op_fence", topology, job(engines=("torch>=2.14",)))
    assert str(caught.value) == (
        "no device has an engine of limits.engines (torch>=2.14), there are jax 0.10.2, torch 2.13.0; "
        "allow one of them, or join a worker that has it"
    )


def planner(name: str) -> Planner:
    return Auto(AutoSettings(evaluations=8)) if name == "auto" else get_planner(name)


def planned(name: str, topology: Topology, spec: JobSpec, advise: bool = True) -> Plan:
    plan = Constrained(planner(name), advise=advise).plan(GRAPH, topology, job=spec)
    check_plan(plan, GRAPH, topology)
    found = estimate(GRAPH, plan, topology, spec)
    assert found.feasible
    assert broken_limits(plan, GRAPH, topology, spec.limits, found) == []
    return plan


@pytest.mark.parametrize("name", NAMES)
def test_excluded_devices_and_regions_get_nothing(name: str) -> None:
    plan = planned(name, network(), job(exclude=("r0", "d3")))
    assert plan.devices == ("d2",)


@pytest.mark.parametrize("name", NAMES)
def test_stages_are_bounded(name: str) -> None:
    assert len(planned(name, network(), job(stages=2)).stages) <= 2


@pytest.mark.parametrize("name", NAMES)
def test_unreliable_devices_are_avoided(name: str) -> None:
    plan = planned(name, network(unreliable=(0, 2)), job(unreliable="avoid"))
    assert set(plan.devices) <= {"d1", "d3"}


@pytest.mark.parametrize("name", NAMES)
def test_data_stay_with_their_owner(name: str) -> None:
    topology = network()
    for data, owners in ((("d2",), {"d2"}), (("r0",), {"d0", "d1"})):
        plan = planned(name, topology, job(data=data))
        for stage, piece in zip(plan.stages, cut(GRAPH, plan.bounds), strict=True):
            if any(GRAPH.ops[position].kind is OpKind.PLACEHOLDER for position in piece.positions):
                assert stage.device in owners


@pytest.mark.parametrize("name", ["equal_number", "op_fence", "auto"])
def test_traffic_may_cost_no_more(name: str) -> None:
    topology, prices = network(), (TrafficSpec(gigabyte=10.0), TrafficSpec(source="r0", target="r1", gigabyte=1e6))
    free = planned(name, topology, job(prices=prices))
    found = estimate(GRAPH, free, topology, job())
    price = traffic_price(free, found, topology, prices)
    limit = price / 2 if price > 0 else 1e-9
    plan = planned(name, topology, job(prices=prices, traffic=limit))
    assert traffic_price(plan, estimate(GRAPH, plan, topology, job()), topology, prices) <= limit


def test_prices_of_traffic_by_hand() -> None:
    topology = network()
    plan = planned("equal_number", topology, job())
    found = estimate(GRAPH, plan, topology, job())
    assert plan.devices == ("d0", "d1", "d2", "d3")
    link = found.links[1]  # from d1 in r0 to d2 in r1
    there = 4 * link.forward_bytes / 1e9
    assert traffic_price(plan, found, topology, (TrafficSpec(source="r0", target="r1", gigabyte=2.0),)) == pytest.approx(
        2 * there
    )
    both = traffic_price(plan, found, topology, (TrafficSpec(gigabyte=1.0),))
    assert both == pytest.approx(there + 4 * link.backward_bytes / 1e9)
    inside = (TrafficSpec(source="r0", target="r0", gigabyte=1.0),)
    assert traffic_price(plan, found, topology, inside) > 0


def test_replicas_on_unreliable_devices_need_a_reliable_copy() -> None:
    topology = network(unreliable=(1, 3))
    spec = job(unreliable="backed").model_copy(update={"plan": PlanSpec(replicas=2)})
    plan = planned("equal_number", topology, spec)
    assert any(len(stage.devices) == 2 for stage in plan.stages)
    single = planned("equal_number", topology, job(unreliable="backed"))
    assert set(single.devices) <= {"d0", "d2"}
    with pytest.raises(PlanError, match=r'no copy on a reliable device, and limits\.unreliable = "backed"'):
        planned("equal_number", network(unreliable=(0, 1, 2, 3)), job(unreliable="backed"))


def test_replicas_are_bounded() -> None:
    spec = job(replicas=1).model_copy(update={"plan": PlanSpec(replicas=2)})
    with pytest.raises(PlanError, match=r"and limits\.replicas = 1; there is a plan with limits\.replicas = 2"):
        planned("equal_number", network(), spec)


@settings(deadline=None, max_examples=6)
@given(
    stages=st.none() | st.integers(1, 4),
    exclude=st.sets(st.sampled_from(["d0", "d1", "d3", "r1"]), max_size=2),
    data=st.none() | st.sampled_from(["d2", "d0", "r0"]),
    name=st.sampled_from(["equal_number", "op_fence", "random"]),
)
def test_several_limits_together_are_kept_or_refused(stages: int | None, exclude: set[str], data: str | None, name: str) -> None:
    spec = job(stages=stages, exclude=tuple(sorted(exclude)), data=(data,) if data else ())
    try:
        planned(name, network(), spec, advise=False)
    except PlanError as error:
        assert "limits" in str(error)  # noqa: PT017 - the text is what is checked


def test_what_lacks_is_named_with_the_smallest_relaxation() -> None:
    whole = planned("equal_number", network(1), job())
    need = estimate(GRAPH, whole, network(1), job()).devices[0].memory_bytes
    tight = network(2, memory=need / 1.4)
    assert len(planned("equal_number", tight, job()).stages) == 2
    with pytest.raises(PlanError) as excluded:
        planned("equal_number", tight, job(exclude=("d1",)))
    assert "device 'd0' needs" in str(excluded.value)
    assert "there is a plan with 'd1' not excluded, or with 1.4" in str(excluded.value)
    assert "x the memory of each device" in str(excluded.value)
    with pytest.raises(PlanError, match=r"there is a plan with limits\.stages = 2, or with 1\.4"):
        planned("equal_number", tight, job(stages=1))
    with pytest.raises(PlanError, match=r'there is a plan with limits\.unreliable = "any", or with 1\.4'):
        planned("equal_number", network(2, need / 1.4, unreliable=(1,)), job(unreliable="avoid"))
    with pytest.raises(PlanError, match=r"it lacks .*; there is a plan with 2\.8\d* x the memory of each device"):
        planned("equal_number", network(1, memory=need / 2.8), job())


def test_data_that_cannot_stay_name_what_would_do() -> None:
    topology = network()
    with pytest.raises(PlanError, match="every device is excluded") as nothing:
        planned("equal_number", topology, job(exclude=("r0", "r1")))
    assert "'r0' not excluded" in str(nothing.value)
    with pytest.raises(PlanError, match=r"read data outside of limits\.data = d3.*there is a plan with 'd3' not excluded"):
        planned("equal_number", topology, job(exclude=("d3",), data=("d3",)))


def test_a_running_plan_stays_unless_the_new_one_is_worth_what_moves() -> None:
    topology = network()
    best = planned("equal_compute", topology, job())
    running = replace(best, stages=tuple(replace(s, device=f"d{(i + 1) % 4}") for i, s in enumerate(best.stages)))
    kept = Constrained(get_planner("equal_compute"), running=running).plan(GRAPH, topology, job=job())
    assert kept == running
    gone = topology.select(["d0", "d1", "d2"])
    fresh = Constrained(get_planner("equal_compute"), running=running).plan(GRAPH, gone, job=job())
    assert set(fresh.devices) <= {"d0", "d1", "d2"}
    moved = moved_bytes(GRAPH, running, best)
    assert set(moved) == {"d0", "d1", "d2", "d3"}
    assert all(nbytes > 0 for nbytes in moved.values())
    assert sum(moved_bytes(GRAPH, best, best).values()) == 0
    slow = replace(best, stages=(replace(best.stages[0], start=0, stop=len(GRAPH.ops)),), links=())
    assert Constrained(get_planner("equal_compute"), running=slow).plan(GRAPH, topology, job=job()).stages == best.stages


@pytest.mark.parametrize("spare", [False, True])
def test_of_a_plan_that_lost_a_device_the_rest_stays(spare: bool) -> None:
    topology = network()
    rest = [name for name in topology.names if name != "d1"]
    members = topology.names if spare else topology.names[:3]
    running = planned("equal_compute", topology.select(members[:3]), job())
    assert running.devices == ("d0", "d1", "d2")
    left = topology.select([name for name in members if name in rest])
    few = job().model_copy(update={"steps": 1})
    found = Constrained(get_planner("equal_number"), running=running).plan(GRAPH, left, job=few)
    fresh = get_planner("equal_number").plan(GRAPH, left, job=few)
    moved, otherwise = (sum(moved_bytes(GRAPH, running, one).values()) for one in (found, fresh))
    assert 0 < moved <= otherwise - spare  # to the spare one goes only what was lost
    kept = {stage.device for stage in running.stages} & {stage.device for stage in found.stages}
    assert kept == {"d0", "d2"}
    assert "d1" not in found.devices


def test_names_are_checked_where_all_are_known() -> None:
    topology = network()
    with pytest.raises(InputError, match=r"limits\.exclude: topology 'groups' has no device and no region 'd9'; known"):
        check_limits(topology, LimitSpec(exclude=("d9",)))
    with pytest.raises(InputError, match=r"limits\.data: .* no region 'home'"):
        check_limits(topology, LimitSpec(data=("home",)))
    with pytest.raises(InputError, match=r"limits\.prices: topology 'groups' has no region 'mars'; known are r0, r1, \*"):
        check_limits(topology, LimitSpec(prices=(TrafficSpec(source="mars", gigabyte=1.0),)))
    assert planned("equal_number", topology, job(exclude=("d9", "d0"))).devices == ("d1", "d2", "d3")


def test_without_limits_the_planner_is_left_alone() -> None:
    topology = network()
    for name in ("equal_number", "op_fence"):
        assert Constrained(get_planner(name)).plan(GRAPH, topology, job=job()) == get_planner(name).plan(
            GRAPH, topology, job=job()
        )
