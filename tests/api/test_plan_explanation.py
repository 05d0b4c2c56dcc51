"""Why a plan takes as long as it does: what binds is found, the others are compared, changes are planned anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.api.plan_explanation import Alternative, Case, Reasons, reasons
from farflung.api.planning import judge
from farflung.api.topology_changes import changed_topology
from farflung.clock import VirtualClock
from farflung.cluster import Device, Topology
from farflung.frontends.recipes import load_recipe
from farflung.graph.builder import GraphBuilder
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec, PlanSpec
from farflung.plan import Plan
from farflung.planners import get_planner
from farflung.planners.chain_dp import Chain
from farflung.planners.finish import Problem, finish
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond

JOB = JobSpec(micro_batch_sizes=(16,) * 8)
FIXED = JOB.model_copy(update={"plan": PlanSpec(schedule="1f1b")})


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
    assert found.text.startswith("bottleneck: twice the rate between d0 and d1 would shorten the step of this plan to ")
    assert found.changes[1].what == "double d0 d1"
    assert found.changes[1].factor >= found.held[0].factor - 1e-9
    assert "memory does not limit the plan" in found.memory


def test_a_line_that_all_links_share_is_what_binds() -> None:
    first, *others = network([1e9, 1e9, 1e9], 1e5).devices
    shared = network([1e9, 1e9, 1e9], 1e5).with_devices([replace(first, uplink=BytesPerSecond(1e5)), *others])
    found = reasons(case(shared), changes=False)
    assert "twice the up- and down-link of d0" in [gain.what for gain in found.held if gain.factor > 1.02]


def test_a_slow_device_is_what_binds_and_another_like_it_helps() -> None:
    found = reasons(case(network([1e8, 1e7], 1e9), planner="equal_compute"))
    assert found.held[0].what == "computing twice as fast on d1 (stage 1)"
    assert found.changes[0].what == "add 1 like d1"
    assert found.changes[0].factor > 1.1
    assert found.changes[0].devices == 3
    assert "better planner: " in found.text  # equal shares are wrong for unequal devices


def test_the_next_best_plan_is_named_and_equal_plans_are_told() -> None:
    found = reasons(case(network([1e8], 1e9), planner="equal_compute"))
    assert {one.name for one in found.alternatives if one.note == "the same plan"} >= {"equal_number", "op_fence"}
    assert "next best planner: " in found.text
    assert "(as long)" in found.text
    assert found.to_dict()["seconds"] == found.seconds


def test_it_says_when_all_others_make_the_same_plan() -> None:
    same = [Alternative(name=name, seconds=2.0, note="the same plan") for name in ("auto", "dtfm")]
    none = Alternative(name="hybrid_ps", seconds=float("inf"), note="finds no plan")

    def told(*others: Alternative) -> list[str]:
        found = Reasons(seconds=2.0, held=(), memory="", waiting="", alternatives=others)
        return [line for line in found.text.splitlines() if "next" in line]

    assert told(*same) == ["next best planner: none; all other planners make the same plan"]
    assert told(*same, none) == [
        "next best planner: none; all other planners that find a plan make the same plan",
        "  next: hybrid_ps finds no plan",
    ]
    assert told(none) == ["next best planner: none; no other planner finds a plan that fits"]


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
    assert "all stages recompute activations, as the job sets" in reasons(spared, changes=False).memory
    needs = [one.estimate.devices[0].memory_bytes for one in (spared, whole)]
    assert needs[0] < needs[1]
    found = reasons(case(network([1e8, 1e8], 1e9, sum(needs) / 2)), changes=False)
    assert "memory limits the plan: stages 0 recompute activations, which costs up to " in found.memory


def exactly(topology: Topology) -> Plan:
    """The optimum for the devices in their order, by the exact dynamic program."""
    problem = Problem.of(GRAPH, topology, FIXED)
    found = Chain(problem).optimum(range(len(topology)))
    assert found is not None
    return finish(problem, found.placed, "exact").plan


@settings(deadline=None, max_examples=12)
@given(
    speeds=st.lists(st.floats(1e7, 1e9), min_size=2, max_size=3),
    rates=st.lists(st.floats(1e5, 1e8), min_size=3, max_size=3),
)
def test_what_one_faster_link_brings_to_a_plan_of_an_exact_solver_is_right(speeds: list[float], rates: list[float]) -> None:
    topology = network(speeds, 1e9)
    beta = np.array(topology.beta)
    for (a, b), rate in zip(((0, 1), (1, 2), (0, 2)), rates, strict=True):
        if b < len(speeds):
            beta[a, b] = beta[b, a] = rate
    topology = replace(topology, beta=beta)
    plan = exactly(topology)
    evaluate = judge(GRAPH, topology, FIXED)
    asked = Case(graph=GRAPH, topology=topology, job=FIXED, plan=plan, estimate=evaluate(plan), replan=exactly)
    found = reasons(asked)
    assert found.seconds == evaluate(plan).step_seconds
    # the same plan, with each pair of devices that exchange anything (verdicts too) by hand; what is named first brings most
    told = {gain.what: gain.seconds for gain in found.held if gain.what.startswith("twice the rate")}
    pairs = {f"twice the rate between {a} and {b}": (a, b) for a in topology.names for b in topology.names if a < b}
    by_hand = {}
    for what, (a, b) in pairs.items():
        faster = changed_topology(topology, f"double {a} {b}")
        by_hand[what] = judge(GRAPH, faster, FIXED)(plan).step_seconds
    assert told == {what: by_hand[what] for what in told}
    assert all(seconds == found.seconds for what, seconds in by_hand.items() if what not in told)
    assert [gain.seconds for gain in found.held] == sorted(gain.seconds for gain in found.held)
    assert all(seconds <= found.seconds * (1 + 1e-9) for seconds in told.values())
    # planned anew: the solver's plan for that network, or the one at hand where that is quicker there
    change = found.changes[1]
    assert change.what.startswith("double ")
    faster = changed_topology(topology, change.what)
    again = judge(GRAPH, faster, FIXED)
    assert change.seconds == min(again(plan).step_seconds, again(exactly(faster)).step_seconds)
    assert change.factor == pytest.approx(found.seconds / change.seconds)
    assert change.seconds <= found.seconds * (1 + 1e-9)
    # by its own measure the solver loses nothing by a faster link
    chains = [Chain(Problem.of(GRAPH, where, FIXED)).optimum(range(len(where))) for where in (topology, faster)]
    assert chains[0] is not None
    assert chains[1] is not None
    assert chains[1].seconds <= chains[0].seconds * (1 + 1e-9)


def test_an_explained_transformer_has_the_steps_of_other_systems() -> None:
    topology = Topology.preset("local4-two-regions")
    graph = load_recipe("gpt", {"vocab": 61, "sequence": 16, "layers": 3, "width": 32, "heads": 2}).graph("train", 4)
    job = JobSpec(micro_batch_sizes=(4, 4))
    plan = get_planner("equal_number").plan(graph, topology, job=job)
    explained = Case(
        graph=graph,
        topology=topology,
        job=job,
        plan=plan,
        estimate=judge(graph, topology, job)(plan),
        replan=lambda other: get_planner("equal_number").plan(graph, other, job=job),
    )
    found = reasons(explained, clock=VirtualClock(), changes=False)
    assert found.systems == ()
    found = reasons(explained)
    assert len(found.systems) == 3
    assert "other systems on all devices, by cost models that favor them: " in found.text
    assert f"{found.systems[0].name} " in found.text
    assert found.to_dict()["systems"][0]["seconds"] == found.systems[0].seconds
