"""Plans that can be simulated but not run are refused before anything starts."""

from dataclasses import replace

import numpy as np
import pytest

from farflung.broker.links.reachability import Reachability
from farflung.broker.links.table import LinkTable
from farflung.broker.planning import cluster_of, plan_run, strangers_of
from farflung.cluster import Topology
from farflung.errors import InputError, PlanError
from farflung.graph.builder import GraphBuilder
from farflung.graph.ir import ValueRef
from farflung.job.check import check_decided, check_job
from farflung.job.spec import CheckpointSpec, JobSpec, LimitSpec, OpenSpec, PlanSpec
from farflung.messages.submission import Bundle
from farflung.planners.auto import Auto, AutoSettings
from farflung.protocol.events import Offer
from farflung.protocol.members import Member
from farflung.units import FlopsPerSecond
from tests.support.plans.chains import chain
from tests.support.steps.small_runs import small_bundle, small_graph


def members_of(*names):
    return [Member(name=name, address="x", offer=Offer(memory=1e9, speed=1e9)) for name in names]


def test_the_region_of_a_worker_is_that_of_the_submitted_topology_else_its_owners():
    preset = Topology.preset("local4-two-regions")
    offer = Offer(memory=1e9, speed=1e9, region="attic")
    there = [Member(name=name, address="x", offer=offer) for name in preset.names]
    bundle = Bundle(run="r", job=JobSpec(), graphs={}, topology=None)
    assert set(cluster_of(bundle, there, LinkTable()).regions) == {"attic"}
    assert cluster_of(replace(bundle, topology=preset), there).regions == preset.regions


def test_workers_that_the_submitted_topology_does_not_have_are_left_out_and_named():
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (4, 8))
    value = builder.add("fc", "Linear", value, in_features=8, out_features=8)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (4, 8)))
    preset = Topology.preset("homogeneous-3")
    two = preset.names[:2]
    bundle = Bundle(run="r", job=JobSpec(micro_batch_sizes=(4,)), graphs={4: builder.build()}, topology=preset)
    there = members_of(two[0], "stranger", two[1])
    for reaching in (None, Reachability(lambda name, frame: None, None)):
        cluster = cluster_of(bundle, there, LinkTable(), reaching)
        assert cluster.names == two
    planned = replace(plan_run(bundle, cluster), strangers=tuple(strangers_of(bundle, there)))
    assert "unused: stranger (missing in the submitted topology; join under a name of the topology)" in planned.explanation
    says = "worker 'stranger' is not in the submitted topology, which has .*; join under one of these names"
    with pytest.raises(InputError, match=says):
        cluster_of(bundle, members_of("stranger"))
    three = replace(bundle, job=JobSpec(micro_batch_sizes=(4,), workers=3))
    with pytest.raises(InputError, match=says):
        cluster_of(three, there)
    assert strangers_of(replace(bundle, topology=None), there) == []


def test_a_plan_on_one_of_several_machines_says_why_nobody_stores_copies():
    builder = GraphBuilder("chain")
    value = builder.add("fc", "Linear", builder.input("x", "float32", (2, 8)), in_features=8, out_features=8)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (2, 8)))
    often = CheckpointSpec(recover_every=1e-9)
    job = JobSpec(micro_batch_sizes=(2, 2), limits=LimitSpec(stages=1), checkpoint=CheckpointSpec(recover_every=0.0))
    bundle = Bundle(run="r", job=job, graphs={2: builder.build()})

    def exposed(count, **changes):
        changed = job.model_copy(update=changes)
        return plan_run(replace(bundle, job=changed), Topology.preset(f"homogeneous-{count}")).exposed(changed)

    text = (
        "no copies of the state (the plan has one machine, and only machines of the plan store copies): a death repeats the "
        "steps since the newest checkpoint{}; plan.replicas = 2 avoids that"
    )
    assert exposed(2) == text.format("")
    assert exposed(2, checkpoint=often) == text.format(", at most about 0.001 us")
    assert exposed(2, checkpoint=CheckpointSpec()) == "", "the run is over before a minute has passed"
    assert exposed(2, checkpoint=CheckpointSpec(), copies=1) == text.format(", at most about 1 min 0 s"), "the job asks for it"
    assert exposed(1) == "", "there is no other machine"
    assert exposed(2, copies=0) == exposed(2, on_loss="stop") == exposed(2, plan=PlanSpec(replicas=2)) == ""


def an_open_job(**kwargs):
    plan = PlanSpec(planner="auto")
    return JobSpec(micro_batch_sizes=(4,), plan=plan, open=OpenSpec(micro_batches=True), **kwargs)


def test_what_a_job_leaves_open_is_decided_by_the_plan_and_told():
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (4, 64))
    for i in range(6):
        value = builder.add(f"fc{i}", "Linear", value, in_features=64, out_features=64)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (4, 64)))
    job = an_open_job()
    bundle = Bundle(run="run-1", job=job, graphs={4: builder.build()})
    topology = Topology.preset("homogeneous-2")
    fast = topology.with_devices([replace(device, speed=FlopsPerSecond(1e6)) for device in topology.devices])
    planned = plan_run(bundle, fast, None, Auto(AutoSettings(evaluations=12)))
    assert planned.decided is not None
    assert sum(planned.decided.micro_batch_sizes) == 4
    assert len(planned.decided.micro_batch_sizes) > 1
    assert planned.plan.micro_batch_sizes == planned.decided.micro_batch_sizes
    assert not planned.decided.open.anything
    check_decided(planned.decided)
    assert f"to fix it): micro_batch_sizes = {list(planned.decided.micro_batch_sizes)}" in planned.explanation


def test_a_job_that_leaves_something_open_does_not_run():
    with pytest.raises(InputError, match=r"leaves \[open\] to the planner, and a run needs it decided: run farflung plan with"):
        check_decided(an_open_job())
    with pytest.raises(
        InputError, match=r"\[open\] leaves something to the planner auto, this job's is 'op_fence': set plan.planner"
    ):
        check_job(JobSpec(open=OpenSpec(micro_batches=True)))


def test_workers_of_one_host_are_planned_with_the_speed_that_they_reach_together():
    """It used to be the speed that each reaches alone, so predictions were too low by workers over cores."""
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (4, 64))
    for i in range(6):
        value = builder.add(f"fc{i}", "Linear", value, in_features=64, out_features=64)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (4, 64)))
    job = JobSpec(micro_batch_sizes=(4,) * 16, plan=PlanSpec(planner="equal_compute"))
    bundle = Bundle(run="r", job=job, graphs={4: builder.build()})

    def planned(processors):
        offers = [Offer(memory=1e9, speed=1e6, host="pc", processors=tuple(own)) for own in processors]
        members = [Member(name=name, address="x", offer=offer) for name, offer in zip("abc", offers, strict=True)]
        preset = Topology.preset("homogeneous-3")
        submitted = replace(bundle, topology=preset.rename(dict(zip(preset.names, "abc", strict=True))))
        assert cluster_of(submitted, members).hosts == cluster_of(bundle, members).hosts
        return plan_run(bundle, cluster_of(bundle, members))

    apart, together, crowded = planned(["01", "23", "45"]), planned(["01"] * 3), planned(["0"] * 3)
    assert 1.2 <= together.estimate.step_seconds / apart.estimate.step_seconds <= 1.5
    assert 2.2 <= crowded.estimate.step_seconds / apart.estimate.step_seconds <= 3.0
    assert "a, b, c share the cores of one host; 2.0 of them reach full speed at the same time" in together.explanation
    assert "share the cores" not in apart.explanation


def topology(*reliable: bool) -> Topology:
    found = Topology.preset(f"homogeneous-{len(reliable)}")
    return found.with_devices([replace(device, reliable=is_so) for device, is_so in zip(found.devices, reliable, strict=True)])


def test_unreliable_devices_get_no_stage() -> None:
    bundle = small_bundle(plan={"helpers": True, "planner": "equal_number"})
    planned = plan_run(bundle, topology(True, False, True))
    names = planned.topology.names
    assert len(names) == 2
    assert set(planned.plan.devices) <= set(names)


def test_the_explanation_tells_what_helpers_are_sent() -> None:
    planned = plan_run(small_bundle(plan={"helpers": True, "planner": "equal_number"}), topology(True, False, True))
    assert "helpers: their power counts in the predicted step as far as they are here now" in planned.explanation
    assert "optimizer.delayed would hide this transfer behind the previous step" in planned.explanation


def test_the_predicted_step_counts_the_helpers_that_are_here() -> None:
    bundle = small_bundle(plan={"helpers": True, "planner": "equal_compute", "schedule": "gpipe"})
    slow = [replace(device, speed=FlopsPerSecond(1e3)) for device in topology(True, False, False).devices]
    everybody = topology(True, False, False).with_devices(slow)
    alone = plan_run(bundle, everybody.select(everybody.names[:1]))
    helped = plan_run(bundle, everybody)
    assert helped.plan.stages == alone.plan.stages
    assert helped.estimate.step_seconds < 0.7 * alone.estimate.step_seconds
    (with_helpers,), (without,) = helped.estimate.replicas, alone.estimate.replicas
    assert with_helpers.forward_seconds < 0.5 * without.forward_seconds
    assert with_helpers.update_seconds == pytest.approx(without.update_seconds), "helpers do not update"
    assert helped.topology.names == alone.topology.names
    assert helped.topology.speeds.tolist() == alone.topology.speeds.tolist()


def test_a_server_with_helpers_gets_the_larger_stage() -> None:
    """The helpers reach the first server only."""
    widths = (64,) * 9
    graph, names = chain(widths, rows=4), ("device-0", "device-1")
    bundle = replace(small_bundle(plan={"helpers": True, "planner": "op_fence"}), graphs={4: graph})
    everybody = topology(True, True, False, False)
    beta = np.full((4, 4), 1e9)
    beta[1, 2:] = beta[2:, 1] = 1.0
    near = Topology.from_matrices(np.full((4, 4), 1e-6), beta, [replace(d, speed=FlopsPerSecond(1e6)) for d in everybody.devices])
    planned = plan_run(bundle, near)
    plan = planned.plan
    stage = next(stage.index for stage in plan.stages if stage.device == "device-0")
    assert planned.helpers == dict.fromkeys(("device-2", "device-3"), ("device-0", stage)), "the broker begins with these places"
    sizes = {stage.device: stage.stop - stage.start for stage in plan.stages}
    assert set(sizes) == set(names)
    assert sizes["device-0"] > 1.5 * sizes["device-1"]


def test_somebody_must_be_reliable() -> None:
    with pytest.raises(PlanError, match=r"plan\.helpers gives stages to reliable devices only, and none of the 2 is; mark"):
        plan_run(small_bundle(plan={"helpers": True}), topology(False, False))


def test_batch_norm_is_refused() -> None:
    graph = replace(small_graph(), state_updates=(("norm.running_mean", ValueRef(op="bend", index=0)),))
    bundle = replace(small_bundle(plan={"helpers": True}), graphs={4: graph})
    with pytest.raises(PlanError, match=r"plan\.helpers: the model updates 'norm\.running_mean' in its forward \(batch norm\)"):
        plan_run(bundle, topology(True, False))
