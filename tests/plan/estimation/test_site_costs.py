"""A site's ranks divide the parameters of a stage, or all have them; what they exchange takes the time that was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farflung.graph.cut import cut
from farflung.graph.ir import Graph
from farflung.graph.parameter_blocks import gathered_bytes, parameter_blocks
from farflung.job.spec import JobSpec, OptimizerSpec, SyncSpec
from farflung.plan import Estimate, Plan, estimate
from farflung.plan.estimation.cost_tables import CostTables
from farflung.plan.estimation.results import StageEstimate
from farflung.plan.estimation.site_costs import rank_seconds
from farflung.plan.model import Shard, Stage
from farflung.units import BytesPerSecond, Seconds
from tests.support.plans.chains import chain
from tests.support.plans.hand_plans import topology

LAYERS = 24
GRAPH: Graph = chain([64] * (LAYERS + 1))
#: Bytes of all parameters and of one layer's.
LAYER = 64 * 65 * 4.0
WHOLE = LAYERS * LAYER
RATE, LATENCY = 1e9, 1e-4


def planned(shard: Shard = "none", *, recompute: bool = False) -> Plan:
    stage = Stage(index=0, start=0, stop=len(GRAPH.ops), device="d0", shard=shard, recompute=recompute)
    return Plan(graph_hash=GRAPH.hash, planner="by hand", stages=(stage,), micro_batch_sizes=(4, 4))


def found(plan: Plan, ranks: int = 2, *, measured: bool = True, order: str = "job") -> Estimate:
    links = {"rank_rate": BytesPerSecond(RATE), "rank_latency": Seconds(LATENCY)} if measured else {}
    network = topology(count=1)
    network = network.with_devices([replace(network.devices[0], ranks=ranks, **links)])
    job = JobSpec(micro_batch_sizes=(4, 4), optimizer=OptimizerSpec(name="adamw"), sync=SyncSpec.model_validate({"order": order}))
    return estimate(GRAPH, plan, network, job)


def stage(plan: Plan, ranks: int = 2, *, measured: bool = True, order: str = "job") -> StageEstimate:
    return found(plan, ranks, measured=measured, order=order).stages[0]


def test_divided_parameters_are_there_once_beside_two_blocks_on_each_rank() -> None:
    (piece,) = cut(GRAPH, [(0, len(GRAPH.ops))])
    blocks = parameter_blocks(piece)
    assert len(blocks) > 6
    alone, whole, divided = (stage(planned(*one), ranks) for one, ranks in (((), 1), ((), 2), (("parameters",), 2)))
    assert alone.memory["parameters"] == WHOLE
    assert whole.memory["parameters"] == 2 * WHOLE
    assert divided.memory["parameters"] == pytest.approx(WHOLE + 2 * gathered_bytes(piece))
    assert divided.memory["optimizer"] == whole.memory["optimizer"]
    largest = max(sum(GRAPH.state[name].spec.nbytes for name in block.reads) for block in blocks)
    assert divided.memory["gradients"] == pytest.approx(WHOLE + 2 * 2 * largest)
    assert divided.memory_bytes < 0.65 * whole.memory_bytes


def test_a_rank_that_owns_more_than_its_share_decides() -> None:
    """Three ranks can't divide the parameters of one layer evenly."""
    graph = chain([64, 64])
    plan = replace(
        planned("parameters"),
        graph_hash=graph.hash,
        stages=(Stage(index=0, start=0, stop=len(graph.ops), device="d0", shard="parameters"),),
    )
    network = topology(count=1)
    network = network.with_devices([replace(network.devices[0], ranks=3)])
    memory = (
        estimate(graph, plan, network, JobSpec(micro_batch_sizes=(4, 4), optimizer=OptimizerSpec(name="adamw"))).stages[0].memory
    )
    assert memory["optimizer"] == pytest.approx(3 * 2 * 64 * 64 * 4)


def test_exchanges_take_what_was_measured() -> None:
    whole, divided, quick = stage(planned()), stage(planned("parameters")), stage(planned(), measured=False)
    assert whole.forward_seconds == quick.forward_seconds
    assert whole.backward_seconds - quick.backward_seconds == pytest.approx((LATENCY + WHOLE / RATE) / 2)
    assert whole.update_seconds - quick.update_seconds == pytest.approx(LATENCY + WHOLE / RATE)
    (piece,) = cut(GRAPH, [(0, len(GRAPH.ops))])
    count = len(parameter_blocks(piece))
    once = count * LATENCY + WHOLE / RATE
    assert divided.forward_seconds - quick.forward_seconds == pytest.approx(once / 2)
    assert divided.backward_seconds - quick.backward_seconds == pytest.approx(2 * once / 2, rel=0.05)
    assert divided.update_seconds == quick.update_seconds
    again = (
        stage(planned("parameters", recompute=True)).backward_seconds
        - stage(planned(recompute=True), measured=False).backward_seconds
    )
    assert again == pytest.approx(3 * once / 2, rel=0.05)


def test_in_any_order_gradients_are_added_once_for_each_step() -> None:
    quick, free = stage(planned(), measured=False), stage(planned(), order="any")
    assert free.backward_seconds == quick.backward_seconds
    assert free.update_seconds - quick.update_seconds == pytest.approx(2 * (LATENCY + WHOLE / RATE))


def test_a_device_that_is_no_site_exchanges_nothing() -> None:
    (piece,) = cut(GRAPH, [(0, len(GRAPH.ops))])
    device = replace(topology(count=1).devices[0], rank_rate=BytesPerSecond(RATE))
    seconds = rank_seconds(CostTables.of(GRAPH), planned("parameters").stages[0], piece, device, JobSpec())
    assert (seconds.forward, seconds.backward, seconds.update) == (0.0, 0.0, 0.0)
    assert stage(planned("parameters"), 1).memory == stage(planned(), 1).memory
    assert found(planned("parameters"), 1).shard is None


def test_the_price_is_the_step_over_that_with_whole_parameters() -> None:
    price = found(planned("parameters")).shard
    assert price is not None
    assert (price.nbytes, price.needed) == (WHOLE, False)
    assert price.factor == pytest.approx(found(planned("parameters")).step_seconds / found(planned()).step_seconds)
    assert price.factor > 1.05
