"""``schedule = "interleaved-N"`` around any planner: several stages on each device, of the same work as before."""

from __future__ import annotations

import numpy as np
import pytest

from farflung.cluster import Topology
from farflung.errors import InputError, PlanError
from farflung.job.check import check_job
from farflung.job.spec import JobSpec, PlanSpec
from farflung.plan import check_plan, estimate
from farflung.planners import get_planner
from tests.support.plans.chains import chain, network


def near(devices):
    """``devices`` with links that take no time."""
    count = len(devices)
    return Topology.from_matrices(np.zeros((count, count)), np.full((count, count), 1e15), devices)


def planned(name, schedule, topology, layers=24, **plan):
    graph = chain([64] * (layers + 1))
    job = JobSpec(micro_batch_sizes=(32,) * 8, plan=PlanSpec(planner=name, schedule=schedule, **plan))
    found = get_planner(name).plan(graph, topology, job=job)
    check_plan(found, graph, topology, job)
    return found, estimate(graph, found, topology, job)


@pytest.mark.parametrize("name", ["equal_compute", "op_fence"])
@pytest.mark.parametrize("chunks", [2, 3])
def test_each_device_gets_the_same_work_in_rounds(name, chunks):
    topology = near(Topology.preset("homogeneous-3").devices)
    plain, before = planned(name, "1f1b", topology)
    found, after = planned(name, f"interleaved-{chunks}", topology)
    order = [stage.device for stage in plain.stages]
    assert len(order) > 1
    assert [stage.device for stage in found.stages] == order * chunks
    assert found.schedule == f"interleaved-{chunks}"
    work = {device.device: device.busy_seconds for device in before.devices}
    assert {device.device: device.busy_seconds for device in after.devices} == pytest.approx(work, rel=0.35)


def test_replicas_are_kept():
    found, _ = planned("equal_compute", "interleaved-2", network(seed=1, count=4), replicas=2)
    assert [len(stage.devices) for stage in found.stages] == [2] * 4
    assert found.stages[0].devices == found.stages[2].devices


def test_a_step_is_shorter_where_links_are_fast():
    fast = near(Topology.preset("homogeneous-4").devices)
    seconds = {name: planned("equal_compute", name, fast)[1].step_seconds for name in ("1f1b", "interleaved-2", "zb-h1")}
    assert seconds["interleaved-2"] < 0.95 * seconds["1f1b"]
    assert seconds["zb-h1"] < 0.95 * seconds["1f1b"]


def test_one_device_has_nothing_to_interleave():
    found, _ = planned("op_fence", "interleaved-2", network(seed=1, count=1))
    assert (len(found.stages), found.schedule) == (1, "1f1b")


def test_a_model_with_too_few_modules_is_refused():
    text = r"plan.schedule = 'interleaved-4' needs 16 stages on 4 devices, and the model divides into \d+ modules: set workers "
    with pytest.raises(PlanError, match=text):
        planned("equal_number", "interleaved-4", network(seed=1, count=4), layers=3)


@pytest.mark.parametrize("schedule", ["interleaved-2", "zb-h1"])
def test_helpers_need_another_schedule(schedule):
    job = JobSpec(plan=PlanSpec(helpers=True, schedule=schedule))
    with pytest.raises(InputError, match=rf"plan.helpers with plan.schedule = '{schedule}': .*set schedule = '1f1b'"):
        check_job(job)
