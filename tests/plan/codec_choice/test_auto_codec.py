"""The automatic choice of codecs: within its budget, never slower than plain, slow links first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.cluster import Device, Topology
from farflung.codecs import get_codec, measure
from farflung.errors import InputError
from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import cut
from farflung.graph.ir import TensorSpec
from farflung.job.load import make_job
from farflung.job.spec import CodecSpec
from farflung.plan import CodecChoice, LinkPlan, Stage, assign_codecs, codec_of, wire_factor_of
from farflung.plan.codec_choice.auto_codec import CANDIDATES, Flow, allocate_codecs, typical_error, why
from farflung.plan.codec_choice.compression import choice_of, slow_choices
from farflung.units import Bytes, FlopsPerSecond

PLAIN = CodecChoice()
SECONDS = {candidate.choice: candidate for candidate in CANDIDATES}


def flow(rate: float, numel: int = 1 << 18, latency: float = 0.01) -> Flow:
    return Flow(tensors=(TensorSpec(shape=(numel,), dtype="float32"),), latency=latency, bytes_per_second=rate)


def any_flow(rate: float, numel: int, backward: bool, tuning: bool, memory: bool) -> Flow:
    name = "error_feedback" if backward else "difference"
    return replace(flow(rate, numel), backward=backward, tuning=tuning, memory=name if memory else "")


rates, sizes = st.floats(1e3, 1e11), st.integers(1, 1 << 22)
flows = st.lists(st.builds(any_flow, rates, sizes, st.booleans(), st.booleans(), st.booleans()), max_size=6)


@given(flows, st.floats(0, 1))
@settings(deadline=None, max_examples=80)
def test_within_the_budget_and_never_slower_than_plain(wanted: list[Flow], error: float) -> None:
    chosen = allocate_codecs(wanted, error)
    for one, choice in zip(wanted, chosen, strict=True):
        found = SECONDS[replace(choice, memory="")]
        forgets = choice == PLAIN or (one.memory == "difference" and not choice.memory)
        assert choice.memory == ("" if forgets else one.memory)
        way = replace(one, memory=choice.memory if choice != PLAIN else one.memory)
        assert typical_error(choice) <= way.bearable(error) <= 3 * error
        assert way.backward or (way.tuning and way.memory) or way.bearable(error) == error
        assert way.seconds(found) <= way.seconds(CANDIDATES[0])
        assert ("no codec, " in why(one, error, choice)) == (choice == PLAIN)


def test_the_default_error_gives_what_the_study_of_losses_found() -> None:
    there, back = slow_choices(CodecSpec(name="auto"))
    assert str(there) == "quantized(bits=4, block=256, rotate=1, scale=normal)"
    assert str(back) == "quantized(bits=3, block=256, rotate=1, scale=normal)"
    there, back = slow_choices(CodecSpec(name="auto", phase="fine-tuning", memory="difference"))
    assert str(there) == "quantized(bits=1, block=1024, rotate=1) with difference"
    assert str(back) == "quantized(bits=1, block=1024, rotate=1)"
    there, back = slow_choices(CodecSpec(name="auto", phase="fine-tuning", memory="error_feedback"))
    assert dict(there.params)["bits"] == 4, "without differences values bear no more than from scratch"
    assert str(back) == "quantized(bits=1, block=1024, rotate=1) with error_feedback"


def test_differences_are_remembered_only_where_that_is_sooner() -> None:
    """Remembering takes time, and at some rates four bits alone are sooner than one bit of a difference."""
    tuned = [replace(flow(rate), tuning=True, memory="difference") for rate in (1e6, 1e7, 1e11)]
    found = allocate_codecs(tuned, 0.2)
    assert [choice.memory for choice in found] == ["difference", "", ""]
    assert [dict(choice.params).get("bits") for choice in found] == [1, 4, None]


def test_weights_of_a_file_are_fine_tuned() -> None:
    job = {"codec": {"name": "auto"}, "weights": {"source": "file", "path": "model.safetensors"}}
    assert codec_of(make_job(job)).phase == "fine-tuning"
    assert codec_of(make_job({"codec": {"name": "auto"}})).phase == "scratch"
    assert codec_of(make_job({**job, "codec": {"name": "auto", "phase": "scratch"}})).phase == "scratch"
    with pytest.raises(InputError, match=r"codec.phase = 'scratch' is for .*, here codec.name = 'int8': remove it"):
        make_job({"codec": {"name": "int8", "phase": "scratch"}})


def test_fast_links_stay_plain_and_slow_ones_take_what_is_soonest() -> None:
    slow, fast = allocate_codecs([flow(1e6), flow(1e11)], 0.2)
    assert fast == PLAIN
    others = [item for item in CANDIDATES if typical_error(item.choice) <= 0.2]
    assert flow(1e6).seconds(SECONDS[slow]) == min(flow(1e6).seconds(item) for item in others)
    assert dict(slow.params)["bits"] == 4


def test_no_error_is_plain_and_much_error_is_sparse() -> None:
    assert allocate_codecs([flow(1e6)], 0.0) == (PLAIN,)
    assert allocate_codecs([flow(1e6)], 1.0)[0].name == "topk"
    assert allocate_codecs([], 0.5) == ()
    with pytest.raises(InputError, match="the largest error of a codec must not be negative, got nan"):
        allocate_codecs([flow(1e6)], float("nan"))


def test_errors_of_the_candidates_are_those_of_their_codecs() -> None:
    array = np.random.default_rng(5).standard_t(3, 1 << 17).astype(np.float32)
    for candidate in CANDIDATES:
        found = measure(get_codec(candidate.choice.name, **dict(candidate.choice.params)), array)
        assert typical_error(candidate.choice) == pytest.approx(found.error, rel=0.35, abs=1e-9)


def links(codec: CodecSpec) -> tuple[LinkPlan, ...]:
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (64, 256))
    for i in range(4):
        value = builder.add(f"fc{i}", "Linear", value, in_features=256, out_features=256, bias=False)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (64, 256)))
    graph = builder.build()
    starts = [0, *(graph.position[f"fc{i}"] for i in (1, 2, 3)), len(graph.ops)]
    names = ("a", "a", "b", "c")
    stages = [Stage(index=i, start=starts[i], stop=starts[i + 1], device=names[i]) for i in range(4)]
    devices = [Device(name=name, memory=Bytes(1e9), speed=FlopsPerSecond(1e9)) for name in "abc"]
    beta = np.array([[1e9, 1e6, 1e6], [1e6, 1e9, 1e12], [2e6, 1e12, 1e9]])
    topology = Topology.from_matrices(np.zeros((3, 3)), beta, devices)
    return assign_codecs(stages, cut(graph, [(s.start, s.stop) for s in stages]), topology, codec)


def test_each_link_and_direction_of_a_plan_has_its_own() -> None:
    local, slow, fast = links(CodecSpec(name="auto", error=0.2))
    assert (local.activations, local.gradients) == (PLAIN, PLAIN)
    assert slow.activations.name == slow.gradients.name == "quantized"
    assert (fast.activations, fast.gradients) == (PLAIN, PLAIN)
    assert links(CodecSpec(name="auto", error=0.0))[1].activations == PLAIN


def test_settings_of_a_fixed_codec_reach_the_plan() -> None:
    choice = choice_of(CodecSpec(name="int4", rounding="stochastic", rotate=True))
    assert choice == CodecChoice(name="int4", params=(("rounding", "stochastic"), ("rotate", 1)))
    assert links(CodecSpec(name="int4", rotate=True))[1].activations.params == (("rotate", 1),)
    assert choice_of(CodecSpec(name="randomk", ratio=7, values="int8")).params == (("ratio", 7.0), ("values", "int8"))
    low = choice_of(CodecSpec(name="lowrank:rank=3,values=int4"))
    assert low == CodecChoice(name="lowrank", params=(("rank", 3), ("values", "int4")))
    assert choice_of(CodecSpec(name="quantized:bits=3,rotate=true,scale=normal")).params == (
        ("bits", 3),
        ("rotate", 1),
        ("scale", "normal"),
    )
    assert choice_of(CodecSpec(name="topk:selection=blocks")).params == (("selection", "blocks"),)
    with pytest.raises(InputError, match="codec 'topk' has no parameter 'rotate'"):
        choice_of(CodecSpec(name="topk", rotate=True))


@pytest.mark.parametrize(
    ("codec", "factor"),
    [
        (CodecSpec(), 1.0),
        (CodecSpec(name="adatopk", ratio=50), 0.02),
        (CodecSpec(name="int8"), 0.254),
        (CodecSpec(name="auto", error=0.0), 1.0),
        (CodecSpec(name="auto", error=0.15), 4.125 / 32),
    ],
)
def test_the_wire_factor_that_planners_count_with(codec: CodecSpec, factor: float) -> None:
    assert wire_factor_of(codec) == pytest.approx(factor, rel=0.01)
