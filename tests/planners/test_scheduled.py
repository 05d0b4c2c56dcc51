"""``schedule = "auto"``: eager where links make stages wait, 1F1B where they do not or where memory is short."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.graph.builder import GraphBuilder
from farflung.job.spec import JobSpec, OptimizerSpec, PlanSpec
from farflung.plan import estimate
from farflung.planners import get_planner
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds
from tests.support.plans.chains import chain

ROWS, WIDTH, STAGES = 64, 64, 4
FLOPS = 2 * ROWS * WIDTH * WIDTH * 3  # of a stage's forward and backward


def graph(layers=STAGES):
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (ROWS, WIDTH))
    for i in range(layers):
        value = builder.add(f"fc{i}", "Linear", value, in_features=WIDTH, out_features=WIDTH)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (ROWS, WIDTH)))
    return builder.build()


def network(transfer, memory=1e12):
    """Devices that take 100 ms for a micro-batch, links that take ``transfer`` seconds for one value."""
    plain = Topology.preset(f"homogeneous-{STAGES}")
    devices = [
        replace(d, speed=FlopsPerSecond(FLOPS / 0.1), speed_factor=1.0, overhead=Seconds(0.0), memory=Bytes(memory))
        for d in plain.devices
    ]
    beta = np.where(np.isfinite(plain.beta), ROWS * WIDTH * 4 / transfer, plain.beta)
    return replace(plain, beta=beta).with_devices(devices)


def planned(topology, schedule="auto"):
    job = JobSpec(micro_batch_sizes=(ROWS,) * 16, plan=PlanSpec(planner="equal_number", schedule=schedule, recompute="never"))
    plan = get_planner("equal_number").plan(graph(), topology, job=job)
    return plan, estimate(graph(), plan, topology, job)


def test_slow_links_ask_for_forwards_ahead():
    topology = network(transfer=0.1)
    plan, found = planned(topology)
    _, plain = planned(topology, "1f1b")
    assert plan.schedule.startswith("eager-")
    assert found.step_seconds < 0.8 * plain.step_seconds


def test_fast_links_do_not():
    assert planned(network(transfer=1e-6))[0].schedule == "1f1b"


def test_memory_decides():
    _, plain = planned(network(transfer=0.1), "1f1b")
    most = max(device.memory_bytes for device in plain.devices)
    assert planned(network(transfer=0.1, memory=most * 1.001))[0].schedule == "1f1b"


@pytest.mark.parametrize("schedule", ["1f1b", "eager-4", "gpipe"])
def test_a_given_schedule_is_kept(schedule):
    assert planned(network(transfer=0.1), schedule)[0].schedule == schedule


def test_schedules_are_compared_by_the_judge_that_is_given():
    topology = network(transfer=1e-6)
    asked = []

    def judge(plan):
        asked.append(plan.schedule)
        found = estimate(graph(), plan, topology, JobSpec(micro_batch_sizes=plan.micro_batch_sizes))
        return replace(found, step_seconds=1.0 if plan.schedule == "eager-3" else 2.0)

    job = JobSpec(micro_batch_sizes=(ROWS,) * 4, plan=PlanSpec(schedule="auto"))
    plan = get_planner("equal_number").judged_by(judge).plan(graph(), topology, job=job)
    assert (plan.schedule, asked) == ("eager-3", ["1f1b", "eager-2", "eager-3", "eager-4"])


def with_ranks(topology, *ranks):
    devices = [replace(device, ranks=count) for device, count in zip(topology.devices, ranks, strict=True)]
    return topology.with_devices(devices)


def test_sites_give_the_plan_groups():
    topology = network(transfer=1e-6)
    assert planned(topology, "1f1b")[0].schedule == "1f1b"
    assert planned(with_ranks(topology, 2, 1, 1, 2), "1f1b")[0].schedule == "1f1b@2"
    assert planned(with_ranks(topology, 2, 3, 1, 1), "1f1b")[0].schedule == "1f1b@6"


def test_a_job_that_keeps_the_schedule_of_a_running_plan_keeps_its_groups():
    topology = with_ranks(network(transfer=1e-6), 2, 2, 1, 1)
    job = JobSpec(micro_batch_sizes=(ROWS,) * 16, plan=PlanSpec(planner="equal_number"))
    running = job.model_copy(update={"plan": job.plan.model_copy(update={"schedule": "gpipe@2"})})
    assert get_planner("equal_number").plan(graph(), topology, job=running).schedule == "gpipe@2"


def test_groups_are_no_larger_than_the_step():
    topology = with_ranks(network(transfer=1e-6), 8, 8, 8, 8)
    job = JobSpec(micro_batch_sizes=(ROWS,) * 4, plan=PlanSpec(planner="equal_number", schedule="1f1b"))
    assert get_planner("equal_number").plan(graph(), topology, job=job).schedule == "1f1b@4"


def test_a_site_has_the_parameters_on_each_rank_and_waits_for_whole_groups():
    topology = network(transfer=1e-6)
    plan, alone = planned(topology, "1f1b")
    site = with_ranks(topology, 2, 1, 1, 1)
    found = estimate(graph(), plan, site, JobSpec(micro_batch_sizes=(ROWS,) * 16))
    first, before = found.replicas[0], alone.replicas[0]
    assert first.memory["parameters"] == 2 * before.memory["parameters"]
    assert first.memory["gradients"] == 5 * before.memory["gradients"]
    assert first.memory["optimizer"] == before.memory["optimizer"]
    assert first.forward_seconds == before.forward_seconds
    three = with_ranks(topology, 3, 1, 1, 1)
    slower = estimate(graph(), plan, three, JobSpec(micro_batch_sizes=(ROWS,) * 16)).replicas[0]
    assert slower.forward_seconds == pytest.approx(before.forward_seconds * 18 / 16)
    assert slower.backward_seconds == pytest.approx(before.backward_seconds * 18 / 16)


def test_a_site_that_cannot_hold_the_stage_on_each_rank_is_refused():
    job = JobSpec(micro_batch_sizes=(ROWS,) * 4, plan=PlanSpec(planner="equal_number", schedule="1f1b", recompute="never"))
    plan = get_planner("equal_number").plan(graph(), network(transfer=1e-6), job=job)
    needed = max(one.memory_bytes for one in estimate(graph(), plan, network(transfer=1e-6), job).devices)
    topology = network(transfer=1e-6, memory=1.5 * needed)
    get_planner("equal_number").plan(graph(), topology, job=job)
    with pytest.raises(PlanError, match="memory"):
        get_planner("equal_number").plan(graph(), with_ranks(topology, 2, 2, 2, 2), job=job)


def sited(memory, count=STAGES):
    """The first ``count`` devices are sites of two ranks, whose ranks exchange 1 GB/s."""
    topology = network(transfer=1e-6, memory=memory)
    sites = [replace(one, ranks=2, rank_rate=BytesPerSecond(1e9)) for one in topology.devices[:count]]
    return topology.with_devices([*sites, *topology.devices[count:]])


def sharding(shard="auto", planner="op_fence"):
    plan = PlanSpec(planner=planner, schedule="1f1b", recompute="never", shard=shard)
    return JobSpec(micro_batch_sizes=(ROWS,) * 4, plan=plan, optimizer=OptimizerSpec(name="adamw"))


def memory_of_sites(shard):
    """Bytes that the fullest site needs under the planner ``equal_number``."""
    topology, job = sited(1e12), sharding(shard, "equal_number")
    plan = get_planner("equal_number").plan(wide(), topology, job=job)
    return max(device.memory_bytes for device in estimate(wide(), plan, topology, job).devices)


@functools.cache
def wide():
    """Six layers for each device, whose parameters are most of the memory."""
    builder = GraphBuilder("wide")
    value = builder.input("x", "float32", (ROWS, 8 * WIDTH))
    for i in range(6 * STAGES):
        value = builder.add(f"fc{i}", "Linear", value, in_features=8 * WIDTH, out_features=8 * WIDTH)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (ROWS, 8 * WIDTH)))
    return builder.build()


@pytest.mark.parametrize("planner", ["op_fence", "equal_number", "auto", "grid"])
def test_parameters_are_divided_where_the_model_does_not_fit_otherwise(planner):
    whole, divided = memory_of_sites("none"), memory_of_sites("parameters")
    assert divided < 0.8 * whole
    topology = sited(0.9 * divided + 0.1 * whole)
    with pytest.raises(PlanError, match=r'; or let ranks divide the parameters \(plan.shard = "auto"\)$'):
        get_planner(planner).plan(wide(), topology, job=sharding("none", planner))
    with pytest.raises(PlanError) as caught:  # nothing fits: the remedy would be none
        get_planner(planner).plan(wide(), sited(1e3), job=sharding("none", planner))
    assert "let ranks divide" not in str(caught.value)
    job = sharding(planner=planner)
    plan = get_planner(planner).plan(wide(), topology, job=job)
    found = estimate(wide(), plan, topology, job)
    assert found.feasible
    assert "parameters" in {stage.shard for stage in plan.stages}
    assert plan.schedule.endswith("@2")
    assert found.shard.needed
    assert found.shard.factor > 1.0


@pytest.mark.parametrize(
    ("ranks", "memory", "shard", "sizes"),
    [
        ((2, 1, 1), (12e6, 3e6, 1.5e6), "none", 1),
        ((2, 2, 4), (8e6, 12e6, 12e6), "none", 8),
        ((2, 2, 2), (6e6, 5e6, 5e6), "parameters", 8),
    ],
)
def test_a_plan_that_does_not_fit_on_a_site_by_what_its_ranks_exchange_leaves_more_to_other_devices(ranks, memory, shard, sizes):
    """Gradients in the buffers of ranks take as much as two further copies, which planners do not see."""
    model = chain((256,) * 7, rows=4)
    plain = with_ranks(Topology.preset("homogeneous-3"), *ranks)
    topology = plain.with_devices([replace(one, memory=Bytes(size)) for one, size in zip(plain.devices, memory, strict=True)])
    job = JobSpec(micro_batch_sizes=(4,) * sizes, plan=PlanSpec(schedule="1f1b", recompute="never", shard=shard))
    plan = get_planner("op_fence").plan(model, topology, job=job)
    assert estimate(model, plan, topology, job).feasible
    assert len(plan.devices) > 1


def test_parameters_stay_whole_where_they_fit():
    plan = get_planner("op_fence").plan(wide(), sited(1e12), job=sharding())
    assert {stage.shard for stage in plan.stages} == {"none"}
    plan = get_planner("op_fence").plan(wide(), sited(1e12), job=sharding("parameters"))
    assert {stage.shard for stage in plan.stages} == {"parameters"}


def test_only_the_sites_that_need_it_divide_parameters():
    topology, job = sited(1e12), sharding(planner="equal_number")
    small = replace(topology.devices[1], memory=Bytes(0.5 * memory_of_sites("none") + 0.5 * memory_of_sites("parameters")))
    topology = topology.with_devices([small if one.name == small.name else one for one in topology.devices])
    plan = get_planner("equal_number").plan(wide(), topology, job=job)
    assert [stage.shard for stage in plan.stages] == ["none", "parameters", "none", "none"]


def test_a_device_that_is_no_site_has_whole_parameters():
    plan = get_planner("equal_number").plan(wide(), sited(1e12, count=2), job=sharding("parameters", "equal_number"))
    assert [stage.shard for stage in plan.stages] == ["parameters", "parameters", "none", "none"]
    with pytest.raises(PlanError, match="and no worker is a site: join with --devices"):
        get_planner("op_fence").plan(wide(), sited(1e12, count=0), job=sharding("parameters"))


def pairs(layers=STAGES):
    """Two products with an activation between them, in each layer."""
    builder = GraphBuilder("pairs")
    value = builder.input("x", "float32", (ROWS, WIDTH))
    for i in range(layers):
        value = builder.add(f"up{i}", "Linear", value, in_features=WIDTH, out_features=4 * WIDTH)
        value = builder.add(f"act{i}", "ReLU", value)
        value = builder.add(f"down{i}", "Linear", value, in_features=4 * WIDTH, out_features=WIDTH)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (ROWS, WIDTH)))
    return builder.build()


def test_ranks_that_compute_together_need_no_groups():
    job = sharding("tensor", "equal_number")
    plan = get_planner("equal_number").plan(pairs(), sited(1e12, count=2), job=job)
    assert [stage.shard for stage in plan.stages] == ["tensor", "tensor", "none", "none"]
    assert plan.schedule == "1f1b"
    whole = estimate(pairs(), replace(plan, stages=[replace(one, shard="none") for one in plan.stages]), sited(1e12), job)
    assert estimate(pairs(), plan, sited(1e12, count=2), job).devices[0].memory_bytes < 0.8 * whole.devices[0].memory_bytes


def normed(layers=STAGES):
    """Each product is followed by a norm, which needs all features."""
    builder = GraphBuilder("normed")
    value = builder.input("x", "float32", (ROWS, WIDTH))
    for i in range(layers):
        value = builder.add(f"fc{i}", "Linear", value, in_features=WIDTH, out_features=WIDTH)
        value = builder.add(f"norm{i}", "LayerNorm", value, normalized_shape=[WIDTH])
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (ROWS, WIDTH)))
    return builder.build()


def test_a_stage_of_which_ranks_divide_nothing_has_groups():
    """The first half of the model has pairs of products, and the second half has norms."""
    builder = GraphBuilder("mixed")
    value = builder.input("x", "float32", (ROWS, WIDTH))
    for i in range(2):
        value = builder.add(f"up{i}", "Linear", value, in_features=WIDTH, out_features=WIDTH)
        value = builder.add(f"down{i}", "Linear", value, in_features=WIDTH, out_features=WIDTH)
    for i in range(4):
        value = builder.add(f"norm{i}", "LayerNorm", value, normalized_shape=[WIDTH])
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (ROWS, WIDTH)))
    model = builder.build()
    topology = Topology.preset("homogeneous-2")
    topology = topology.with_devices([replace(one, ranks=2, memory=Bytes(1e12)) for one in topology.devices])
    plan = get_planner("equal_number").plan(model, topology, job=sharding("tensor", "equal_number"))
    assert [stage.shard for stage in plan.stages] == ["tensor", "none"]
    assert plan.schedule == "1f1b@2"


@pytest.mark.parametrize(
    ("model", "optimizer", "count", "text"),
    [
        (normed, {}, STAGES, "the ranks of no site can divide a layer of this model"),
        (pairs, {}, 0, 'plan.shard = "tensor", and no worker is a site'),
        (pairs, {"name": "muon"}, STAGES, "needs an optimizer that updates each element alone"),
        (pairs, {"state": "8bit"}, STAGES, "needs an optimizer that updates each element alone"),
        (pairs, {"update": "stochastic"}, STAGES, "needs an optimizer that updates each element alone"),
        (pairs, {}, STAGES, "verify.share compares the bits of replicas"),
    ],
)
def test_ranks_cannot_compute_everything_together(model, optimizer, count, text):
    job = sharding("tensor", "equal_number")
    job = job.model_copy(update={"optimizer": OptimizerSpec.model_validate({"name": "adamw", **optimizer})})
    if text.startswith("verify"):
        job = job.model_copy(update={"verify": job.verify.model_copy(update={"share": 0.1})})
    with pytest.raises(PlanError, match=text):
        get_planner("equal_number").plan(model(), sited(1e12, count=count), job=job)


def test_a_model_that_does_not_fit_in_parts_either_is_refused():
    with pytest.raises(PlanError, match=r"with parameters divided among ranks: device .* lacks"):
        get_planner("equal_number").plan(wide(), sited(0.5 * memory_of_sites("parameters")), job=sharding(planner="equal_number"))


ROOM = 1e9
#: Bytes of a layer's weights.
WEIGHTS = WIDTH * (WIDTH + 1) * 4


def deep():
    """Six layers for each device: AdamW's states of a stage are more than what an update has in memory of them."""
    return graph(6 * STAGES)


def offering(memory, disk=ROOM, rate=1e6, count=STAGES):
    """Devices with ``memory``, of which the first ``count`` offer ``disk`` bytes of a disk."""
    devices = list(network(transfer=1e-6, memory=memory).devices)
    for at in range(count):
        devices[at] = replace(devices[at], offload=Bytes(disk), offload_rate=BytesPerSecond(rate))
    return network(transfer=1e-6, memory=memory).with_devices(devices)


def adamw(planner="op_fence", offload="auto"):
    plan = PlanSpec(planner=planner, schedule="1f1b", recompute="never", offload=offload)
    return JobSpec(micro_batch_sizes=(ROWS,) * 2, plan=plan, optimizer=OptimizerSpec(name="adamw"))


def states_of(plan):
    return [stage.offload for stage in plan.stages]


def least_memory(job):
    """Bytes that the fullest device needs with all states in memory, under the planner ``equal_number``."""
    plain = network(transfer=1e-6)
    plan = get_planner("equal_number").plan(deep(), plain, job=job)
    return max(device.memory_bytes for device in estimate(deep(), plan, plain, job).devices)


def test_states_stay_in_memory_where_they_fit():
    plan = get_planner("op_fence").plan(deep(), offering(1e12), job=adamw())
    assert set(states_of(plan)) == {"none"}


@pytest.mark.parametrize("planner", ["op_fence", "equal_number", "equal_compute", "auto", "grid"])
def test_states_go_to_disks_where_the_model_does_not_fit_otherwise(planner):
    job = adamw(planner)
    memory = least_memory(adamw("equal_number")) - 6 * WEIGHTS  # AdamW has twelve times these bytes of the six layers
    with pytest.raises(PlanError):
        get_planner(planner).plan(deep(), network(transfer=1e-6, memory=memory), job=job)
    topology = offering(memory)
    plan = get_planner(planner).plan(deep(), topology, job=job)
    found = estimate(deep(), plan, topology, job)
    assert "optimizer" in states_of(plan)
    assert found.feasible
    assert found.offload is not None
    assert found.offload.needed


def test_only_the_stages_that_need_it_have_states_on_disks():
    job, topology = adamw("equal_number"), offering(1e12)
    tight = replace(topology.devices[1], memory=Bytes(least_memory(job) - 6 * WEIGHTS))
    devices = [tight if device.name == tight.name else device for device in topology.devices]
    plan = get_planner("equal_number").plan(deep(), topology.with_devices(devices), job=job)
    assert states_of(plan) == ["none", "optimizer", "none", "none"]


def test_a_device_without_a_disk_gets_no_part_where_disks_are_needed():
    memory = least_memory(adamw("equal_number")) - 6 * WEIGHTS
    topology = offering(2 * memory, count=STAGES - 1)
    plan = get_planner("op_fence").plan(deep(), topology, job=adamw(offload="optimizer"))
    assert topology.names[-1] not in plan.devices
    assert set(states_of(plan)) == {"optimizer"}
    with pytest.raises(PlanError, match="no device offers disk space: join with --disk"):
        get_planner("op_fence").plan(deep(), network(transfer=1e-6), job=adamw(offload="optimizer"))
    with pytest.raises(PlanError):
        get_planner("op_fence").plan(deep(), offering(memory / 50), job=adamw())


def test_a_disk_that_is_too_small_is_named():
    memory = least_memory(adamw("equal_number")) - 6 * WEIGHTS
    with pytest.raises(
        PlanError, match=r"with optimizer states on disks: .* of disk for optimizer states, and offers 1 kB: offer more"
    ):
        get_planner("equal_number").plan(deep(), offering(memory, disk=1000), job=adamw("equal_number"))


def test_an_update_takes_as_long_as_its_bytes_take_on_the_disk():
    job = adamw("equal_number", "optimizer")
    found = {}
    for rate in (1e5, 2e5, 1e12):
        topology = offering(1e12, rate=rate)
        plan = get_planner("equal_number").plan(deep(), topology, job=job)
        found[rate] = estimate(deep(), plan, topology, job)
    stage = found[1e5].stages[0]
    assert stage.disk_bytes >= 2 * 6 * WEIGHTS
    assert stage.update_seconds == pytest.approx(2 * 2 * 6 * WEIGHTS / 1e5)
    assert found[2e5].stages[0].update_seconds == pytest.approx(stage.update_seconds / 2)
    offload = found[1e5].offload
    assert not offload.needed
    in_memory = found[1e12].step_seconds
    assert offload.factor == pytest.approx(found[1e5].step_seconds / in_memory, rel=0.01)
    assert stage.memory["optimizer"] == 0.0
    assert stage.memory["update"] == pytest.approx((2 + 3 * 2) * WIDTH * WIDTH * 4, rel=0.05)
