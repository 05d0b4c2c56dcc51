"""Where memory is tight: if any plan fits, one is found; shares in pieces take less; and what fits is what the simulator says."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.cluster import Device, Topology
from farflung.cost import ALLOCATOR
from farflung.errors import PlanError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec, OptimizerSpec, PlanSpec
from farflung.plan import estimate
from farflung.planners import get_planner
from farflung.planners.auto import Auto, AutoSettings
from farflung.planners.chain_dp import Chain
from farflung.planners.finish import Problem, finish
from farflung.planners.fitting import _sizes, fitting_orders
from farflung.planners.pieces import Pieces, in_pieces, piece_bytes
from farflung.simulator import simulate
from farflung.units import Bytes, FlopsPerSecond
from tests.support.plans.chains import chain

GRAPH = chain((48, 96, 32, 128, 64))
#: Whose activations take more than its parameters.
LONG = chain((32,) * 9, rows=512)
JOB = JobSpec(micro_batch_sizes=(8, 8, 8), optimizer=OptimizerSpec(name="adamw"))


def network(memories: list[float], rate: float = 1e6) -> Topology:
    count = len(memories)
    devices = [Device(name=f"d{i}", memory=Bytes(m), speed=FlopsPerSecond(1e8 * (i + 1))) for i, m in enumerate(memories)]
    return Topology.from_matrices(np.full((count, count), 1e-3), np.full((count, count), rate), devices)


def problem_of(topology: Topology, job: JobSpec = JOB, graph: Graph = GRAPH) -> Problem:
    plain = job.model_copy(update={"plan": job.plan.model_copy(update={"schedule": "1f1b"})})
    return Problem.of(graph, topology, plain)


def any_fits(topology: Topology, job: JobSpec) -> bool:
    """Every order of every set of devices, and every way to cut."""
    problem = problem_of(topology, job)
    positions = [int(position) for position in Chain(problem).positions]
    for count in range(1, min(len(topology), len(positions) - 1) + 1):
        for order in permutations(topology.names, count):
            for inner in combinations(positions[1:-1], count - 1):
                ends = (0, *inner, positions[-1])
                placed = [(ends[i], ends[i + 1], name) for i, name in enumerate(order)]
                if finish(problem, placed, "brute").estimate.feasible:
                    return True
    return False


@settings(deadline=None, max_examples=25)
@given(
    memories=st.lists(st.floats(5e4, 4.5e5), min_size=1, max_size=3),
    wish=st.sampled_from(["auto", "never", "always"]),
    planner=st.sampled_from(["op_fence", "auto"]),
    state=st.sampled_from(["float32", "8bit"]),
)
def test_if_any_plan_fits_one_is_found(memories: list[float], wish: str, planner: str, state: str) -> None:
    optimizer = OptimizerSpec(name="adamw", state=state)
    topology, job = network(memories), JOB.model_copy(update={"plan": PlanSpec(recompute=wish), "optimizer": optimizer})
    chosen = Auto(AutoSettings(evaluations=2)) if planner == "auto" else get_planner(planner)
    try:
        plan = chosen.plan(GRAPH, topology, job=job)
    except PlanError:
        assert not any_fits(topology, job)
        return
    for use in simulate(plan, topology, GRAPH, job=job).devices:
        assert use.memory_bytes <= use.memory_limit * (1 + 1e-9)


def test_what_the_update_of_a_parameter_takes_counts_where_stages_are_cut() -> None:
    graph, topology = chain((256,) * 7, rows=4), network([4e6, 2e6, 4e6], rate=1e9)
    optimizer, never = OptimizerSpec(name="adamw", state="8bit"), PlanSpec(schedule="1f1b", recompute="never")
    job = JobSpec(micro_batch_sizes=(4,) * 8, optimizer=optimizer, plan=never)
    plan = get_planner("op_fence").plan(graph, topology, job=job)
    assert estimate(graph, plan, topology, job).feasible


def test_only_one_order_of_the_devices_fits() -> None:
    """The draws above hold such cases: here is one, in which communities and sizes give no hint."""
    needs = Chain(problem_of(network([1e9, 1e9, 1e9])))
    flying = [needs.least_memory("cpu", k) for k in (3, 2, 1)]
    a, b = 2, 4
    memories = [float(flying[0][0, a]), float(flying[1][a, b]), float(flying[2][b, -1])]
    topology = network([memories[2], memories[0], memories[1]])
    assert (1, 2, 0) in list(fitting_orders(Chain(problem_of(topology)), 3))
    assert get_planner("op_fence").plan(GRAPH, topology, job=JOB).devices


def test_sizes_of_very_many_unequal_devices_are_joined_to_the_smaller() -> None:
    topology = network([1e5 * (1 + i / 40) for i in range(40)])
    sizes = _sizes(topology)
    assert np.prod([len(size.members) + 1 for size in sizes]) <= 1024
    assert sorted(i for size in sizes for i in size.members) == list(range(40))
    for size in sizes:
        assert size.memory == min(float(topology.devices[i].memory) for i in size.members)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**9))
def test_pieces_are_cut_where_the_largest_is_least(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n = int(draw.integers(3, 8))
    upper = np.triu(np.ones((n, n), dtype=bool), 1)
    one = Pieces(*(np.where(upper, draw.integers(1, 50, (n, n)).astype(float), np.inf) for _ in range(2)), np.zeros((n, n)))
    found = piece_bytes(one, 2)
    for a, b in combinations(range(n), 2):
        ways = [(one.always[a, c] + one.always[c, b] + max(one.again[a, c], one.again[c, b]), c) for c in range(a + 1, b)]
        assert found[a, b] == min(ways, default=(np.inf, 0))[0]
        if ways:
            ends = in_pieces(one, (a, b), 2)
            assert [ends[0], ends[-1], len(ends)] == [a, b, 3]
            assert (found[a, b], ends[1]) in ways
    four = in_pieces(one, (0, n - 1), 4)
    assert four == sorted(set(four))
    assert 3 <= len(four) <= 5


def test_a_device_with_shares_in_pieces_needs_the_largest_second_forward_only() -> None:
    """What estimate and simulator count is one stage's at a time; so a device that is too small for its share in one holds it."""
    job = JOB.model_copy(update={"plan": PlanSpec(recompute="always", schedule="1f1b")})
    topology = network([1e9])
    problem = problem_of(topology, job, LONG)
    end = len(LONG.ops)
    middle = int(Chain(problem).positions[9])
    whole, parts = (finish(problem, placed, "x") for placed in ([(0, end, "d0")], [(0, middle, "d0"), (middle, end, "d0")]))
    held = parts.estimate.devices[0].memory_bytes
    again = [stage.again_bytes for stage in parts.estimate.stages]
    assert held == pytest.approx(sum(stage.memory_bytes for stage in parts.estimate.stages) - ALLOCATOR * min(again))
    assert held < whole.estimate.devices[0].memory_bytes
    for draft in (whole, parts):
        [use] = simulate(draft.plan, topology, LONG, job=job).devices
        assert use.memory_bytes <= draft.estimate.devices[0].memory_bytes * (1 + 1e-9)
    small = topology.with_devices([replace(topology.devices[0], memory=Bytes(held))])
    plan = get_planner("op_fence").plan(LONG, small, job=job)
    assert len(plan.stages) > 1
    assert plan.devices == ("d0",)


def test_what_can_never_fit_is_refused_without_a_search() -> None:
    assert not Chain(problem_of(network([1e4, 1e4]))).possible()
    with pytest.raises(PlanError, match="needs"):
        get_planner("op_fence").plan(GRAPH, network([1e4, 1e4]), job=JOB)
