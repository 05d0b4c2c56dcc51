"""Plans as JSON, and what is said of documents that are no plans."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import PlanError, VersionError
from farflung.plan import CodecChoice, LinkPlan, Plan, Stage
from farflung.plan.parts import SyncLayer, SyncPlan

PLAN = Plan(
    graph_hash="ab" * 32,
    planner="op_fence",
    stages=(Stage(index=0, start=0, stop=3, device="a"), Stage(index=1, start=3, stop=5, device="b", recompute=True)),
    links=(LinkPlan(source=0, target=1, activations=CodecChoice(name="topk", params=(("ratio", 100.0), ("values", "float32")))),),
    schedule="gpipe",
    micro_batch_sizes=(3, 2),
)


def test_json_reads_back_equal():
    assert Plan.from_json(PLAN.to_json()) == PLAN
    assert Plan.from_json(PLAN.to_json().encode()) == PLAN


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.data())
def test_any_plan_reads_back_equal(sizes, data):
    bounds = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    stages = tuple(
        Stage(
            index=i,
            start=bounds[i],
            stop=bounds[i + 1],
            device=data.draw(st.text(min_size=1)),
            recompute=data.draw(st.booleans()),
            offload=data.draw(st.sampled_from(("none", "optimizer"))),
            shard=data.draw(st.sampled_from(("none", "parameters", "tensor"))),
        )
        for i in range(len(sizes))
    )
    plan = Plan(graph_hash="x", planner="p", stages=stages, micro_batch_sizes=tuple(sizes))
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("stages", 0, "start"), -1, r"stages\[0\].start: must be a whole number of at least 0, got -1"),
        (("stages", 0, "device"), 7, r"stages\[0\].device: must be text, got 7"),
        (("stages", 1, "recompute"), 1, r"stages\[1\].recompute: must be true or false, got 1"),
        (("stages", 1, "offload"), "all", r"stages\[1\].offload: must be 'optimizer', or left out, got 'all'"),
        (("stages", 1, "shard"), "all", r"stages\[1\].shard: must be 'parameters', 'tensor', or left out, got 'all'"),
        (("links", 0, "activations"), {"name": "topk"}, r"links\[0\].activations: must be an object with the keys name, params"),
        (("links", 0, "gradients", "params"), {"x": [1]}, r"gradients.params.x: must be a finite number or text"),
        (("micro_batch_sizes", 0), 0, r"micro_batch_sizes: must be a whole number of at least 1, got 0"),
        (("micro_batch_sizes",), [], r"micro_batch_sizes: must be the samples of at least one micro-batch, got \[\]"),
        (("stages",), {}, r"stages: must be a list of at most"),
        (("extra",), 1, r"plan: must be an object with the keys graph, links"),
    ],
)
def test_wrong_documents_say_where(path, value, text):
    body = json.loads(PLAN.to_json())
    place = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(PlanError, match=text):
        Plan.from_json(json.dumps(body))


def test_other_versions_are_refused():
    with pytest.raises(VersionError, match="this plan has format 3, this farflung reads 2; plan again"):
        Plan.from_json(PLAN.to_json().replace('"version":2', '"version":3'))


@pytest.mark.parametrize("seconds", ["-1.0", "1e999", f"{10**400}", "true"])
def test_seconds_of_layers_are_finite(seconds):
    layer = SyncLayer(parameters=("w",), bp_seconds=0.125, comm_seconds=0.5)
    text = replace(PLAN, sync=SyncPlan(strategy="robust", settings=(("faulty", 1),), layers=((layer,), ()))).to_json()
    assert Plan.from_json(text).sync.layers == ((layer,), ())
    with pytest.raises(PlanError, match=r"sync.layers\[0\]\[0\].bp_seconds: must be seconds"):
        Plan.from_json(text.replace("0.125", seconds))


@pytest.mark.parametrize("number", ["1e999", "-Infinity", "NaN"])
def test_settings_of_strategies_and_codecs_are_finite(number):
    text = replace(PLAN, sync=SyncPlan(strategy="robust", settings=(("share", 0.375),), layers=((), ()))).to_json()
    with pytest.raises(PlanError, match=r"sync.settings.share: must be a finite number"):
        Plan.from_json(text.replace("0.375", number))
    link = LinkPlan(source=0, target=1, activations=CodecChoice(name="topk", params=(("ratio", 0.375),)))
    text = replace(PLAN, links=(link,)).to_json()
    with pytest.raises(PlanError, match=r"params.ratio: must be a finite number or text"):
        Plan.from_json(text.replace("0.375", number))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_text_that_is_not_json_is_refused(text):
    with pytest.raises(PlanError, match="the plan is not JSON"):
        Plan.from_json(text)
