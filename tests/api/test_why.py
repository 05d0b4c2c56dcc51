"""Why a plan takes as long as it does: what binds is found, the others are compared, changes are planned anew."""

from __future__ import annotations

from farflung.api.planning import judge
from farflung.api.why import Case, reasons
from farflung.clock import VirtualClock
from farflung.cluster import Device, Topology
from farflung.graph.builder import GraphBuilder
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec, PlanSpec
from farflung.plan import Plan
from farflung.planners import get_planner
from farflung.units import Bytes, FlopsPerSecond

JOB = JobSpec(micro_batch_sizes=(16,) * 8)


def chain(layers: int = 8) -> Graph:
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (64, 64))
    for i in range(layers):
        value = builder.add(f"fc{i}", "Linear", value, in_features=64, out_features=64)
        value = builder.add(f"act{i}", "GELU", value)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (64, 64)))
    return builder.build()


GRAPH = chain()


def network(speeds: list[float], rate: float, memory: float = 1e9) -> Topology:
    devices = [
        Device(name=f"d{i}", memory=Bytes(memory), speed=FlopsPerSecond(speed), region=f"r{i}") for i, speed in enumerate(speeds)
    ]
    size = len(speeds)
    return Topology.from_matrices([[1e-4] * size] * size, [[rate] * size] * size, devices)


def case(topology: Topology, planner: str = "equal_number", job: JobSpec = JOB) -> Case:
    def replan(other: Topology) -> Plan:
        return get_planner(planner).plan(GRAPH, other, job=job)

    plan = replan(topology)
    found = judge(GRAPH, topology, job)(plan)
    return Case(graph=GRAPH, topology=topology, job=job, plan=plan, estimate=found, replan=replan)


def test_a_slow_link_is_what_binds() -> None:
    found = reasons(case(network([1e9, 1e9], 1e5)))
    assert found.held[0].what == "twice the rate between d0 and d1"
    assert 1.7 < found.held[0].factor <= 2.01
    assert found.text.startswith("what binds: twice the rate between d0 and d1 would shorten the step of this plan to ")
    assert found.changes[1].what == "double d0 d1"
    assert found.changes[1].factor >= found.held[0].factor - 1e-9
    assert "memory does not bind" in found.memory


def test_a_slow_device_is_what_binds_and_another_like_it_helps() -> None:
    found = reasons(case(network([1e8, 1e7], 1e9), planner="equal_compute"))
    assert found.held[0].what == "computing twice as fast on d1 (stage 1)"
    assert found.changes[0].what == "add 1 like d1"
    assert found.changes[0].factor > 1.1
    assert found.changes[0].devices == 3
    assert "a better plan: " in found.text  # equal shares are wrong for unequal devices


def test_the_next_best_plan_is_named_and_equal_plans_are_told() -> None:
    found = reasons(case(network([1e8], 1e9), planner="equal_compute"))
    assert {one.name for one in found.alternatives if one.note == "the same plan"} >= {"equal_number", "op_fence"}
    assert "next best: " in found.text
    assert "(as long)" in found.text
    assert found.to_dict()["seconds"] == found.seconds


def test_planners_that_there_is_no_time_for_are_named() -> None:
    class Late(VirtualClock):
        def now(self):  # type: ignore[no-untyped-def]
            self.advance(100.0)
            return super().now()

    found = reasons(case(network([1e8, 1e8], 1e9)), clock=Late())
    assert found.alternatives == ()
    assert found.changes == ()
    assert "op_fence" in found.skipped


def test_without_changes_no_planner_is_asked() -> None:
    asked = case(network([1e8, 1e8], 1e9))

    def refuse(_: Topology) -> Plan:
        raise AssertionError

    found = reasons(Case(**{key: getattr(asked, key) for key in asked.__dataclass_fields__} | {"replan": refuse}), changes=False)
    assert found.held
    assert not found.alternatives
    assert not found.changes


def test_memory_that_binds_is_told() -> None:
    whole = case(network([1e8, 1e8], 1e9))
    spared = case(network([1e8, 1e8], 1e9), job=JOB.model_copy(update={"plan": PlanSpec(recompute="always")}))
    assert "all stages recompute, as the job asks" in reasons(spared, changes=False).memory
    needs = [one.estimate.devices[0].memory_bytes for one in (spared, whole)]
    assert needs[0] < needs[1]
    found = reasons(case(network([1e8, 1e8], 1e9, sum(needs) / 2)), changes=False)
    assert "it binds: stages 0 recompute, which costs up to " in found.memory
