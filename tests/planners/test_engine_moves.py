"""Engines that lack operators: their devices get only the stages that they can compute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import cut
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import Plan, check_plan
from farflung.plan.engine_support import check_engines, computes_all, unsupported
from farflung.planners import Constrained, get_planner

JOB = JobSpec(micro_batch_sizes=(16,) * 4)
LACKS = frozenset({"aten.gelu.default"})


def chain(*activations: str) -> Graph:
    """Linear layers, each followed by an activation."""
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (16, 64))
    for number, activation in enumerate(activations):
        value = builder.add(f"fc{number}", "Linear", value, in_features=64, out_features=64)
        value = builder.add(f"act{number}", activation, value)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (16, 64)))
    return builder.build()


def network(lacking: str, count: int = 2, **changes: object) -> Topology:
    """``count`` equal devices; those whose names are in ``lacking`` compute no GELU."""
    whole = Topology.preset(f"homogeneous-{count}")
    named = whole.rename(dict(zip(whole.names, "abcdefgh", strict=False)))
    given: dict[str, object] = {"engine": "jax 0.10.2", "lacks": LACKS, "precisions": ("float32",)} | changes
    return named.with_devices([replace(d, **given) if d.name in lacking else d for d in named.devices])  # type: ignore[arg-type]


def planned(graph: Graph, topology: Topology, planner: str = "equal_number") -> Plan:
    plan = Constrained(get_planner(planner)).plan(graph, topology, job=JOB)
    for stage, piece in zip(plan.stages, check_plan(plan, graph, topology, JOB), strict=True):
        assert not unsupported(topology.device(stage.device), piece)
    return plan


@pytest.mark.parametrize("planner", ["equal_number", "equal_compute", "op_fence", "auto"])
@pytest.mark.parametrize("lacking", ["a", "b"])
def test_a_stage_with_a_missing_operator_goes_to_the_other_device(planner: str, lacking: str) -> None:
    graph = chain("ReLU", "ReLU", "ReLU", "GELU")
    plan = planned(graph, network(lacking), planner)
    other = "b" if lacking == "a" else "a"
    assert plan.stages[-1].device == other
    if planner.startswith("equal"):
        assert set(plan.devices) == {"a", "b"}


def test_a_boundary_moves_where_both_halves_have_the_operator() -> None:
    graph = chain("ReLU", "ReLU", "GELU", "GELU", "ReLU", "ReLU")
    plan = planned(graph, network("b"))
    assert set(plan.devices) == {"a", "b"}


def test_nobody_has_the_operator() -> None:
    graph, topology = chain("GELU", "GELU"), network("ab")
    text = (
        r"^the planner equal_number found no plan within the limits: worker '[ab]' \(jax 0\.10\.2\) lacks aten\.gelu\.default of "
        r"module 'act[01]', which stage [01] needs; join a worker with another engine \(farflung join --engine torch\)$"
    )
    with pytest.raises(PlanError, match=text):
        Constrained(get_planner("equal_number"), advise=False).plan(graph, topology, job=JOB)


def test_a_given_plan_is_checked() -> None:
    graph, topology = chain("GELU"), network("a")
    plan = get_planner("equal_number").plan(graph, topology.select(["b"]), job=JOB)
    moved = replace(plan, stages=tuple(replace(stage, device="a") for stage in plan.stages))
    with pytest.raises(
        PlanError, match=r"^worker 'a' \(jax 0\.10\.2\) lacks aten\.gelu\.default of module 'act0', which stage 0"
    ):
        check_plan(moved, graph, topology, JOB)


def test_the_precision_counts() -> None:
    graph, topology = chain("ReLU", "ReLU"), network("a", lacks=frozenset())
    job = JOB.model_copy(update={"precision": "bf16"})
    assert Constrained(get_planner("equal_number")).plan(graph, topology, job=job).devices == ("b",)
    assert not computes_all(topology.device("a"), graph, job)
    plan = get_planner("equal_number").plan(graph, topology, job=JOB)
    with pytest.raises(PlanError, match=r"worker 'a' \(jax 0\.10\.2\) lacks the precision 'bf16', it has float32; join a worker"):
        check_engines(plan, cut(graph, plan.bounds), topology, job)
