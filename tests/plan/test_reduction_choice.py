"""Sums in any order in plans: chosen by links, estimated by rounds, told to people."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from farflung.broker.planning import plan_run
from farflung.cluster import Topology
from farflung.graph.cut import cut
from farflung.job import JobSpec, make_job
from farflung.messages.submission import Bundle
from farflung.plan import estimate
from farflung.plan.estimation.stage_memory import sync_copies
from farflung.plan.reduction_choice import with_reductions
from farflung.plan.synchronization import sync_lines
from farflung.plan.traffic import gradient_bytes
from farflung.planners import get_planner
from farflung.sync import get_strategy
from farflung.sync.reductions import Reduction
from tests.support.plans.hand_plans import chain, topology
from tests.support.plans.hand_replicas import GRAPH, alone

JOB = make_job({"micro_batch_sizes": [4] * 4, "plan": {"replicas": 3, "planner": "equal_compute"}, "sync": {"order": "any"}})
EXACT = JOB.model_copy(update={"sync": JOB.sync.model_copy(update={"order": "job"})})
PIECES = cut(GRAPH, [(0, len(GRAPH.ops))])
BYTES = gradient_bytes(GRAPH, PIECES[0])


def ringed(slow: float = 1e5, fast: float = 1e7) -> Topology:
    """Three devices; only d0 -> d1 -> d2 -> d0 is fast."""
    beta = np.where(np.eye(3, k=1) + np.eye(3, k=-2), fast, slow)
    return Topology.from_matrices(np.full((3, 3), 0.01), beta, topology().devices)


def test_the_way_round_is_chosen_counted_and_told() -> None:
    plan = get_planner("equal_compute").plan(GRAPH, ringed(), job=JOB)
    (stage,) = plan.stages
    assert stage.adds == Reduction(by="ring", toward=(1, 2, 0))
    found, exact = (
        estimate(GRAPH, replace(plan, stages=(replace(stage, adds=adds),)), ringed(), JOB) for adds in (stage.adds, None)
    )
    assert found.exchange_bytes == pytest.approx(2 * 2 * BYTES)
    assert exact.exchange_bytes == 5 * BYTES  # three parts to d0, which serves this one bucket, and two totals
    slow = [len(e.after) for e in exact.exchanges if (e.source, e.target) in {(1, 0), (0, 2)}]
    assert exact.step_seconds - found.step_seconds > sum(max(1, count) for count in slow) * BYTES / 1e5 - 1.0
    text = plan_run(Bundle(run="r", job=JOB, graphs={4: chain()}), ringed()).explanation
    assert "stage 0: 3 replicas sum 786 kB by a ring d0 -> d1 -> d2 -> d0 in 145 ms (alternatives: sharded servers 5.26 s" in text
    assert "order = any: sums differ by rounding from plan to plan" in text
    assert "replicas sum" not in plan_run(Bundle(run="r", job=EXACT, graphs={4: chain()}), ringed()).explanation


def test_what_waits_counts_as_memory() -> None:
    plan = alone(("d0", 0, 1), ("d1", 1, 2), ("d2", 2, 4))
    ways = {
        "server": Reduction(),
        "ring": Reduction(by="ring", toward=(1, 2, 0)),
        "tree": Reduction(by="tree", toward=(2, 2, -1)),
    }
    memory = {}
    for name, adds in ways.items():
        stage = replace(plan.stages[0], adds=adds)
        memory[name] = estimate(GRAPH, replace(plan, stages=(stage,)), topology(), JOB).replicas[0].memory["exchange"]
    assert memory == {name: pytest.approx(BYTES * part) for name, part in {"server": 5 / 3, "ring": 5 / 3, "tree": 3.0}.items()}


@pytest.mark.parametrize(
    "by", [Reduction(), Reduction(by="ring", toward=(1, 2, 0)), Reduction(by="tree", toward=(1, -1, 1), turns=2)]
)
def test_simulation_and_dry_run_agree(by: Reduction) -> None:
    from farflung.simulator import SimulationSettings, Simulator

    plan = alone(("d0", 0, 1), ("d1", 1, 2), ("d2", 2, 4))
    plan = replace(plan, stages=(replace(plan.stages[0], adds=by),))
    simulated = Simulator(GRAPH, ringed(), JOB, SimulationSettings(frame_bytes=0.0)).run(plan).step_seconds
    assert simulated == pytest.approx(estimate(GRAPH, plan, ringed(), JOB).step_seconds, rel=0.02)


def test_plans_without_replicas_and_exact_jobs_stay_as_they_are() -> None:
    single, several = alone(("d0", 0, 4)), alone(("d0", 0, 2), ("d1", 2, 4))
    assert with_reductions(single, GRAPH, PIECES, topology(), JOB) is single
    assert with_reductions(several, GRAPH, PIECES, topology(), EXACT) is several
    assert with_reductions(several, GRAPH, PIECES, topology(), JOB).stages[0].adds == Reduction()


def test_strategies_say_which_layers_leave_in_which_step() -> None:
    sync = {"strategy": "free_sets", "settings": {"sync_every": 2}}
    job: JobSpec = make_job({"micro_batch_sizes": [4] * 4, "plan": {"replicas": 2, "planner": "equal_compute"}, "sync": sync})
    plan = get_planner("equal_compute").plan(GRAPH, topology(count=2), job=job)
    head, first, second, note = "\n".join(sync_lines(plan, GRAPH, job)).splitlines()
    assert head == "stage 0, 2 replicas: free_sets: exchanges parameters, codec identity"
    assert first.startswith("step 0: layer")
    assert second.startswith("step 1: layer")
    assert {name for line in (first, second) for name in ("fc0", "fc1", "fc2") if name in line} == {"fc0", "fc1", "fc2"}
    assert "only the backward of the last one" in note
    assert sync_lines(alone(("d0", 0, 2), ("d1", 2, 4)), GRAPH, JOB) == []


def test_a_strategy_is_priced_by_its_own_period_and_codec() -> None:
    """Settings that a job leaves out count as the strategy takes them, here and in the quick price of auto."""

    def sent(**sync: object) -> float:
        job: JobSpec = make_job({"micro_batch_sizes": [4] * 4, "plan": {"replicas": 2, "planner": "equal_compute"}, "sync": sync})
        plan = get_planner("equal_compute").plan(GRAPH, topology(count=2), job=job)
        return sum(exchange.nbytes for exchange in estimate(GRAPH, plan, topology(count=2), job).exchanges)

    every = sent(strategy="local_sgd", settings={"sync_every": 1})
    assert sent(strategy="local_sgd") == pytest.approx(every / 5)
    assert sent(strategy="local_sgd") == sent(strategy="local_sgd", settings={"sync_every": 5})
    assert sent(strategy="diloco") < sent(strategy="diloco", settings={"sync_every": 10})
    assert sent(strategy="streaming_diloco") < 0.5 * sent(strategy="streaming_diloco", settings={"codec": "identity"})
    assert sync_copies(get_strategy("local_sgd").traits, 2) == 0.05
    assert sync_copies(get_strategy("diloco").traits, 2) > 1.0


def test_the_lines_of_a_strategy_count_what_its_codec_leaves() -> None:
    plans = {}
    for codec in ("identity", "int8", "topk:ratio=10,values=int4"):
        sync = {"strategy": "ssgd", "settings": {"codec": codec}}
        job: JobSpec = make_job({"micro_batch_sizes": [4] * 4, "plan": {"replicas": 3, "planner": "equal_compute"}, "sync": sync})
        plan = get_planner("equal_compute").plan(GRAPH, topology(count=3), job=job)
        plans[codec] = plan, job
        assert plan.sync is not None
        sent = sum(layer.comm_seconds for layer in plan.sync.layers[0])
        assert sent == pytest.approx(estimate(GRAPH, plan, topology(count=3), job).replica_bytes / 6 / 1e6, rel=0.02)
    told = {codec: "\n".join(sync_lines(plan, GRAPH, job)) for codec, (plan, job) in plans.items()}
    assert "524 ms on the link" in told["identity"], "two thirds of three layers of 256 kB over 1 MB/s"
    assert "200 ms on the link" in told["int8"], "member by member, a quarter and scales"
    assert "23 ms on the link" in told["topk:ratio=10,values=int4"]
