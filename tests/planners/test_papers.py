"""``dtfm``, ``kernighan_lin`` and ``hybrid_ps`` as planners: grids and clusters become plans with replicas."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.cluster import Device, Topology
from farflung.errors import PlanError
from farflung.graph.builder import GraphBuilder
from farflung.job.spec import JobSpec, PlanSpec
from farflung.plan import Plan, check_plan, estimate
from farflung.planners import assign_grid, get_planner, papers
from farflung.planners.replicated import shares
from farflung.units import Bytes, FlopsPerSecond

GRIDS = ("grid", "dtfm", "kernighan_lin", "random_grid")
PAPERS = (*GRIDS, "hybrid_ps")


def chain(widths, rows=32):
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (rows, widths[0]))
    for i in range(len(widths) - 1):
        value = builder.add(f"fc{i}", "Linear", value, in_features=widths[i], out_features=widths[i + 1])
        value = builder.add(f"act{i}", "GELU", value)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (rows, widths[-1])))
    return builder.build()


GRAPH = chain((32, 64, 16, 128, 32, 64, 16))
JOB = JobSpec(micro_batch_sizes=(8, 8, 8, 4))


def network(seed, count, memory=1e9, unreliable=0):
    random = np.random.default_rng(seed)
    devices = [
        Device(name=f"d{i}", memory=Bytes(memory), speed=FlopsPerSecond(random.uniform(1e8, 2e9)), reliable=i >= unreliable)
        for i in range(count)
    ]
    beta, alpha = random.choice([1e5, 1e6, 1e8], (count, count)), random.choice([1e-4, 1e-2], (count, count))
    return Topology.from_matrices(np.minimum(alpha, alpha.T), np.minimum(beta, beta.T), devices)


@pytest.mark.parametrize("name", PAPERS)
@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 6), workers=st.none() | st.integers(1, 6))
def test_plans_tile_fit_and_are_repeatable(name, seed, count, workers):
    topology, job = network(seed, count), JOB.model_copy(update={"workers": workers, "seed": seed})
    plan = get_planner(name).plan(GRAPH, topology, job=job)
    check_plan(plan, GRAPH, topology, job)
    assert estimate(GRAPH, plan, topology, job).feasible
    assert plan.planner == name
    assert len(plan.devices) <= min(count, workers or count)
    assert Plan.from_json(plan.to_json()) == plan
    assert get_planner(name).plan(GRAPH, topology, job=job) == plan


@pytest.mark.parametrize("name", GRIDS)
def test_grids_use_every_device_and_keep_the_shape_that_a_job_wants(name):
    topology = Topology.preset("homogeneous-6")
    free = get_planner(name).plan(GRAPH, topology, job=JOB)
    assert len(free.devices) == 6
    held = get_planner(name).plan(GRAPH, topology, job=JOB.model_copy(update={"plan": PlanSpec(replicas=2)}))
    assert [len(stage.devices) for stage in held.stages] == [2, 2, 2]


@pytest.mark.parametrize(("name", "evaluations"), [("dtfm", 5000), ("kernighan_lin", 5000), ("grid", 400)])
def test_the_best_shape_is_searched_in_full(monkeypatch, name, evaluations):
    """The paper's genetic search has 5,000 evaluations, 100 of which are its random population."""
    given = []

    def recording(topology, **options):
        given.append((options["method"], options["evaluations"]))
        return assign_grid(topology, **{**options, "evaluations": 10})

    monkeypatch.setattr(papers, "assign_grid", recording)
    get_planner(name).plan(GRAPH, Topology.preset("homogeneous-4"), job=JOB)
    method = "search" if name == "grid" else name
    assert (method, evaluations) in given


def test_grid_takes_a_plain_order_where_the_cheapest_grid_is_the_slower_step(monkeypatch):
    """Cost (1) ignores computing, so the least cost may be a slower step than the order of the topology."""
    topology, job = Topology.preset("local4-two-regions"), JOB.model_copy(update={"plan": PlanSpec(replicas=2)})
    crossing = ((0, 2), (1, 3))  # replicas in different regions send gradients over the slow link
    graph = chain((64,) * 5, rows=1)

    def misled(part, **options):
        return replace(assign_grid(part, **options), devices=crossing)

    steps = {}
    for name in ("dtfm", "grid"):
        monkeypatch.setattr(papers, "assign_grid", misled)
        steps[name] = estimate(graph, get_planner(name).plan(graph, topology, job=job), topology, job).step_seconds
    assert steps["grid"] < 0.5 * steps["dtfm"]


def test_where_no_grid_fits_a_plan_is_found_all_the_same():
    """Two devices of four are too small for any part, so no grid of equal parts has room for all four."""
    large = network(3, 2, memory=1e9)
    tiny = network(4, 4, memory=1e3)
    topology = tiny.with_devices([*large.devices, *tiny.devices[2:]])
    for name in GRIDS:
        plan = get_planner(name).plan(GRAPH, topology, job=JOB)
        assert set(plan.devices) <= {"d0", "d1"}
        assert plan.planner == name


def test_the_baseline_without_a_scheduler_is_a_grid_at_random():
    """Equal stages and replicas, placed at random: its cost is that of chance, and another seed gives another grid."""
    topology, job = Topology.preset("dtfm-case5"), JOB.model_copy(update={"plan": PlanSpec(replicas=2)})
    plans = [
        get_planner("random_grid").plan(GRAPH, topology, job=job.model_copy(update={"seed": seed, "workers": 8}))
        for seed in (1, 2)
    ]
    assert plans[0].bounds == plans[1].bounds
    assert [stage.devices for stage in plans[0].stages] != [stage.devices for stage in plans[1].stages]


def test_hybrid_ps_has_clusters_of_its_own_size():
    with pytest.raises(
        PlanError, match=r"plan.replicas = 2, but hybrid_ps makes stages of as many devices as their clusters have"
    ):
        get_planner("hybrid_ps").plan(GRAPH, network(1, 4), job=JOB.model_copy(update={"plan": PlanSpec(replicas=2)}))


@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_stage_has_as_many_devices_as_micro_batches(count):
    job = JobSpec(micro_batch_sizes=(4,) * count)
    plan = get_planner("hybrid_ps").plan(GRAPH, Topology.preset("homogeneous-16"), job=job)
    assert [len(stage.devices) for stage in plan.stages] == [count]


def test_the_first_member_and_the_fastest_others_share_a_stage():
    """The primary of a stage may be slower than its clients, and stays."""
    topology = Topology.preset("homogeneous-4")
    speeds = {0: 1.0, 1: 2.0, 2: 4.0, 3: 3.0}
    devices = [
        replace(d, speed=FlopsPerSecond(speeds[i] * float(d.speed)), reliable=i == 0) for i, d in enumerate(topology.devices)
    ]
    plan = get_planner("hybrid_ps").plan(GRAPH, topology.with_devices(devices), job=JobSpec(micro_batch_sizes=(4,) * 3))
    assert plan.stages[0].devices == ("device-0", "device-2", "device-3")


def test_hybrid_ps_leaves_out_clients_that_do_not_fit():
    """The reliable devices alone have the memory, as the eight V100 have it for GPT2-XL in cases 3 and 4 of the paper."""
    graph = chain((64,) * 9, rows=4)
    alone = get_planner("equal_compute").plan(graph, Topology.preset("homogeneous-2"), job=JOB)
    need = max(device.memory_bytes for device in estimate(graph, alone, Topology.preset("homogeneous-2"), JOB).devices)
    base = network(5, 4, memory=1.5 * need, unreliable=2)
    small = [replace(d, memory=Bytes(float(d.memory) if d.reliable else 0.2 * need)) for d in base.devices]
    plan = get_planner("hybrid_ps").plan(graph, base.with_devices(small), job=JOB)
    assert set(plan.devices) <= {"d2", "d3"}


def test_hybrid_ps_takes_unreliable_devices_where_the_reliable_ones_lack_memory():
    """Llama-7B in cases 3 and 4 of the paper: eight V100 do not hold it, with one RTX 2080 they do."""
    graph, job = chain((256,) * 10, rows=1), JOB.model_copy(update={"micro_batch_sizes": (1,) * 2})
    three = get_planner("equal_compute").plan(graph, Topology.preset("homogeneous-3"), job=job)
    need = max(device.memory_bytes for device in estimate(graph, three, Topology.preset("homogeneous-3"), job).devices)
    topology = network(5, 3, memory=1.1 * need, unreliable=1)
    reliable = topology.select([device.name for device in topology.devices if device.reliable])
    with pytest.raises(PlanError, match="it lacks"):
        get_planner("op_fence").plan(graph, reliable, job=job)
    plan = get_planner("hybrid_ps").plan(graph, topology, job=job)
    assert set(plan.devices) == set(topology.names)


def test_hybrid_ps_gives_unreliable_devices_no_home():
    topology = network(1, 5, unreliable=2)
    plan = get_planner("hybrid_ps").plan(GRAPH, topology, job=JOB)
    assert not {"d0", "d1"} & {stage.device for stage in plan.stages}
    none = topology.with_devices([replace(device, reliable=False) for device in topology.devices])
    with pytest.raises(PlanError, match="needs a reliable device for each stage, and none is"):
        get_planner("hybrid_ps").plan(GRAPH, none, job=JOB)


@pytest.mark.parametrize("name", PAPERS)
def test_what_cannot_fit_names_the_lack(name):
    with pytest.raises(PlanError, match=r"it lacks|no number of stages"):
        get_planner(name).plan(GRAPH, network(1, 2, memory=1e4), job=JOB)


def test_a_norm_with_running_statistics_has_no_replicas():
    builder = GraphBuilder("norm")
    value = builder.input("x", "float32", (8, 3, 8, 8))
    for i, (here, there) in enumerate(((3, 4), (4, 4))):
        value = builder.add(f"conv{i}", "Conv2d", value, in_channels=here, out_channels=there, kernel_size=3, padding=1)
        value = builder.add(f"norm{i}", "BatchNorm2d", value, num_features=there)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (8, 4, 8, 8)))
    graph = builder.build()
    for name in PAPERS:
        assert not get_planner(name).plan(graph, Topology.preset("homogeneous-2"), job=JOB).replicated


def test_values_between_two_and_three_equal_servers_are_cut_evenly_by_index():
    """Hybrid-PS section 3.1: 2/3 | 1/3 and 1/3 | 2/3 of what each of the two sends."""
    job = JobSpec(micro_batch_sizes=(1,) * 6)
    before, after = shares([1.0] * 2, job), shares([1.0] * 3, job)
    sent = Counter(
        (source, target)
        for index in range(6)
        for source, (first, end) in enumerate(before)
        if first <= index < end
        for target, (start, stop) in enumerate(after)
        if start <= index < stop
    )
    assert sent == {(0, 0): 2, (0, 1): 1, (1, 1): 1, (1, 2): 2}
