"""The exact dynamic program against brute force: every way to cut, priced by a formula of its own (``bench.chain``)."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning.chain import ChainBench, Instance
from farflung.cluster import Device, Topology
from farflung.graph.builder import GraphBuilder
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec, PlanSpec
from farflung.planners.chain_cuts import SlotParts, best_pace, best_total
from farflung.planners.chain_dp import Chain
from farflung.planners.chain_exact import exact_cuts
from farflung.planners.finish import Problem
from farflung.units import Bytes, FlopsPerSecond


def chain_of_layers(widths: list[int]) -> Graph:
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (16, widths[0]))
    for i, (width, after) in enumerate(pairwise(widths)):
        value = builder.add(f"fc{i}", "Linear", value, in_features=width, out_features=after)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (16, widths[-1])))
    return builder.build()


def test_three_hundred_random_instances_equal_brute_force() -> None:
    infeasible = several = 0
    for seed in range(300):
        given_ = Instance.drawn(seed)
        best = given_.brute()
        found = given_.exact()
        if math.isinf(best):
            assert found is None, seed
            infeasible += 1
            continue
        assert found is not None, seed
        cuts, seconds = found
        several += len(cuts) > 3
        assert seconds == pytest.approx(best, rel=1e-12), seed
        assert given_.seconds(tuple(cuts)) == pytest.approx(best, rel=1e-12), seed
    assert 20 < infeasible < 150  # the draws are neither all easy nor all impossible
    assert several > 100


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**9))
def test_a_known_plan_prunes_and_never_hides_the_optimum(seed: int) -> None:
    given_ = Instance.drawn(seed)
    best = given_.brute()
    if math.isinf(best):
        return
    tables = given_.tables()
    for known in (best, best * 1.3):
        found = exact_cuts(tables, given_.flying, given_.micro_batches, known)
        assert found is not None
        assert found[1] == pytest.approx(best, rel=1e-12)
    assert exact_cuts(tables, given_.flying, given_.micro_batches, best * 0.999) is None


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 4), wish=st.sampled_from(["auto", "never"]))
def test_chains_of_operators_reach_the_optimum_of_their_tables(seed: int, count: int, wish: str) -> None:
    draw = np.random.default_rng(seed)
    graph = chain_of_layers(draw.integers(8, 96, size=8).tolist())
    devices = [
        Device(name=f"d{i}", memory=Bytes(draw.uniform(1e5, 6e5)), speed=FlopsPerSecond(draw.uniform(1e8, 2e9)))
        for i in range(count)
    ]
    beta = draw.choice([1e5, 1e6, 1e8], (count, count))
    topology = Topology.from_matrices(draw.choice([1e-4, 1e-2], (count, count)), beta, devices)
    job = JobSpec(micro_batch_sizes=(16,) * 5, plan=PlanSpec(recompute=wish))
    chain = Chain(Problem.of(graph, topology, job))
    order = draw.permutation(count).tolist()
    found, quick = chain.optimum(order), chain.solve(order)
    slots = chain.slots(order)
    parts = [chain.parts(j, slots) for j in range(count)]
    ends = len(chain.positions) - 1
    every = [chain.step_seconds(parts, (0, *inner, ends))[1] for inner in combinations(range(1, ends), count - 1)]
    best = min(every)
    assert (found is None) == (quick is None) == bool(np.isinf(best))
    if found is not None and quick is not None:
        assert found.seconds == pytest.approx(best, rel=1e-12)
        assert quick.seconds >= found.seconds * (1 - 1e-12)
        assert [device for _, _, device in found.placed] == [f"d{i}" for i in order]


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 4), rate=st.floats(1.0, 100.0), latency=st.floats(0.0, 1.0))
def test_a_faster_link_never_makes_the_optimum_worse(seed: int, count: int, rate: float, latency: float) -> None:
    draw = np.random.default_rng(seed)
    graph = chain_of_layers(draw.integers(8, 96, size=8).tolist())
    devices = [Device(name=f"d{i}", memory=Bytes(1e9), speed=FlopsPerSecond(draw.uniform(1e8, 2e9))) for i in range(count)]
    alpha, beta = draw.choice([1e-4, 1e-2], (count, count)), draw.choice([1e5, 1e6, 1e8], (count, count))
    order = draw.permutation(count).tolist()
    i, j = draw.permutation(count)[:2]
    seconds = []
    for _ in range(2):
        topology = Topology.from_matrices(alpha, beta, devices)
        found = Chain(Problem.of(graph, topology, JobSpec(micro_batch_sizes=(16,) * 5))).optimum(order)
        assert found is not None
        seconds.append(found.seconds)
        alpha, beta = alpha.copy(), beta.copy()
        alpha[i, j] *= latency
        beta[i, j] *= rate
    assert seconds[1] <= seconds[0] * (1 + 1e-12)


def test_the_bench_counts_what_is_equal() -> None:
    bench = ChainBench()
    report = bench.run(bench.settings(quick=True), lambda text: None)
    assert report.figures["equal"] == report.figures["instances"] == 20
    assert report.passed is None


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**9), slack=st.sampled_from([1.0, 1.1, 2.0, math.inf]))
def test_pace_and_total_are_the_least_of_all_cuts(seed: int, slack: float) -> None:
    """Windows and bounds leave nothing out: memory that does not grow with a stage included."""
    draw = np.random.default_rng(seed)
    n, stages = int(draw.integers(2, 9)), int(draw.integers(1, 5))
    if stages >= n:
        return
    parts = []
    for _ in range(stages):
        compute = np.where(draw.random((n, n)) < 0.2, np.inf, draw.integers(1, 9, (n, n)).astype(float))
        compute[np.tril_indices(n)] = np.inf
        wire, way = draw.integers(0, 6, n).astype(float), draw.integers(0, 6, n).astype(float)
        parts.append(SlotParts(compute, wire, way, np.minimum.accumulate(compute[:, ::-1], axis=1)[:, ::-1]))

    def priced(cuts: tuple[int, ...]) -> tuple[float, float]:
        each = [(part, a, b) for part, (a, b) in zip(parts, pairwise(cuts), strict=True)]
        pace = max(max(part.compute[a, b], part.wire[a]) for part, a, b in each)
        return float(pace), float(sum(part.compute[a, b] + part.way[a] for part, a, b in each))

    every = [priced((0, *inner, n - 1)) for inner in combinations(range(1, n - 1), stages - 1)]
    pace = min(each[0] for each in every)
    assert best_pace(parts) == pace
    if math.isfinite(pace):
        limit = pace * slack
        found = priced(tuple(best_total(parts, limit)))
        assert found[0] <= limit
        assert found[1] == min(total for its, total in every if its <= limit)
