"""Estimates and checks of plans, with numbers worked out by hand on a chain of equal layers."""

import json
from dataclasses import replace

import numpy as np
import pytest

from farflung.cluster import Topology, with_relays
from farflung.errors import PlanError
from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import cut
from farflung.job.spec import CodecSpec
from farflung.plan import LinkPlan, Plan, Stage, assign_codecs, check_memory, check_plan, estimate, explain, make_links
from farflung.plan.report.helper_traffic import helped_lines, hidden_seconds, parameters_way
from farflung.planners import get_planner
from farflung.units import Bytes, Seconds
from tests.support.plans.hand_plans import FORWARD, JOB, VALUE, WIDTH, chain, plan_of, topology


def test_equations_on_a_chain():
    graph = chain()
    found = estimate(graph, plan_of(graph, JOB), topology(), JOB)
    compute = [FORWARD / 1e9] * 2 + [found.stages[2].forward_seconds]
    assert [stage.forward_seconds for stage in found.stages] == pytest.approx(compute)
    link = 0.01 + (VALUE + 96) / 1e6
    dense = 0.01 + VALUE / 1e6
    assert [item.forward_seconds for item in found.links] == pytest.approx([link, link])
    assert found.latency_seconds == pytest.approx(sum(compute) + 2 * dense)
    assert found.pipeline_seconds == pytest.approx(found.latency_seconds + dense)
    assert found.throughput == pytest.approx(8 / found.pipeline_seconds)
    assert found.compressed_seconds == pytest.approx(sum(compute) + 3 * link)
    assert found.bound_by.startswith("the link d")
    assert 0 < found.bound_share < 1


def test_convolutions_have_a_speed_of_their_own():
    builder = GraphBuilder("images")
    image = builder.input("x", "float32", (2, 4, 8, 8))
    first = builder.add("conv", "Conv2d", image, in_channels=4, out_channels=8, kernel_size=3, padding=1, bias=False)
    flat = builder.add("flat", "Flatten", first)
    last = builder.add("fc1", "Linear", flat, in_features=512, out_features=32, bias=False)
    builder.add("loss", "MSELoss", last, builder.label("y", "float32", (2, 32)))
    graph = builder.build()
    cuts = (0, graph.position["flat"], len(graph.ops))
    stages = tuple(Stage(index=i, start=cuts[i], stop=cuts[i + 1], device=f"d{i}") for i in range(2))
    links = make_links(graph, stages)
    plan = Plan(graph_hash=graph.hash, planner="hand", stages=stages, links=links, micro_batch_sizes=(4, 4))
    usual = topology(count=2)
    fast = usual.with_devices([replace(device, convolution=2.0) for device in usual.devices])
    before, after = (estimate(graph, plan, network, JOB).stages for network in (usual, fast))
    assert before[0].forward_seconds == pytest.approx(2 * (2 * 8 * 8 * 8) * (4 * 9) / 1e9)
    assert after[0].forward_seconds == pytest.approx(before[0].forward_seconds / 2)
    assert after[0].backward_seconds == pytest.approx(before[0].backward_seconds / 2)
    assert after[0].weight_seconds == pytest.approx(before[0].weight_seconds / 2)
    assert after[1].forward_seconds == before[1].forward_seconds
    assert after[0].forward_flops == before[0].forward_flops


def test_memory_by_hand():
    graph = chain()
    found = estimate(graph, plan_of(graph, JOB), topology(), JOB)
    weight = WIDTH * WIDTH * 4
    first = found.stages[0]
    assert first.in_flight == 2
    assert first.memory["parameters"] == first.memory["gradients"] == weight
    assert first.memory["activations"] == 2 * (VALUE + VALUE)  # its input is kept, its result is sent
    assert found.feasible
    assert found.devices[0].memory_bytes == first.memory_bytes


HELPED = JOB.model_copy(update={"plan": JOB.plan.model_copy(update={"helpers": True})})


def test_what_a_server_keeps_for_its_helpers_by_hand():
    graph = chain()
    alone, helped = (estimate(graph, plan_of(graph, job), topology(), job) for job in (JOB, HELPED))
    weight = WIDTH * WIDTH * 4
    slices = JOB.micro_batches
    assert [stage.memory["serving"] for stage in alone.stages] == [0.0] * 3
    kept = [stage.memory["serving"] for stage in helped.stages]
    assert kept[1] == weight + slices * 2 * VALUE + (slices + 1) * weight
    more = [two.memory_bytes - one.memory_bytes for one, two in zip(alone.stages, helped.stages, strict=True)]
    assert more == pytest.approx(kept)
    assert "memory for helpers: up to " in explain(helped)
    assert "memory for helpers" not in explain(alone)


def test_what_a_delayed_update_hides_by_hand():
    graph, place = chain(), topology(count=4)
    everybody = place.with_devices([replace(device, reliable=device.name != "d3") for device in place.devices])
    plan, weight = plan_of(graph, HELPED), WIDTH * WIDTH * 4
    seconds = 0.01 + weight / 1e6
    assert parameters_way(plan.stages[0], weight, everybody) == (pytest.approx(seconds), "d3")
    assert parameters_way(plan.stages[0], weight, place) is None, "nobody is unreliable"
    assert hidden_seconds(3.0, 2.0) == 2.0, "no more than the step before takes"
    delayed = HELPED.model_copy(update={"optimizer": HELPED.optimizer.model_copy(update={"delayed": True})})
    pieces = cut(graph, plan.bounds)
    assert helped_lines(plan, graph, pieces, everybody, JOB, 1.0) == []
    exact, late = (helped_lines(plan, graph, pieces, everybody, job, 1.0)[0] for job in (HELPED, delayed))
    assert f"stage 0 {Bytes(weight)} ({Seconds(seconds)} to d3)" in exact
    told = f"behind the previous step, up to {Seconds(seconds)}"
    assert exact.endswith(f"optimizer.delayed would hide this transfer {told}, and change the result")
    assert late.endswith(f"optimizer.delayed hides this transfer {told}")


def test_a_hybrid_plan_that_would_not_fit_is_not_made():
    graph = chain()
    most = max(device.memory_bytes for device in estimate(graph, plan_of(graph, JOB), topology(), JOB).devices)
    place = topology(memory=most * 1.01)
    check_memory(estimate(graph, plan_of(graph, JOB), place, JOB))
    with pytest.raises(PlanError, match=r"serving helpers takes memory for each micro-batch.*plan\.helpers = false"):
        check_memory(estimate(graph, plan_of(graph, HELPED), place, HELPED))


@pytest.mark.parametrize("planner", ["equal_compute", "auto", "hybrid_ps", "op_fence"])
def test_planners_count_what_a_server_keeps(planner):
    """All stages would fit on one device, and in a hybrid plan they do not."""
    graph = chain(6)
    one = estimate(graph, get_planner("equal_number").plan(graph, topology(count=1), job=HELPED), topology(count=1), HELPED)
    place = topology(memory=one.devices[0].memory_bytes * 0.7, beta=1e3)
    found = get_planner(planner).plan(graph, place, job=HELPED)
    assert len(found.devices) > 1
    check_memory(estimate(graph, found, place, HELPED))


def test_recomputation_costs_a_forward():
    graph = chain()
    plain, again = (estimate(graph, plan_of(graph, JOB, recompute=r), topology(), JOB) for r in (False, True))
    for one, two in zip(plain.stages, again.stages, strict=True):
        assert two.backward_flops == one.backward_flops + one.forward_flops
    assert again.step_seconds > plain.step_seconds


def test_one_device_sends_nothing():
    graph = chain()
    found = estimate(graph, plan_of(graph, JOB, ("d0", "d0", "d0")), topology(), JOB)
    assert found.pipeline_seconds == pytest.approx(2 * found.latency_seconds)
    assert sum(link.forward_bytes + link.backward_bytes for link in found.links) == 0
    assert found.bound_by == "computing on d0"
    assert found.bound_share == pytest.approx(1.0)


def test_tied_gradients_travel_once_per_step():
    graph = chain(tied=True)
    found = estimate(graph, plan_of(graph, JOB), topology(), JOB)
    assert found.exchange_bytes == 2 * WIDTH * WIDTH * 4
    same = estimate(graph, plan_of(graph, JOB, ("d0", "d1", "d0")), topology(), JOB)
    assert same.step_seconds < found.step_seconds


def test_what_lacks_is_said_with_a_remedy():
    graph = chain()
    found = estimate(graph, plan_of(graph, JOB), topology(memory=500e3), JOB)
    assert not found.feasible
    with pytest.raises(PlanError, match=r"device 'd0' needs .* and has 500 kB: it lacks .* \(most is .*\); .*plan.recompute"):
        check_memory(found)


def test_the_explanation_and_the_dictionary_say_the_same():
    graph = chain()
    found = estimate(graph, plan_of(graph, JOB), topology(), JOB)
    text = explain(found)
    assert "predicted step with backwards and updates: " in text
    assert "bottleneck: the link" in text
    assert "e+" not in text
    for equation in ("equation 2", "equation 3", "equation 4", "equation 8"):
        assert text.count(equation) == 1
    assert "activations forward / gradients backward" in text
    assert "d0 -> d1" in text
    body = json.loads(json.dumps(found.to_dict()))
    assert body["feasible"] is True
    assert [stage["device"] for stage in body["stages"]] == ["d0", "d1", "d2"]


def unequal():
    """Links of 1, 100 and 100 times the speed."""
    beta = np.full((3, 3), 1e8)
    beta[0, 1] = beta[1, 0] = 1e6
    return Topology.from_matrices(np.zeros((3, 3)), beta, topology().devices)


def codecs_of(codec, devices=("d0", "d1", "d2")):
    graph = chain()
    stages = plan_of(graph, JOB, devices).stages
    return assign_codecs(stages, cut(graph, [(s.start, s.stop) for s in stages]), unequal(), codec)


def test_adatopk_compresses_the_slow_link_only():
    slow, fast = codecs_of(CodecSpec(name="adatopk", ratio=20, overhead=3.0))
    assert str(slow.activations) == "topk(ratio=60, values=float32)"
    assert slow.gradients == slow.activations
    assert fast == LinkPlan(source=1, target=2)


def test_adatopk_uses_the_formats_overhead_unless_told():
    (slow, _) = codecs_of(CodecSpec(name="adatopk", ratio=20))
    assert 20 < dict(slow.activations.params)["ratio"] < 60


def test_the_format_of_the_paper_has_its_factor_of_three():
    """8 bytes for a position and 4 for a value are three words, so equation (7) gives the slowest link 3 r."""
    (slow, fast) = codecs_of(CodecSpec(name="adatopk", ratio=20, format="paper"))
    assert str(slow.activations) == "topk(ratio=60, values=float32, format=paper)"
    assert fast == LinkPlan(source=1, target=2)
    (uniform, _) = codecs_of(CodecSpec(name="topk", ratio=20, format="paper"))
    assert str(uniform.activations) == "topk(ratio=20, values=float32, format=paper)"


def test_uniform_codecs_skip_links_inside_a_device():
    first, second = codecs_of(CodecSpec(name="fp16"), ("d0", "d1", "d1"))
    assert first.activations.name == "fp16"
    assert second == LinkPlan(source=1, target=2)


@pytest.mark.parametrize("name", ["int4", "topk", "adatopk"])
def test_a_codec_for_slow_links_leaves_fast_ones_dense(name):
    slow, fast = codecs_of(CodecSpec(name=name, ratio=10, where="slow"))
    assert slow.activations.name != "identity"
    assert slow.gradients == slow.activations
    assert fast == LinkPlan(source=1, target=2)
    graph = chain()
    stages = plan_of(graph, JOB).stages
    pieces = cut(graph, [(s.start, s.stop) for s in stages])
    hidden = assign_codecs(stages, pieces, unequal(), CodecSpec(name=name, where="slow"), pace=1e3)
    assert all(link.activations.name == link.gradients.name == "identity" for link in hidden), "computing takes longer than all"


def test_a_codec_that_spares_nothing_is_left_out():
    assert all(link.activations.name == "identity" for link in codecs_of(CodecSpec(name="topk", ratio=1.0)))


GRAPH = chain()
GOOD = plan_of(GRAPH, JOB)


def test_a_good_plan_passes():
    assert [piece.stage for piece in check_plan(GOOD, GRAPH, topology(), JOB)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"graph_hash": "0" * 64}, "the plan is for graph 000000000000, this graph is"),
        ({"micro_batch_sizes": (8,)}, r"micro-batches of \[8\] samples, the job \[4, 4\]; plan again"),
        ({"stages": GOOD.stages[:2]}, "the stages end at position .*; the stages must tile it"),
        ({"stages": (*GOOD.stages[:2], replace(GOOD.stages[2], start=1))}, "stage 2 at place 2 has positions"),
        ({"stages": (replace(GOOD.stages[0], device="dx"), *GOOD.stages[1:])}, "no device 'dx'; known are d0, d1, d2"),
        ({"schedule": "zigzag"}, "unknown schedule 'zigzag'"),
        ({"links": GOOD.links[:1]}, "stages 1 and 2 exchange values, and the plan has no link between them"),
        ({"links": (*GOOD.links, LinkPlan(source=0, target=2))}, "the link from stage 0 to stage 2 carries nothing"),
        ({"links": (*GOOD.links, GOOD.links[0])}, "carries nothing or stands twice"),
    ],
)
def test_plans_that_do_not_fit_are_refused(change, text):
    with pytest.raises(PlanError, match=text):
        check_plan(replace(GOOD, **change), GRAPH, topology(), JOB)


@pytest.mark.parametrize("recompute", [False, True])
def test_each_operator_costs_its_overhead(recompute):
    """Three products and the loss forward, as many backward; the input, the label and what only shapes them run nothing."""
    graph, net = chain(), topology()
    slow = net.with_devices([replace(device, overhead=Seconds(0.5)) for device in net.devices])
    bare, found = (estimate(graph, plan_of(graph, JOB, recompute=recompute), place, JOB) for place in (net, slow))
    first, late = bare.stages[0], found.stages[0]
    assert late.forward_seconds - first.forward_seconds == pytest.approx(0.5)
    assert late.backward_seconds - first.backward_seconds == pytest.approx(1.0 if recompute else 0.5)
    assert late.update_seconds - first.update_seconds == pytest.approx(0.5), "one parameter"
    assert found.step_seconds > bare.step_seconds + 2.0
    assert found.latency_seconds == pytest.approx(bare.latency_seconds + 4 * 0.5)


def test_a_planner_shares_out_the_overhead():
    """Many small operators: whoever runs each of them slowly gets fewer."""
    graph, net = chain(layers=8), topology(count=2, beta=1e12, alpha=0.0)
    devices = [replace(net.devices[0], overhead=Seconds(0.1)), net.devices[1]]
    plan = get_planner("op_fence").plan(graph, net.with_devices(devices), job=JOB)
    counts = {stage.device: stage.stop - stage.start for stage in plan.stages}
    assert counts.get("d0", 0) < counts["d1"]


def test_a_relayed_link_is_estimated_shown_and_refused_without_a_relay():
    graph, direct = chain(), topology()
    apart = [("d0", "d1")]
    relayed, cut_off = with_relays(direct, apart), with_relays(direct, apart, able=[])
    plan = plan_of(graph, JOB)
    check_plan(plan, graph, relayed, JOB)
    found, before = (estimate(graph, plan, one, JOB) for one in (relayed, direct))
    assert [link.relay for link in found.links] == ["d2", ""]
    assert found.links[0].forward_seconds == pytest.approx(before.links[0].forward_seconds + 0.01)
    assert found.step_seconds > before.step_seconds
    assert "d0 -> d1 through d2" in explain(found)
    check_plan(plan_of(graph, JOB, ("d0", "d0", "d2")), graph, cut_off, JOB)
    with pytest.raises(
        PlanError, match=r"devices 'd0' and 'd1' can't reach each other: neither can dial the other .* leave one out"
    ):
        check_plan(plan, graph, cut_off, JOB)


def test_an_error_names_two_of_many_devices_that_lack_memory():
    graph = chain(layers=8)
    found = estimate(graph, plan_of(graph, JOB), topology(memory=100e3), JOB)
    with pytest.raises(PlanError, match=r"^device 'd0' needs .*; device 'd1' needs [^;]*; and 1 more device; add a device"):
        check_memory(found)
