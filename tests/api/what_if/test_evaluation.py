"""The figures of one plan, and which plans fit a changed scenario."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from farflung.api import plan as make_plan
from farflung.api.planning import judge
from farflung.api.submission import bundle_job
from farflung.api.what_if.evaluation import adapted, evaluate
from farflung.api.what_if.scenario import Choices, MachineChange, Scenario
from farflung.api.what_if.sources import preset_job
from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import Plan

BASE = Topology.preset("local4-two-regions")
JOB = preset_job("gpt-small")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return bundle_job(JOB, base=Path()).graph


@pytest.fixture(scope="module")
def plan(graph: Graph) -> Plan:
    return make_plan(graph, BASE, planner="equal_number", job=JOB)


def test_figures_agree_with_the_planning_command_and_add_up(graph: Graph, plan: Plan) -> None:
    scenario = Scenario(
        job=JOB, topology=BASE, machines=(MachineChange(name="east-0", rent=2.0),), energy_price=0.5, traffic_price=0.1
    )
    found = evaluate(graph, plan, BASE, JOB, scenario.prices(BASE))
    assert found.step_seconds == judge(graph, BASE, JOB)(plan).step_seconds
    assert found.samples_per_second == pytest.approx(32 / found.step_seconds)
    assert found.tokens_per_second == pytest.approx(128 * found.samples_per_second)
    assert [machine.name for machine in found.machines] == list(plan.devices)
    assert all(machine.fits and 0 < machine.busy <= 1 for machine in found.machines)
    money, seconds = found.spending, found.step_seconds
    sent = sum(use.sent_bytes for use in found.simulation.links if use.source[:4] != use.target[:4])
    busy = sum(machine.busy * seconds for machine in found.machines)
    joules = busy * 65 + (4 * seconds - busy) * 20
    assert money.step.joules == pytest.approx(joules)
    assert money.step.rent == pytest.approx(2.0 * seconds / 3600)
    assert money.step.traffic == pytest.approx(0.1 * sent / 1e9)
    assert money.hour == pytest.approx(3600 / seconds * (2.0 * seconds / 3600 + 0.5 * joules / 3.6e6 + 0.1 * sent / 1e9))
    assert money.run == pytest.approx(JOB.steps * money.step.total)
    assert money.run_kwh == pytest.approx(JOB.steps * joules / 3.6e6)
    assert money.watts == pytest.approx(joules / seconds)


def test_a_plan_that_lacks_memory_is_evaluated_and_named(graph: Graph, plan: Plan) -> None:
    small = BASE.with_devices([replace(device, memory=type(device.memory)(1e6)) for device in BASE.devices])
    found = evaluate(graph, plan, small, JOB, Scenario(job=JOB, topology=small).prices(small))
    assert {machine.name for machine in found.lacking} == set(plan.devices)


def test_a_plan_is_adapted_where_it_can_be(graph: Graph, plan: Plan) -> None:
    same = adapted(graph, plan, BASE, JOB)
    assert same == plan
    smaller = adapted(graph, plan, BASE, Choices(codec="int8").job(JOB))
    assert smaller is not None
    assert {link.activations.name for link in smaller.links} == {"int8"}
    assert smaller.stages == plan.stages
    for name in ("auto", "adatopk"):
        weighed = adapted(graph, plan, BASE, Choices(codec=name).job(JOB))
        assert weighed is not None
        assert "identity" not in {link.activations.name for link in weighed.links}, name
    more = adapted(graph, plan, BASE, Choices(micro_batches=8).job(JOB))
    assert more is not None
    assert len(more.micro_batch_sizes) == 8
    assert adapted(graph, plan, BASE.select(["east-0", "east-1"]), JOB) is None
    assert adapted(graph, replace(plan, graph_hash="other"), BASE, JOB) is None
    twice = Choices(replicas=2).job(JOB)
    replicated = make_plan(graph, BASE, planner="equal_number", job=twice)
    assert adapted(graph, replicated, BASE, twice) is not None
    assert adapted(graph, replicated, BASE, Choices(replicas=2, micro_batches=8).job(JOB)) is None


def test_faster_links_never_lengthen_the_step(graph: Graph, plan: Plan) -> None:
    def step(bandwidth: float) -> float:
        scenario = Scenario(job=JOB, topology=BASE, bandwidth=bandwidth)
        topology = scenario.changed()
        return evaluate(graph, plan, topology, JOB, scenario.prices(topology)).step_seconds

    times = [step(2.0**power) for power in range(-4, 5)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 4 * times[-1]


def test_a_missing_machine_is_an_error(graph: Graph, plan: Plan) -> None:
    other = BASE.select(["east-0"])
    with pytest.raises(InputError, match="has no device"):
        evaluate(graph, plan, other, JobSpec(), Scenario(job=JOB, topology=other).prices(other))
