"""The simulator against the timed dry-run, against timelines worked out by hand, and its properties."""

import math
from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.cluster import Device, Topology, with_relays
from farflung.graph.builder import GraphBuilder
from farflung.job.spec import CodecSpec, JobSpec, OptimizerSpec, PlanSpec
from farflung.plan import Plan, Replica, Stage, check_plan, estimate, make_links
from farflung.planners import get_planner
from farflung.simulator import CodecSpeed, DevicePrice, Jitter, PriceTable, SimulationSettings, TrafficPrice, simulate
from farflung.telemetry import SpanKind, time_shares
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond
from tests.support.plans.chains import chain, network

#: Nothing but what the timed dry-run knows: computing, links, latency.
BARE = SimulationSettings(
    queue=1000,
    window=1000,
    frame_bytes=0.0,
    codecs={name: CodecSpeed(encode=math.inf, decode=math.inf) for name in ("identity", "fp16", "topk")},
)
SCHEDULES = ("gpipe", "1f1b", "interleaved-2", "zb-h1")


GRAPH = chain((32, 64, 16, 128, 32, 64, 16))
JOB = JobSpec(micro_batch_sizes=(8, 8, 8, 4))


def plan_of(topology, job=JOB, planner="equal_compute", schedule="1f1b"):
    return replace(get_planner(planner).plan(GRAPH, topology, job=job), schedule=schedule)


def grid_of(topology, middle):
    """Two stages with two replicas each, the first of which have the first ``middle`` of four micro-batches."""
    plan = plan_of(topology.select(["d0", "d2"]))
    pairs = [("d0", "d1"), ("d2", "d3")]
    copies = [(Replica(device=a, first=0, end=middle), Replica(device=b, first=middle, end=4)) for a, b in pairs]
    stages = tuple(replace(stage, replicas=copy) for stage, copy in zip(plan.stages, copies, strict=True))
    return replace(plan, stages=stages)


def on_one_host(topology, capacity, members):
    devices = (replace(d, host="pc" if i in members else "", host_capacity=capacity) for i, d in enumerate(topology.devices))
    return topology.with_devices(tuple(devices))


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(2, 5),
    capacity=st.sampled_from([1.0, 1.3, 2.0]),
    schedule=st.sampled_from(["gpipe", "1f1b", "eager-3"]),
)
def test_devices_of_one_host_slow_each_other_down_as_in_the_dry_run(seed, count, capacity, schedule):
    topology = network(seed, count)
    topology = replace(topology, alpha=np.where(topology.alpha > 0, 1e-3, 0.0))
    shared = on_one_host(topology, capacity, range(count))
    plan = plan_of(topology, schedule=schedule)
    found, alone = (estimate(GRAPH, plan, where, JOB) for where in (shared, topology))
    simulated = simulate(plan, shared, GRAPH, job=JOB, settings=BARE)
    assert simulated.step_seconds == pytest.approx(found.step_seconds, rel=0.02), "the updates' begin differs a little"
    assert found.step_seconds >= alone.step_seconds * (1 - 1e-9)
    computed = {use.device: use.busy_seconds for use in alone.devices}
    assert found.step_seconds * capacity >= sum(computed.values()) * (1 - 1e-6)
    assert all(use.busy_seconds >= computed[use.device] * (1 - 1e-9) for use in found.devices)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 5), schedule=st.sampled_from(["gpipe", "1f1b", "eager-3", "zb-h1"]))
def test_without_queues_and_codecs_it_agrees_with_the_dry_run(seed, count, schedule):
    """Latency is the same everywhere: else the verdict's own hop, which the dry-run does not know, may come last."""
    topology = network(seed, count)
    topology = replace(topology, alpha=np.where(topology.alpha > 0, 1e-3, 0.0))
    plan = plan_of(topology, schedule=schedule)
    found = estimate(GRAPH, plan, topology, JOB)
    simulated = simulate(plan, topology, GRAPH, job=JOB, settings=BARE)
    assert simulated.step_seconds == pytest.approx(found.step_seconds, rel=1e-9)
    busy = {use.device: use.busy_seconds for use in simulated.devices}
    assert busy == pytest.approx({use.device: use.busy_seconds for use in found.devices})
    assert simulated.seconds == simulated.step_seconds
    for use in simulated.devices:
        assert 0 <= use.bubble <= 1


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), middle=st.integers(1, 3))
def test_replicas_share_the_micro_batches_and_exchange_gradients(seed, middle):
    topology = network(seed, 4)
    plan = grid_of(topology, middle)
    found = estimate(GRAPH, plan, topology, JOB)
    simulated = simulate(plan, topology, GRAPH, job=JOB, settings=BARE)
    assert {use.device: use.busy_seconds for use in simulated.devices} == pytest.approx(
        {use.device: use.busy_seconds for use in found.devices}
    )
    assert simulated.step_seconds == pytest.approx(found.step_seconds, rel=0.05)
    sent = {(link.source, link.target): link.sent_bytes for link in simulated.links}
    exchanged = [e for e in found.exchanges if found.replicas[e.source].index == 0]
    for source, pair in ((0, ("d0", "d1")), (1, ("d1", "d0"))):
        assert sent[pair] == pytest.approx(sum(e.total_bytes for e in exchanged if e.source == source))
    parts = {e.source: len(e.after) for e in exchanged if e.round == 0}
    assert parts == {1: 4 - middle}  # d0 serves this one bucket, and d1 sends a part for each micro-batch


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), middle=st.integers(1, 3), pair=st.sampled_from(list(permutations(range(4), 2))))
def test_a_faster_link_never_makes_a_grid_slower(seed, middle, pair):
    topology = network(seed, 4)
    plan = grid_of(topology, middle)
    beta = topology.beta.copy()
    beta[pair] *= 4
    for chosen in (BARE, SimulationSettings()):
        before = simulate(plan, topology, GRAPH, job=JOB, settings=chosen).seconds
        faster = simulate(plan, replace(topology, beta=beta), GRAPH, job=JOB, settings=chosen).seconds
        assert faster <= before * (1 + 1e-12)
    assert estimate(GRAPH, plan, replace(topology, beta=beta), JOB).step_seconds <= (
        estimate(GRAPH, plan, topology, JOB).step_seconds * (1 + 1e-12)
    )


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 5), schedule=st.sampled_from(SCHEDULES))
def test_memory_stays_under_the_plans_figure(seed, count, schedule):
    topology = network(seed, count)
    plan = plan_of(topology, schedule="1f1b")
    if schedule == "interleaved-2" and len(plan.stages) % 2:
        return
    plan = replace(plan, schedule=schedule)
    check_plan(plan, GRAPH, topology, JOB)
    found = estimate(GRAPH, plan, topology, JOB)
    simulated = simulate(plan, topology, GRAPH, job=JOB, settings=replace(BARE, spans=True))
    limits = {use.device: use.memory_bytes for use in found.devices}
    for use in simulated.devices:
        assert use.memory_bytes <= limits[use.device] * (1 + 1e-9)
    for device in plan.devices:
        course = [point for point in simulated.memory if point.device == device]
        assert course == sorted(course, key=lambda point: point.seconds)
        assert max(point.nbytes for point in course) <= limits[device] * (1 + 1e-9)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 5), at=st.integers(0, 100), factor=st.floats(1.1, 20))
def test_a_faster_link_never_makes_a_fixed_plan_slower(seed, count, at, factor):
    topology = network(seed, count)
    plan = plan_of(topology)
    pair = at % (len(plan.devices) - 1) if len(plan.devices) > 1 else 0
    here, there = topology.index(plan.devices[pair]), topology.index(plan.devices[min(pair + 1, len(plan.devices) - 1)])
    beta = topology.beta.copy()
    beta[here, there] *= factor
    beta[there, here] *= factor
    faster = replace(topology, beta=beta)
    for chosen in (BARE, SimulationSettings()):
        before = simulate(plan, topology, GRAPH, job=JOB, settings=chosen).seconds
        assert simulate(plan, faster, GRAPH, job=JOB, settings=chosen).seconds <= before * (1 + 1e-12)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 5), turn=st.randoms(use_true_random=False))
def test_names_of_devices_do_not_matter(seed, count, turn):
    topology = network(seed, count)
    plan = plan_of(topology)
    names = list(topology.names)
    turn.shuffle(names)
    new = dict(zip(topology.names, (f"x-{name}" for name in names), strict=True))
    renamed = replace(plan, stages=tuple(replace(stage, device=new[stage.device]) for stage in plan.stages))
    order = list(range(count))
    turn.shuffle(order)
    shuffled = topology.rename(new)
    shuffled = shuffled.select([shuffled.names[i] for i in order])
    first, second = simulate(plan, topology, GRAPH, job=JOB), simulate(renamed, shuffled, GRAPH, job=JOB)
    assert first.step_seconds == pytest.approx(second.step_seconds, rel=1e-12)


def two(bandwidth=1e6, latency=0.5):
    devices = [Device(name=f"d{i}", memory=Bytes(1e9), speed=FlopsPerSecond(1e12)) for i in range(2)]
    return Topology.from_matrices(np.full((2, 2), latency), np.full((2, 2), bandwidth), devices)


def test_a_window_of_one_waits_for_the_acknowledgement():
    """Computing takes no time here: each frame needs wire + latency and, with one frame on its way, the latency back."""
    topology, job = two(), JobSpec(micro_batch_sizes=(32, 32, 32), plan=PlanSpec(schedule="gpipe"))
    plan = plan_of(topology, job, schedule="gpipe")
    wire = estimate(GRAPH, plan, topology, job).links[0].forward_bytes / 1e6
    frames = sum(link.forward_bytes > 0 for link in estimate(GRAPH, plan, topology, job).links)
    assert frames == 1
    wide = simulate(plan, topology, GRAPH, job=job, settings=BARE)
    narrow = simulate(plan, topology, GRAPH, job=job, settings=replace(BARE, window=1))
    # three forwards and three backwards; the verdict goes the way of the gradients, before them, and takes a turn too
    assert wide.seconds == pytest.approx(2 * (3 * wire + 0.5), abs=1e-2)
    assert narrow.seconds == pytest.approx(3 * wire + 0.5 + 2 * 1.0 + 3 * wire + 0.5 + 3 * 1.0 - wire * 0, abs=1e-2)


def test_encoding_and_decoding_take_their_time():
    topology, job = two(bandwidth=1e12, latency=0.0), JobSpec(micro_batch_sizes=(32,))
    plan = plan_of(topology, job)
    dense = estimate(GRAPH, plan, topology, job).links[0].forward_dense_bytes
    slow = replace(BARE, codecs={"identity": CodecSpeed(encode=dense, decode=dense / 2)})
    assert simulate(plan, topology, GRAPH, job=job, settings=slow).seconds == pytest.approx(2 * (1.0 + 2.0), abs=1e-2)


def test_a_codec_sends_fewer_bytes():
    topology = two()
    sent = {}
    for name in ("identity", "fp16"):
        job = JobSpec(micro_batch_sizes=(32, 32), codec=CodecSpec(name=name))
        found = simulate(plan_of(topology, job), topology, GRAPH, job=job, settings=BARE)
        sent[name] = sum(link.sent_bytes for link in found.links)
    assert sent["fp16"] == pytest.approx(sent["identity"] / 2, rel=0.01)


def test_steps_follow_each_other_and_jitter_is_seeded():
    topology = network(3, 3)
    plan = plan_of(topology)
    one = simulate(plan, topology, GRAPH, job=JOB)
    four = simulate(plan, topology, GRAPH, job=JOB, settings=SimulationSettings(steps=4))
    assert 0.9 * one.seconds <= four.step_seconds <= one.seconds * (1 + 1e-9)
    shaken = [
        simulate(
            plan, topology, GRAPH, job=JOB, settings=SimulationSettings(jitter=Jitter(compute=0.2, link=0.2), seed=seed)
        ).seconds
        for seed in (1, 1, 2)
    ]
    assert shaken[0] == shaken[1] != shaken[2]


def fan(uplink):
    """One device that sends two others a value each, which does not depend on the other."""
    builder = GraphBuilder("fan")
    x = builder.input("x", "float32", (32, 16))
    root = builder.add("root", "Linear", x, in_features=16, out_features=1024)
    left = builder.add("left", "Linear", root, in_features=1024, out_features=16)
    right = builder.add("right", "Linear", root, in_features=1024, out_features=16)
    builder.add("loss", "MSELoss", builder.add("sum", "Add", left, right), builder.label("y", "float32", (32, 16)))
    devices = [
        Device(name=f"d{i}", memory=Bytes(1e9), speed=FlopsPerSecond(1e15), uplink=uplink if i == 0 else None) for i in range(3)
    ]
    return builder.build(), Topology.from_matrices(np.zeros((3, 3)), np.full((3, 3), 1e5), devices)


@pytest.mark.parametrize("shares", ["up-link", "relay"])
def test_links_share_an_uplink_and_a_hop_to_a_relay_fairly(shares):
    seconds = {}
    for rate in (None, BytesPerSecond(1e5)):
        graph, topology = fan(rate if shares == "up-link" else None)
        if rate and shares == "relay":  # d1 is a neighbour of d0, and carries what d0 sends d2
            topology = with_relays(topology, [("d0", "d2")])
            assert topology.relay("d0", "d2") == "d1"
        job = JobSpec(micro_batch_sizes=(32,))
        cuts = [graph.position["left"], graph.position["right"]]
        bounds = [0, *cuts, len(graph.ops)]
        stages = tuple(Stage(index=i, start=bounds[i], stop=bounds[i + 1], device=f"d{i}") for i in range(3))
        plan = Plan(
            graph_hash=graph.hash, planner="hand", stages=stages, links=make_links(graph, stages), micro_batch_sizes=(32,)
        )
        check_plan(plan, graph, topology, job)
        found = simulate(plan, topology, graph, job=job, settings=replace(BARE, spans=True))
        sends = [s for s in found.traces[0].spans if s.what is SpanKind.SEND and s.name == "send activation"]
        assert len(sends) == 2
        seconds[rate] = max(s.end for s in sends) - min(s.start for s in sends)
    assert seconds[None] == pytest.approx(32 * 1024 * 4 / 1e5, rel=0.01)
    assert seconds[BytesPerSecond(1e5)] == pytest.approx(2 * seconds[None], rel=0.01)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 4))
def test_wide_shared_links_change_nothing(seed, count):
    topology = network(seed, count)
    wide = topology.with_devices(
        [replace(d, uplink=BytesPerSecond(1e12), downlink=BytesPerSecond(1e12)) for d in topology.devices]
    )
    clip = JobSpec(micro_batch_sizes=JOB.micro_batch_sizes, optimizer=OptimizerSpec(clip_norm=1.0))
    plan = plan_of(topology, clip)
    first, second = (simulate(plan, t, GRAPH, job=clip, settings=BARE) for t in (topology, wide))
    assert second.seconds == pytest.approx(first.seconds, rel=1e-6)
    assert [u.sent_bytes for u in second.links] == pytest.approx([u.sent_bytes for u in first.links])


def test_clipping_and_tied_parameters_lengthen_the_tail():
    topology = network(3, 3)
    clip = JobSpec(micro_batch_sizes=JOB.micro_batch_sizes, optimizer=OptimizerSpec(clip_norm=1.0))
    plan = plan_of(topology)
    assert simulate(plan, topology, GRAPH, job=clip).seconds > simulate(plan, topology, GRAPH, job=JOB).seconds


def test_spans_tell_the_whole_story():
    topology = network(5, 3)
    plan = plan_of(topology)
    found = simulate(plan, topology, GRAPH, job=JOB, settings=SimulationSettings(spans=True))
    assert [trace.process for trace in found.traces] == list(plan.devices)
    for use, trace, shares in zip(found.devices, found.traces, time_shares(found.traces), strict=True):
        rows = [s for s in trace.spans if s.what in (SpanKind.COMPUTE, SpanKind.WAIT)]
        assert shares.compute == pytest.approx(use.busy_seconds)
        for earlier, later in pairwise(rows):
            assert later.start >= earlier.end - 1e-12
    spans = [s for trace in found.traces for s in trace.spans]
    sent = [s for s in spans if s.what is SpanKind.SEND]
    assert sum(s.nbytes for s in sent) == pytest.approx(sum(link.sent_bytes for link in found.links), abs=len(sent))
    assert len([s for s in spans if s.what is SpanKind.RECEIVE]) == len(sent)
    done = {(s.stage, s.name, s.micro_batch) for s in spans if s.what is SpanKind.COMPUTE}
    assert {(stage, kind, m) for stage in range(3) for kind in "FB" for m in range(4)} <= done
    assert all(s.start >= 0 and s.end <= found.seconds + 1 for s in spans)


def test_a_bill():
    topology = network(5, 3)
    plan = plan_of(topology)
    table = PriceTable(
        devices=(DevicePrice(match="d0", busy_watts=100, idle_watts=10, hour=3.6), DevicePrice(busy_watts=50)),
        traffic=(TrafficPrice(source="r0", target="r1", gigabyte=1e9),),
        energy_price=3.6e6,
    )
    found = simulate(plan, topology, GRAPH, job=JOB, prices=table)
    busy = {use.device: use.busy_seconds for use in found.devices}
    joules = 100 * busy["d0"] + 10 * (found.seconds - busy["d0"]) + 50 * (busy["d1"] + busy["d2"])
    assert found.bill.joules == pytest.approx(joules)
    assert found.bill.energy == pytest.approx(joules)
    assert found.bill.rent == pytest.approx(found.seconds / 1000)
    east = {"d0", "d2"}
    assert found.bill.traffic == pytest.approx(
        sum(link.sent_bytes for link in found.links if link.source in east and link.target not in east)
    )
    assert found.to_dict()["bill"]["total"] == pytest.approx(found.bill.total)
