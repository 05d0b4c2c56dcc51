"""What strategies hide behind computing is in the price of a plan, as equation (7) has it."""

from dataclasses import replace

import numpy as np
import pytest

from farflung.api.planning import judge
from farflung.cluster import Device, Topology
from farflung.job import make_job
from farflung.job.spec import SyncSpec
from farflung.plan import Plan, estimate
from farflung.plan.overlap import hidden_share
from farflung.plan.synchronization import strategy_of, world_of
from farflung.planners import get_planner
from farflung.planners.auto import Auto, AutoSettings
from farflung.sync import timeline
from farflung.units import Bytes, FlopsPerSecond, Seconds
from tests.support.plans.chains import chain

GRAPH = chain((256,) * 7, rows=4)
LATENCY = 1e-9


def topology(rate=2e7):
    devices = [Device(name=f"d{i}", memory=Bytes(1e9), speed=FlopsPerSecond(1e8)) for i in range(2)]
    return Topology.from_matrices(np.full((2, 2), LATENCY), np.full((2, 2), rate), devices)


def job(strategy, **given):
    sync = {"strategy": strategy, "settings": given}
    return make_job({"micro_batch_sizes": [4] * 4, "plan": {"replicas": 2, "planner": "equal_compute"}, "sync": sync})


def planned(rate, strategy, **given):
    spec, where = job(strategy, **given), topology(rate)
    return get_planner("equal_compute").plan(GRAPH, where, job=spec), where, spec


CASES = [
    ("ssgd", {}),
    ("wfbp", {}),
    ("local_sgd", {"sync_every": 3}),
    ("contiguous", {"sync_every": 3}),
    ("dreamddp", {"sync_every": 2}),
    ("delayed", {}),
    ("lgreco", {"codec": "int8"}),
    ("fedbuff", {"sync_every": 3, "overlap": 1}),
    ("fedfix", {"sync_every": 3, "overlap": 2}),
    ("fedcompass", {"sync_every": 3}),
]


@pytest.mark.parametrize("rate", [2e6, 2e7, 2e9])
@pytest.mark.parametrize(("strategy", "given"), CASES)
def test_a_step_takes_as_long_as_on_the_clock_of_the_strategy(rate, strategy, given):
    plan, where, spec = planned(rate, strategy, **given)
    found = estimate(GRAPH, plan, where, spec)
    stage = found.replicas[0]
    computing = 2 * (stage.forward_seconds + stage.backward_seconds)
    before = computing - sum(layer.bp_seconds for layer in plan.sync.layers[0])
    period = given.get("sync_every", 1)
    spans = timeline(strategy_of(plan), world_of(plan, GRAPH, spec, 0), 2 * period, forward_seconds=before)
    mean = (spans[-1].end - spans[period - 1].end) / period  # the first period waits for no earlier one
    assert found.step_seconds == pytest.approx(mean + stage.update_seconds, rel=0.03)
    share = hidden_share(plan, GRAPH, spec, 0, [computing, computing])
    assert [exchange.hidden for exchange in found.exchanges] == [share * exchange.nbytes for exchange in found.exchanges]
    if strategy in ("ssgd", "local_sgd", "fedcompass"):
        assert share == 0.0
    elif rate == 2e9:
        assert share > 0.3
    # the simulator sends all bytes and agrees on the time
    judged = judge(GRAPH, where, spec)(plan)
    assert judged.step_seconds == pytest.approx(found.step_seconds, rel=0.05)
    assert judged.exchange_bytes == found.exchange_bytes


def test_all_that_is_exchanged_counts_as_bytes_whatever_is_hidden():
    plan, where, spec = planned(2e7, "contiguous", sync_every=3)
    plain, _, other = planned(2e7, "local_sgd", sync_every=3)
    assert estimate(GRAPH, plan, where, spec).exchange_bytes == estimate(GRAPH, plain, where, other).exchange_bytes
    assert estimate(GRAPH, plan, where, spec).step_seconds < estimate(GRAPH, plain, where, other).step_seconds


def test_auto_takes_the_strategy_that_hides_more():
    syncs = tuple(SyncSpec(strategy=name, settings={"sync_every": 3}) for name in ("local_sgd", "contiguous"))
    spec = make_job({"micro_batch_sizes": [4] * 4, "plan": {"replicas": 2}})
    auto = Auto(AutoSettings(evaluations=24, syncs=syncs, members=("equal_compute",)))
    plan = auto.plan(GRAPH, topology(), job=spec)
    assert plan.sync is not None
    assert plan.sync.strategy == "contiguous"


def test_a_period_that_is_too_long_to_look_at_hides_nothing():
    plan, _, spec = planned(2e7, "co2", sync_every=2000)
    assert hidden_share(plan, GRAPH, spec, 0, [1.0, 1.0]) == 0.0


def test_layers_have_the_latency_and_the_overhead_that_were_measured():
    """Before the first schedule: seconds of a backward with what each operator costs, and the latency to a server and back."""
    where = topology()
    slow = [replace(device, overhead=Seconds(0.01)) for device in where.devices]
    far = Topology.from_matrices(np.full((2, 2), 0.25), np.full((2, 2), 2e7), slow)
    spec = job("dreamddp", sync_every=3)
    near, away = (get_planner("equal_compute").plan(GRAPH, each, job=spec) for each in (where, far))
    for plain, measured in zip(near.sync.layers[0], away.sync.layers[0], strict=True):
        assert measured.latency_seconds == pytest.approx(0.5)
        assert measured.bp_seconds >= plain.bp_seconds + 0.01
        assert measured.comm_seconds == plain.comm_seconds
    assert Plan.from_json(away.to_json()) == away
    assert world_of(away, GRAPH, spec, 0).layers[0].latency == pytest.approx(0.5)
