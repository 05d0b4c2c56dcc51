"""Estimates of stages with replicas, with numbers worked out by hand on a chain of equal layers."""

from dataclasses import replace

import pytest

from farflung.graph.cut import cut
from farflung.job.spec import GroupSpec, JobSpec, OptimizerSpec
from farflung.plan import Replica, check_plan, estimate, explain, make_links
from farflung.plan.traffic import gradient_bytes
from tests.support.plans.hand_plans import FORWARD, VALUE, plan_of, topology
from tests.support.plans.hand_replicas import GRAPH, JOB, alone


def test_two_replicas_halve_the_compute_and_exchange_their_gradients():
    one = estimate(GRAPH, alone(("d0", 0, 4)), topology(), JOB)
    two = estimate(GRAPH, alone(("d0", 0, 2), ("d1", 2, 4)), topology(), JOB)
    gradients = gradient_bytes(GRAPH, cut(GRAPH, [(0, len(GRAPH.ops))])[0])
    assert gradients == 3 * 256 * 256 * 4
    assert two.exchange_bytes == 3 * gradients  # a part for each of d1's two micro-batches, and the total
    busy = one.devices[0].busy_seconds - one.stages[0].update_seconds
    for device in two.devices:
        assert device.busy_seconds - two.stages[0].update_seconds == pytest.approx(busy / 2)
    wire = gradients / 1e6  # at 1 MB/s and 10 ms; less than a bucket: d0 serves all of it
    parts = max(busy / 2, busy / 4 + wire) + wire + 0.01
    assert two.step_seconds == pytest.approx(parts + wire + 0.01 + two.stages[0].update_seconds)
    assert two.replicas[0].memory["exchange"] == gradients * (1 + 2)


def test_one_virtual_replica_each_sends_one_part():
    job = JobSpec(micro_batch_sizes=JOB.micro_batch_sizes, virtual_replicas=2)
    found = estimate(GRAPH, alone(("d0", 0, 2), ("d1", 2, 4)), topology(), job)
    gradients = gradient_bytes(GRAPH, cut(GRAPH, [(0, len(GRAPH.ops))])[0])
    assert found.exchange_bytes == 2 * gradients
    assert [(e.source, e.target, e.after) for e in found.exchanges] == [(1, 0, (3,)), (0, 1, ())]


def test_a_frozen_parameter_is_not_exchanged():
    frozen = OptimizerSpec(groups=(GroupSpec(match="fc0", frozen=True),))
    job = JobSpec(micro_batch_sizes=JOB.micro_batch_sizes, virtual_replicas=2, optimizer=frozen)
    found = estimate(GRAPH, alone(("d0", 0, 2), ("d1", 2, 4)), topology(), job)
    assert found.exchange_bytes == 2 * 2 * 256 * 256 * 4


def test_uneven_shares_wait_for_the_larger():
    found = estimate(GRAPH, alone(("d0", 0, 3), ("d1", 3, 4)), topology(beta=1e12, alpha=0.0), JOB)
    busy = [device.busy_seconds for device in found.devices]
    assert busy[0] == pytest.approx(found.step_seconds, rel=1e-3)
    assert busy[1] < busy[0] / 2


def test_values_go_to_the_replica_that_computes_their_micro_batch():
    plan = plan_of(GRAPH, JOB, ("d0", "d1", "d1"))
    first, second, third = plan.stages
    spread = replace(first, replicas=(Replica(device="d0", first=0, end=1), Replica(device="d1", first=1, end=4)))
    plan = replace(plan, stages=(spread, second, third))
    found = estimate(GRAPH, plan, topology(alpha=0.0), JOB)
    moved = {device.device: device.busy_seconds for device in found.devices}
    # one micro-batch's value crosses, and its gradient comes back; beside them the gradients of fc0 are exchanged
    assert found.step_seconds > 2 * VALUE / 1e6
    assert moved["d0"] - found.stages[0].update_seconds == pytest.approx(3 * FORWARD / 1e9, rel=0.4)
    assert check_plan(plan, GRAPH, topology(), JOB)


def test_the_explanation_names_the_micro_batches():
    text = explain(estimate(GRAPH, alone(("d0", 0, 3), ("d1", 3, 4)), topology(), JOB))
    assert "0 (0 to 2)" in text
    assert "0 (3 to 3)" in text
    assert "stage 0 (2 to 3): the replica of stage 0 that computes micro-batches 2 to 3" in text
    assert "gradients exchanged between replicas" in text


def test_without_replicas_nothing_changes():
    plan = plan_of(GRAPH, JOB)
    found = estimate(GRAPH, plan, topology(), JOB)
    assert found.replicas == found.stages
    assert found.exchange_bytes == 0
    assert plan.links == make_links(GRAPH, plan.stages)
