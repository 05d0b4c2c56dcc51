"""Fault tolerance as a number: what survives, the cadence of checkpoints, and the formulas at their limits."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.cluster import Device, Topology
from farflung.errors import InputError
from farflung.graph.builder import GraphBuilder
from farflung.graph.ir import Graph
from farflung.job.spec import CheckpointSpec, JobSpec, LimitSpec, PlanSpec
from farflung.plan import Plan, estimate
from farflung.plan.fault_tolerance.faults import (
    NOTICE_SECONDS,
    FaultModel,
    best_interval,
    checkpoint_steps,
    expected_seconds,
    failure_rates,
    fault_model,
    survival,
)
from farflung.plan.model import SyncPlan
from farflung.planners import get_planner
from farflung.protocol.leases import LEASE
from farflung.units import Bytes, FlopsPerSecond, Seconds

DOCS = Path(__file__).parents[3] / "docs"


def chain() -> Graph:
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (4, 32))
    for i in range(4):
        value = builder.add(f"fc{i}", "Linear", value, in_features=32, out_features=32)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (4, 32)))
    return builder.build()


GRAPH = chain()


def network(count: int, memory: float = 1e9, mtbf: float | None = None) -> Topology:
    devices = [
        Device(
            name=f"d{i}",
            memory=Bytes(memory),
            speed=FlopsPerSecond(1e8),
            mtbf=Seconds(mtbf) if mtbf is not None and i == 0 else None,
        )
        for i in range(count)
    ]
    return Topology.from_groups(devices, [0] * count, [[1e-3]], [[1e7]])


def planned(topology: Topology, job: JobSpec) -> Plan:
    return get_planner("equal_number").plan(GRAPH, topology, job=job)


def test_replicas_keep_the_newest_weights_and_memory_lets_the_others_go_on() -> None:
    job = JobSpec(micro_batch_sizes=(4,) * 6, plan=PlanSpec(replicas=3))
    topology = network(6)
    plan = planned(topology, job)
    found = survival(plan, topology, job, estimate(GRAPH, plan, topology, job))
    assert (found.copies, found.in_memory, found.goes_on, found.checkpointed) == (3, 2, 5, True)
    assert "any 2 deaths at once leave a copy of the newest state of each stage" in found.text
    assert "after any 5 deaths at once, the remaining machines have enough memory to continue" in found.text
    mixed = replace(plan, stages=(plan.stages[0], replace(plan.stages[1], replicas=())))
    weak = survival(mixed, topology, job, estimate(GRAPH, mixed, topology, job))
    assert (weak.copies, weak.weakest, weak.in_memory) == (1, (1,), 0)
    assert "stage 1 has one copy" in weak.text
    assert (weak.guarded, weak.round_seconds > 0) == (1, True), "the only holder's states are copied to another machine"
    assert "any death leaves copies that are at most" in weak.text
    none = job.model_copy(update={"copies": 0})
    assert survival(mixed, topology, none, estimate(GRAPH, mixed, topology, none)).guarded == 0


def test_only_devices_that_the_limits_allow_can_take_over() -> None:
    job = JobSpec(micro_batch_sizes=(4, 4))
    plan = planned(network(1), job)
    reliable = network(2)
    shaky = reliable.with_devices([reliable.devices[0], replace(reliable.devices[1], reliable=False)])
    found = estimate(GRAPH, plan, reliable, job)
    assert survival(plan, shaky, job, found).goes_on == 1
    for limits in (LimitSpec(exclude=("d1",)), LimitSpec(unreliable="avoid")):
        alone = survival(plan, shaky, job.model_copy(update={"limits": limits}), found)
        assert alone.goes_on == 0, limits
        assert "after the death of the largest machine, the run waits for another machine" in alone.text


def test_silence_is_that_of_the_leases() -> None:
    assert NOTICE_SECONDS == LEASE
    assert f"{NOTICE_SECONDS:g} s of silence" in (DOCS / "simulator.md").read_text()
    assert f"after {NOTICE_SECONDS:g} s of silence" in (DOCS / "lost-when.md").read_text()


def test_what_the_job_and_the_memory_do_to_survival() -> None:
    job = JobSpec(micro_batch_sizes=(4, 4))
    topology = network(3)
    plan = planned(topology, job)
    found = estimate(GRAPH, plan, topology, job)
    need = sum(stage.memory_bytes for stage in found.stages)
    tight = network(3, memory=need / 2.5)
    assert survival(plan, tight, job, found).goes_on == 0
    assert "waits for another" in survival(plan, tight, job, found).text
    assert survival(plan, network(3, memory=need / 1.5), job, found).goes_on == 1
    assert survival(plan, topology, job.model_copy(update={"workers": 2}), found).goes_on == 1
    stop = survival(plan, topology, job.model_copy(update={"on_loss": "stop"}), found)
    assert stop.goes_on == 0
    assert 'the run ends on the first death (on_loss = "stop")' in stop.text
    bare = job.model_copy(update={"checkpoint": CheckpointSpec(recover_every=0)})
    assert "without checkpoints, the run starts again" in survival(plan, topology, bare, found).text


@pytest.mark.parametrize(
    ("spec", "checkpoint", "steps"),
    [
        ({"every": 7, "recover_every": 0}, 0.1, 7),
        ({"recover_every": 60}, 0.1, 30),
        ({"recover_every": 60}, 10.0, 165),  # 33 times 10 s
        ({"every": 20, "recover_every": 60}, 0.1, 20),
        ({"recover_every": 0}, 0.1, 500),  # none: the whole job
    ],
)
def test_checkpoints_come_as_the_runtime_writes_them(spec: dict[str, float], checkpoint: float, steps: int) -> None:
    job = JobSpec(steps=500, checkpoint=CheckpointSpec(**spec))
    assert checkpoint_steps(job, 2.0, checkpoint) == steps


def test_rates_come_from_the_topology_and_then_from_the_option() -> None:
    topology = network(2, mtbf=3600.0)
    plan = planned(topology, JobSpec(micro_batch_sizes=(4, 4)))
    assert failure_rates(plan, topology) == {"d0": 1 / 3600}
    assert failure_rates(plan, topology, 60.0) == {"d0": 1 / 3600, "d1": 1 / 60}
    found = fault_model(plan, topology, JobSpec(micro_batch_sizes=(4, 4)), estimate(GRAPH, plan, topology))
    assert found.rate == pytest.approx(1 / 3600)
    assert "of the throughput without deaths" in found.text
    assert "a death every 1 h 0 min on average" in found.text
    assert "no machine of this plan has a failure rate" in replace(found, rates={}).text


@given(work=st.floats(1.0, 1e4), rate=st.floats(1e-9, 1e-3), recovery=st.floats(0.0, 100.0))
def test_expected_seconds_are_more_than_the_work_and_tend_to_it(work: float, rate: float, recovery: float) -> None:
    found = expected_seconds(work, rate, recovery)
    assert found >= work * (1 - 1e-12)
    assert expected_seconds(work, 0.0, recovery) == work
    assert found <= expected_seconds(work, 2 * rate, recovery)
    assert found <= expected_seconds(work, rate, recovery + 1)
    # first order: every death costs half of the work and a pause
    assert expected_seconds(work, 1e-9 / work, recovery) == pytest.approx(work, rel=1e-6)


def test_expected_seconds_to_second_order() -> None:
    work, rate, recovery = 100.0, 1e-5, 10.0
    assert expected_seconds(work, rate, recovery) == pytest.approx(work * (1 + rate * (work / 2 + recovery)), rel=1e-5)
    assert expected_seconds(1e6, 1.0, 0.0) == math.inf


def test_copies_spare_the_steps_since_the_checkpoint() -> None:
    job = JobSpec(steps=10_000, micro_batch_sizes=(4,) * 4, plan=PlanSpec(replicas=2))
    topology = network(4)
    plan = planned(topology, job)
    found = fault_model(plan, topology, job, estimate(GRAPH, plan, topology, job), mtbf=600.0)
    assert found.spared == set(plan.devices)
    assert found.share > 1.01 * replace(found, spared=frozenset()).share
    assert "needed after several deaths at once only" in found.text
    mixed = replace(plan, stages=(plan.stages[0], replace(plan.stages[1], replicas=())))
    assert fault_model(mixed, topology, job, estimate(GRAPH, mixed, topology, job)).spared == set(plan.stages[0].devices)
    apart = replace(plan, sync=SyncPlan(strategy="diloco"))
    assert fault_model(apart, topology, job, estimate(GRAPH, plan, topology, job)).spared == set()
    differ = survival(apart, topology, job, estimate(GRAPH, plan, topology, job))
    assert (differ.copies, differ.in_memory) == (2, 0)
    assert "copies differ under the sync strategy" in differ.text


def test_the_best_interval_costs_least() -> None:
    checkpoint, rate = 5.0, 1 / 3600

    def cost(interval: float) -> float:
        return expected_seconds(interval + checkpoint, rate, 30.0) / interval

    best = best_interval(checkpoint, rate)
    assert best == pytest.approx(math.sqrt(2 * 5 * 3600) - 5)
    assert min((cost(best * factor), factor) for factor in (0.5, 0.8, 1.0, 1.25, 2.0))[1] == 1.0
    assert best_interval(0.0, rate) == 0.0
    assert best_interval(5.0, 0.0) == math.inf


def test_impossible_numbers_are_refused() -> None:
    good = {"rates": {"d0": 0.1}, "step_seconds": 1.0, "samples": 1, "interval": 1, "checkpoint": 0.0, "recovery": 0.0}
    with pytest.raises(InputError, match="finite numbers from 0 on, got d0 = -1"):
        FaultModel(**good | {"rates": {"d0": -1.0}})
    with pytest.raises(InputError, match="got recovery = inf"):
        FaultModel(**good | {"recovery": math.inf})
    with pytest.raises(InputError, match="at least 1 step between checkpoints, got 0"):
        FaultModel(**good | {"interval": 0})


def test_mtbf_is_kept_by_files_and_documents_and_must_be_positive() -> None:
    topology = network(2, mtbf=7200.0)
    assert Topology.from_text(topology.to_toml()).devices == topology.devices
    assert Topology.from_json(topology.to_json()).devices == topology.devices
    text = 'name="x"\n[[device]]\nname="a"\nmemory="1 GB"\nspeed="1 GFLOP/s"\nmtbf="2 d"\n'
    assert Topology.from_text(text).devices[0].mtbf == 2 * 86400
    with pytest.raises(InputError, match="mtbf must be more than 0, got 0"):
        Topology.from_text(text.replace("2 d", "0 s"))
