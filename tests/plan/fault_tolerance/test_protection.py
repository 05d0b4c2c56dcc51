"""Who keeps copies of whose states, and how often, with numbers worked out by hand on a chain of equal layers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farflung.cluster import Topology
from farflung.job.spec import JobSpec
from farflung.plan import Plan, Replica, estimate
from farflung.plan.fault_tolerance.protection import Protection, protect
from tests.support.plans.hand_plans import chain, plan_of, topology

JOB = JobSpec(micro_batch_sizes=(4, 4, 4, 4))
GRAPH = chain()
STATE = 256 * 256 * 4  # bytes of a layer's parameters; plain SGD has no state of its own


def protected(plan: Plan, job: JobSpec = JOB, place: Topology | None = None) -> Protection:
    place = place or topology()
    return protect(plan, place, job, estimate(GRAPH, plan, place, job))


def test_each_device_is_kept_by_another_one() -> None:
    plan = plan_of(GRAPH, JOB)
    found = protected(plan)
    assert set(found.guards) == set(plan.devices)
    assert all(len(guards) == 1 and guards[0] != device for device, guards in found.guards.items())
    assert (found.tolerates(plan), found.nbytes) == (1, 3 * STATE)
    assert found.byte_share <= 0.08
    assert f"every {found.every} steps" in str(found)


def test_the_cadence_is_as_slow_as_the_links_are() -> None:
    plan = plan_of(GRAPH, JOB)
    slow, fast = protected(plan), protected(plan, place=topology(beta=1e9))
    assert slow.seconds > fast.seconds
    step = estimate(GRAPH, plan, topology(), JOB).step_seconds
    assert slow.seconds >= 0.8 * STATE / 1e6 * 2, "a copy takes half of a link's time at most"
    assert slow.seconds == pytest.approx(slow.every * step)
    rare = protected(plan, JOB.model_copy(update={"mtbf_hours": 1e6}), topology(beta=1e9))
    assert rare.every > fast.every, "who rarely dies is copied rarely"
    assert protected(plan, JOB.model_copy(update={"copy_every": 7})).every == 7


def test_stages_with_replicas_need_none() -> None:
    plan = plan_of(GRAPH, JOB, ("d0", "d1", "d1"))
    pair = (Replica(device="d0", first=0, end=2), Replica(device="d1", first=2, end=4))
    spread = replace(plan, stages=tuple(replace(stage, device="d0", replicas=pair) for stage in plan.stages))
    found = protected(spread)
    assert (found.guards, found.why_not, found.tolerates(spread)) == ({}, "each stage has a replica", 1)


def test_two_copies_tolerate_two_deaths_where_there_is_room() -> None:
    plan = plan_of(GRAPH, JOB)
    assert protected(plan, JOB.model_copy(update={"copies": 2})).tolerates(plan) == 2
    assert protected(plan, JOB.model_copy(update={"copies": 0})).tolerates(plan) == 0
    assert str(protected(plan, JOB.model_copy(update={"on_loss": "stop"}))) == "copies of the state: none (the job wants none)"


def test_without_memory_there_are_no_copies() -> None:
    plan, place = plan_of(GRAPH, JOB), topology()
    full = max(device.memory_bytes for device in estimate(GRAPH, plan, place, JOB).devices)
    tight = place.with_devices([replace(device, memory=type(device.memory)(full)) for device in place.devices])
    found = protected(plan, place=tight)
    assert found.guards == {}
    assert "no machine has memory for two copies of the" in found.why_not


def test_copies_count_as_coded_where_the_coder_is_faster_than_the_link() -> None:
    plan = plan_of(GRAPH, JOB)
    slow, fast = protected(plan, place=topology(beta=1e8)), protected(plan, place=topology(beta=1e9))
    assert (slow.nbytes, slow.link_bytes) == (3 * STATE, pytest.approx(0.8 * 3 * STATE))
    assert (fast.nbytes, fast.link_bytes) == (3 * STATE, 3 * STATE)
    assert slow.every * slow.budget >= slow.link_bytes, "the cadence keeps the budget"
    assert protected(plan, JOB.model_copy(update={"copy_every": 7})).budget == 0.0, "what the job says is not corrected"
