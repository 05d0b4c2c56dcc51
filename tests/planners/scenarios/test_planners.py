"""Planners: tilings, feasibility, and op_fence against the baselines and against all possible plans."""

from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.cluster import Device, Topology
from farflung.errors import InputError, PlanError
from farflung.graph.builder import GraphBuilder
from farflung.graph.ir import StateRef
from farflung.graph.modules import module_runs
from farflung.job.spec import CodecSpec, JobSpec, PlanSpec
from farflung.plan import Plan, check_plan, estimate
from farflung.planners import get_planner, planner_names
from farflung.planners.communities import chain_orders, linkage_communities, louvain_communities
from farflung.planners.finish import Problem, finish
from farflung.units import Bytes, FlopsPerSecond
from tests.support.plans.chains import chain, network

NAMES = ("equal_number", "equal_compute", "random", "op_fence")


GRAPH = chain((32, 64, 16, 128, 32, 64, 16))
JOB = JobSpec(micro_batch_sizes=(8, 8, 8, 4))


def step_seconds(plan, topology, job=JOB, graph=GRAPH):
    return estimate(graph, plan, topology, job).step_seconds


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 5), workers=st.none() | st.integers(1, 5))
def test_plans_tile_fit_and_are_repeatable(name, seed, count, workers):
    topology = network(seed, count)
    job = JOB.model_copy(update={"workers": workers, "seed": seed})
    plan = get_planner(name).plan(GRAPH, topology, job=job)
    check_plan(plan, GRAPH, topology, job)
    assert estimate(GRAPH, plan, topology, job).feasible
    assert len(plan.devices) <= min(count, workers or count)
    assert plan.planner == name
    assert Plan.from_json(plan.to_json()) == plan
    assert get_planner(name).plan(GRAPH, topology, job=job) == plan


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 6), codec=st.sampled_from(["identity", "fp16", "adatopk"]))
def test_op_fence_is_never_predicted_slower_than_the_baselines(seed, count, codec):
    topology = network(seed, count)
    job = JOB.model_copy(update={"codec": CodecSpec(name=codec, ratio=10)})
    ours, *others = (
        step_seconds(get_planner(name).plan(GRAPH, topology, job=job), topology, job)
        for name in ("op_fence", "equal_compute", "equal_number")
    )
    assert ours <= min(others) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_op_fence_is_close_to_the_best_of_all_plans_of_three_devices(seed):
    """All orders of all subsets, all cuts at module runs: op_fence may lose 10 % to what its model does not see."""
    topology = network(seed, 3)
    graph = chain((32, 64, 16, 64, 16))
    problem = Problem.of(graph, topology, JOB)
    starts = [run.start for run in module_runs(graph)[1:]]
    best = np.inf
    for count in (1, 2, 3):
        for order in permutations(topology.names, count):
            for cuts in combinations(starts, count - 1):
                bounds = [0, *cuts, len(graph.ops)]
                placed = [(bounds[i], bounds[i + 1], order[i]) for i in range(count)]
                best = min(best, finish(problem, placed, "all").estimate.step_seconds)
    found = step_seconds(get_planner("op_fence").plan(graph, topology, job=JOB), topology, graph=graph)
    assert found <= 1.1 * best


def test_equal_number_counts_module_runs():
    graph = chain((16,) * 7)
    plan = get_planner("equal_number").plan(graph, Topology.preset("homogeneous-3"))
    runs = module_runs(graph)
    counts = [sum(stage.start <= run.start < stage.stop for run in runs) for stage in plan.stages]
    assert max(counts) - min(counts) <= 1
    assert plan.devices == ("device-0", "device-1", "device-2")


def test_equal_compute_has_the_least_largest_share():
    graph = chain((16, 16, 256, 16, 16))
    topology = Topology.preset("homogeneous-3")
    found = estimate(graph, get_planner("equal_compute").plan(graph, topology), topology)
    shares = [stage.forward_flops + stage.backward_flops for stage in found.stages]
    problem = Problem.of(graph, topology, None)
    work = problem.tables.table("cpu").forward_sum + problem.tables.table("cpu").backward_sum
    starts = [run.start for run in module_runs(graph)[1:]]
    best = min(max(work[a], work[b] - work[a], work[-1] - work[b]) for a, b in combinations(starts, 2))
    assert max(shares) == pytest.approx(best)


def test_equal_compute_cuts_where_least_crosses_among_equal_shares():
    """A norm or a sum on this side or that changes no share; before the sum and after the norm twice as much crosses."""
    builder = GraphBuilder("residual")
    value = builder.input("x", "float32", (8, 128))
    value = builder.add("in", "Linear", value, in_features=128, out_features=128)
    for i in range(6):
        inner = builder.add(f"norm{i}", "LayerNorm", value, normalized_shape=128)
        inner = builder.add(f"up{i}", "Linear", inner, in_features=128, out_features=1024)
        inner = builder.add(f"down{i}", "Linear", inner, in_features=1024, out_features=128)
        value = builder.call("add.Tensor", value, inner)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (8, 128)))
    graph = builder.build()
    for count in (2, 3, 6):
        topology = Topology.preset(f"homogeneous-{count}")
        found = estimate(graph, get_planner("equal_compute").plan(graph, topology), topology)
        assert [link.forward_dense_bytes for link in found.links] == [8 * 128 * 4] * (count - 1)
        shares = [stage.forward_flops + stage.backward_flops for stage in found.stages]
        problem = Problem.of(graph, topology, None)
        exact = (problem.cost.forward_sum + problem.cost.backward_sum)[-1] / count
        assert max(shares) <= 1.06 * exact


def regions_on_a_line(memories, links=1e6):
    """Two devices per region; the further two regions are apart, the slower their link."""
    place = np.repeat(np.arange(len(memories)), 2)
    distance = np.abs(place[:, None] - place[None, :])
    devices = [
        Device(name=f"d{i}", memory=Bytes(memories[p]), speed=FlopsPerSecond(1e9), region=f"r{p}") for i, p in enumerate(place)
    ]
    return Topology.from_matrices(np.where(distance, 1e-3, 1e-5) * (distance + 1), links / (distance + 0.01), devices)


def test_op_fence_gives_the_large_first_and_last_stages_to_devices_that_hold_them():
    """The shortest way through the regions begins and ends at devices without memory for the first and the last layer."""
    graph = chain((1024, *(64,) * 12, 1024), rows=4)
    topology = regions_on_a_line([400e3, 1.9e6, 1.9e6, 1.9e6, 1.9e6, 400e3])
    plan = get_planner("op_fence").plan(graph, topology, job=JOB)
    assert estimate(graph, plan, topology, JOB).feasible
    large = {device.name for device in topology.devices if device.memory > 1e6}
    assert {plan.stages[0].device, plan.stages[-1].device} <= large
    assert len(plan.devices) > 1


def test_op_fence_leaves_out_a_device_that_holds_no_stage():
    graph = chain((64,) * 9, rows=4)
    topology = regions_on_a_line([180e3] * 6)
    tiny = replace(topology.devices[5], memory=Bytes(1e3))
    topology = topology.with_devices([tiny if device.name == tiny.name else device for device in topology.devices])
    plan = get_planner("op_fence").plan(graph, topology, job=JOB)
    assert estimate(graph, plan, topology, JOB).feasible
    assert len(plan.devices) > 1
    assert tiny.name not in plan.devices


def test_orders_begin_and_end_at_devices_that_are_able():
    seconds = np.abs(np.arange(8.0)[:, None] - np.arange(8.0)[None, :])
    groups = tuple((i,) for i in range(8))
    assert chain_orders(groups, seconds, 1)[0] in (groups, groups[::-1])
    able = frozenset(range(1, 7))
    for few in (groups, (*groups[:1], *groups[3:5], *groups[7:])):
        begin, *_, end = chain_orders(few, seconds, 1, (able, able - {3}))[0]
        assert able >= {*begin}
        assert able - {3} >= {*end}


def test_op_fence_keeps_communities_together_and_puts_the_narrow_cut_on_the_slow_link():
    graph = chain((512, 512, 512, 8, 512, 512, 512), rows=256)
    topology = Topology.preset("local4-two-regions").select(["east-0", "west-0", "east-1", "west-1"])
    topology = topology.with_devices([replace(device, speed=FlopsPerSecond(1e8)) for device in topology.devices])
    job = JobSpec(micro_batch_sizes=(4,) * 16)
    plan = get_planner("op_fence").plan(graph, topology, job=job)
    regions = [stage.device.split("-")[0] for stage in plan.stages]
    assert regions in (["east", "east", "west", "west"], ["west", "west", "east", "east"])
    crossing = next(link for link in estimate(graph, plan, topology, job).links if link.source_device[0] != link.target_device[0])
    assert crossing.forward_dense_bytes == 256 * 8 * 4


def test_op_fence_brings_tied_parameters_home():
    tied = GraphBuilder("tied")
    value = tied.input("x", "int64", (4, 8))
    value = tied.add("table", "Embedding", value, num_embeddings=20_000, embedding_dim=64)
    for i in range(8):
        value = tied.add(f"fc{i}", "Linear", value, in_features=64, out_features=64)
    value = tied.call("linear.default", value, StateRef("table.weight"))
    tied.add("loss", "MSELoss", value, tied.label("y", "float32", (4, 8, 20_000)))
    graph = tied.build()
    plan = get_planner("op_fence").plan(graph, Topology.preset("two-laptops"), job=JOB)
    assert plan.stages[0].device == plan.stages[-1].device


def test_slow_links_make_op_fence_use_fewer_devices():
    topology = Topology.from_matrices(np.full((3, 3), 5.0), np.full((3, 3), 1e3))
    assert len(get_planner("op_fence").plan(GRAPH, topology, job=JOB).devices) == 1


@pytest.mark.parametrize("name", NAMES)
def test_devices_that_are_too_small_are_named(name):
    with pytest.raises(PlanError, match=r"device 'd\d' needs .* it lacks .*; add a device or memory"):
        get_planner(name).plan(GRAPH, network(0, 2, memory=50e3), job=JOB)


def test_memory_makes_stages_recompute():
    graph = chain((64,) * 9, rows=1024)
    job = JobSpec(micro_batch_sizes=(1,) * 8, plan=PlanSpec(schedule="1f1b", recompute="never"))
    topology = Topology.preset("homogeneous-2")
    need = max(
        device.memory_bytes
        for device in estimate(graph, get_planner("equal_number").plan(graph, topology, job=job), topology, job).devices
    )
    small = network(1, 2, memory=0.8 * need)
    with pytest.raises(PlanError, match="lacks"):
        get_planner("equal_number").plan(graph, small, job=job)
    auto = job.model_copy(update={"plan": PlanSpec(schedule="1f1b", recompute="auto")})
    plan = get_planner("equal_number").plan(graph, small, job=auto)
    assert any(stage.recompute for stage in plan.stages)
    assert all(
        stage.recompute
        for stage in get_planner("equal_number")
        .plan(graph, topology, job=job.model_copy(update={"plan": PlanSpec(recompute="always")}))
        .stages
    )


def test_communities_of_two_regions():
    topology = Topology.preset("local4-two-regions")
    assert louvain_communities(topology) == ((0, 1), (2, 3))
    assert linkage_communities(topology, 1e6) == ((0, 1), (2, 3))


def test_linkage_finds_all_regions_where_louvain_merges_some():
    topology = Topology.preset("regions-64")
    assert linkage_communities(topology, 1e7) == tuple(topology.regions.values())
    assert len(louvain_communities(topology)) <= 8


def test_unknown_planners_list_the_known_ones():
    with pytest.raises(InputError, match="unknown planner 'opfence': did you mean 'op_fence'\\? known are auto, dtfm, equal"):
        get_planner("opfence")
    assert set(planner_names()) >= set(NAMES)
