"""The graph document: round trips, a stable hash, every rule's text, and mutations that must never do more than refuse."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import GraphError, VersionError
from farflung.graph import Graph
from farflung.graph.builder import normalize
from farflung.graph.ir import (
    DTypeArg,
    InitStep,
    LocalRef,
    Op,
    OpKind,
    State,
    StateKind,
    StateRef,
    ValueRef,
)
from farflung.graph.validate import Limits, validate
from tests.support.plans.random_graphs import Pen, graphs, spec

F = "float32"


def sample() -> Graph:
    """A graph that uses every part of the format."""
    weight = State(
        name="weight",
        kind=StateKind.PARAMETER,
        spec=spec(F, 4, 4),
        trainable=True,
        aliases=("head.weight",),
        init=(
            InitStep(target="aten.empty.memory_format", args=((4, 4),), kwargs=(("dtype", DTypeArg(F)),)),
            InitStep(target="aten.normal_.default", args=(LocalRef(0), 0.0, 0.02), rng=0),
        ),
    )
    count = State(name="count", kind=StateKind.BUFFER, spec=spec("int64"), persistent=False)
    mask = State(name="mask", kind=StateKind.CONSTANT, spec=spec("bool", 4), data=b"\0\1\0\1")
    ops = (
        Op(name="x", kind=OpKind.PLACEHOLDER, target="farflung.input", outputs=(spec(F, 2, 4),)),
        Op(
            name="fill",
            kind=OpKind.NON_PARAMETRIC,
            target="aten.masked_fill.Scalar",
            args=(ValueRef("x"), StateRef("mask"), -math.inf),
            outputs=(spec(F, 2, 4),),
            no_grad=True,
        ),
        Op(
            name="linear",
            kind=OpKind.PARAMETRIC,
            target="aten.linear.default",
            args=(ValueRef("fill"), StateRef("weight"), None),
            outputs=(spec(F, 2, 4),),
            module="head",
            module_type="Linear",
            occurrence=1,
        ),
        Op(
            name="split",
            kind=OpKind.NON_PARAMETRIC,
            target="aten.split.Tensor",
            args=(ValueRef("linear"), 1),
            outputs=(spec(F, 1, 4), spec(F, 1, 4)),
        ),
        Op(
            name="drop",
            kind=OpKind.NON_PARAMETRIC,
            target="aten.dropout.default",
            args=(ValueRef("split", 1), 0.5, True),
            outputs=(spec(F, 1, 4),),
            rng=0,
        ),
        Op(
            name="loss",
            kind=OpKind.LOSS,
            target="aten.sum.default",
            args=(ValueRef("drop"),),
            kwargs=(("dtype", DTypeArg(F)),),
            outputs=(spec(F),),
        ),
        Op(
            name="more",
            kind=OpKind.NON_PARAMETRIC,
            target="aten.add.Scalar",
            args=(StateRef("count"), 1),
            outputs=(spec("int64"),),
        ),
    )
    return Graph(
        name="sample",
        ops=ops,
        states=(weight, count, mask),
        outputs=(("loss", ValueRef("loss")), ("half", ValueRef("split", 1))),
        state_updates=(("count", ValueRef("more")),),
        meta=(("inputs", "x"),),
    )


def test_round_trip_keeps_everything():
    graph = sample()
    text = graph.to_json()
    again = Graph.from_json(text)
    assert again == graph
    assert again.to_json() == text
    assert again.hash == graph.hash


def test_from_json_takes_bytes():
    assert Graph.from_json(sample().to_json().encode()) == sample()


def test_hash_is_stable_and_names_the_content():
    graph = sample()
    reordered = json.dumps(dict(reversed(list(json.loads(graph.to_json()).items()))), indent=1)
    assert Graph.from_json(reordered).hash == graph.hash
    assert replace(graph, name="other").hash != graph.hash
    swapped = replace(graph.ops[5], kwargs=(("b", 1), ("a", 2.0)))
    ordered = replace(graph.ops[5], kwargs=(("a", 2.0), ("b", 1)))
    assert replace(graph, ops=(*graph.ops[:5], swapped)).hash == replace(graph, ops=(*graph.ops[:5], ordered)).hash


def test_numbers_keep_their_type():
    for number in (1, 1.0, True, -0.0, 1e-45, math.inf, -math.inf, 2**63 - 1, 0.1):
        graph = sample()
        changed = replace(graph.ops[1], args=(ValueRef("x"), StateRef("mask"), number))
        back = Graph.from_json(replace(graph, ops=(graph.ops[0], changed, *graph.ops[2:])).to_json())
        found = back.ops[1].args[2]
        assert type(found) is type(number)
        assert repr(found) == repr(number)
    nan = replace(sample().ops[1], args=(ValueRef("x"), StateRef("mask"), math.nan))
    back = Graph.from_json(replace(sample(), ops=(sample().ops[0], nan, *sample().ops[2:])).to_json())
    assert math.isnan(back.ops[1].args[2])  # type: ignore[arg-type]


@settings(deadline=None, max_examples=30)
@given(graphs())
def test_random_graphs_round_trip(graph):
    assert Graph.from_json(graph.to_json()) == graph


def test_placeholders_are_moved_before_their_first_reader():
    graph = sample()
    late = Op(name="y", kind=OpKind.PLACEHOLDER, target="farflung.input", outputs=(spec(F, 1, 4),))
    reader = replace(graph.ops[4], target="aten.mul.Tensor", args=(ValueRef("split", 1), ValueRef("y")), rng=None)
    hand_made = replace(graph, ops=(late, *graph.ops[:4], reader, *graph.ops[5:]))
    assert [op.name for op in normalize(hand_made).ops][:6] == ["x", "fill", "linear", "split", "y", "drop"]
    validate(normalize(hand_made))
    assert normalize(graph) is graph


def broken(path: str, value: object) -> str:
    """The sample's document with one place changed; ``path`` like ``ops.1.args.0.v``; ``value`` None removes it."""
    document = json.loads(sample().to_json())
    place = document
    *way, last = path.split(".")
    for part in way:
        place = place[int(part)] if isinstance(place, list) else place[part]
    key = int(last) if isinstance(place, list) else last
    if value is None:
        del place[key]
    else:
        place[key] = value
    return json.dumps(document)


BROKEN = [
    ("format", "onnx", "not a graph document: its 'format' is not 'farflung-graph'"),
    ("name", None, "graph document has no field 'name'"),
    ("name", 3, "graph document, field 'name' must be str, not int"),
    ("nmae", "x", "graph document has the unknown field 'nmae'"),
    ("mode", "test", "graph 'sample' has mode 'test': known are train, eval"),
    ("ops", [], "graph has no operators"),
    ("ops.2.name", "x", r"operator 'x' \(aten.linear.default\): the name stands twice"),
    ("ops.0.name", "a:1", "the name has a colon"),
    ("ops.0.name", "a\nb", "must have 1 to 512 printable characters"),
    ("ops.0.name", "", "must have 1 to 512 printable characters"),
    (
        "ops.2.target",
        "aten.linaer.default",
        "operator 'aten.linaer.default' is not on the allow-list: did you mean aten.linear.default?",
    ),
    ("ops.2.target", "os.system", "'os.system' is not on the allow-list"),
    ("ops.2.target", "aten.add_.Tensor", "only allowed in initializer programs: a graph needs a pure operator"),
    ("ops.2.args.0.v", "drop", r"operator 'linear' \(aten.linear.default\): reads 'drop', which no earlier operator makes"),
    ("ops.2.args.0.v", "fill:1", "reads output 1 of 'fill', which has 1"),
    ("ops.2.args.0.v", "fill:01", "'fill:01' is not a reference"),
    ("ops.2.args.0.v", "fill:0", "'fill:0' is not a reference"),
    ("ops.2.args.1.s", "wieght", "operator 'linear' .*: reads state 'wieght', which the graph does not have"),
    ("ops.2.args.1", {"l": 0}, "reads a step of an initializer program"),
    ("ops.2.args.1", {"d": "complex32"}, "unknown element type 'complex32', known are float64, float32"),
    ("ops.2.args.1", {"f": "big"}, "unknown number 'big', known are inf, -inf, nan"),
    ("ops.2.args.1", {"x": 1}, "operator 'linear': an argument must have one of the tags d, f, l, s, v"),
    ("ops.2.args.1", {}, "an argument must have one of the tags"),
    ("ops.2.args.1", [[[[[[[[[1]]]]]]]]], "operator 'linear': an argument is nested too deeply"),
    ("ops.2.args.1", 2**63, "an integer argument does not fit into 64 bits"),
    ("ops.2.args.1", "\ud800", "a text has half of a surrogate pair"),
    ("ops.2.kwargs", {"a b": 1}, "'a b' is not a keyword"),
    ("ops.2.kind", "layer", "operator 'linear': unknown kind 'layer', known are placeholder"),
    ("ops.2.kind", "placeholder", "kind placeholder and target farflung.input belong together"),
    ("ops.0.args", [1], "a placeholder has no arguments and one output"),
    ("ops.2.outputs", [], "has 0 outputs, 1 to 4096 are allowed"),
    ("ops.2.outputs.0", ["float32"], r"operator 'linear': a tensor is written \[element type, shape\]"),
    ("ops.2.outputs.0", ["float31", [2]], "unknown element type 'float31', known are float64"),
    ("ops.2.outputs.0", ["float32", [2.0]], "operator 'linear', a size must be int, not float"),
    ("ops.2.outputs.0", ["float32", [True]], "a size must be int, not bool"),
    ("ops.2.outputs.0", ["float32", [-1]], "a size in -1 is below 0"),
    ("ops.2.outputs.0", ["float32", [1] * 17], "a tensor of 17 dimensions, at most 16 are allowed"),
    ("ops.2.outputs.0", ["float32", [1 << 30, 1 << 30]], r"a tensor 1073741824x1073741824 of \d+ bytes, at most \d+ are allowed"),
    ("ops.2.outputs.0", ["float32", [10**900]], "a size in .huge. is below 0 or above"),
    ("ops.2.occurrence", -1, "occurrence -1 is below 0"),
    ("ops.2.rng", 0, "rng is 0, but this operator draws no random numbers"),
    ("ops.4.rng", -1, "rng is -1, but numbers rise in program order and 0 is the next"),
    ("states.0.name", "mask", "state 'mask': the name 'mask' stands twice"),
    ("states.1.aliases", ["weight"], "state 'count': the name 'weight' stands twice"),
    ("states.1.trainable", True, "state 'count': only floating parameters can be trainable"),
    ("states.2.data", "AAE", "state 'mask': 'data' is not base64"),
    ("states.2.data", "\u00e9AAA", "state 'mask': 'data' is not base64"),
    ("states.2.data", "AAEA", "state 'mask': data has 3 bytes, its shape says 4"),
    ("states.2.data", None, "state 'mask': a constant needs data or an initializer program"),
    ("states.2.init", [{"target": "aten.ones.default"}], "state 'mask': has both data and an initializer program"),
    ("states.0.init.1.args.0", {"l": 1}, "initializer step 1 .*: reads step 1, which does not stand before it"),
    ("states.0.init.1.args.0", {"v": "x"}, "reads x, but a program sees only its own steps"),
    ("states.0.init.1.args.0", 1, "the first argument of an in-place operator must be an earlier step"),
    ("states.0.init.1.rng", None, "exactly the steps that draw random numbers are numbered by rng"),
    ("states.0.init.1.rng", -1, "rng is -1, but numbers rise along the program and 0 is the next"),
    ("states.0.init.1.output", -1, "initializer step 1 .*: output -1 is below 0"),
    ("states.0.init.0.like", ["mask", 0], "only a step that draws random numbers can copy those of another state's step"),
    ("states.0.init.1.like", ["mask"], "state 'weight', step 1: 'like' must be .state, number."),
    ("states.0.init.1.like", ["", 0], "state name '' must have 1 to 512 printable characters"),
    ("states.0.init.1.target", "aten.linear.default", "'aten.linear.default' is not allowed in an initializer program"),
    ("outputs.0", ["loss"], r"outputs: an entry is written \[name, value\]"),
    ("outputs.0.0", "half", "an output's name stands twice"),
    ("outputs.0.0", "lost", "graph 'sample' is to train but has no output called 'loss'"),
    ("outputs.0.1", "linear", "the loss 'linear' must be a floating scalar, not 2x4 float32"),
    ("outputs.0.1", "nothing", "output 'loss' is 'nothing', which no operator makes"),
    ("state_updates.0.0", "weight", "update of 'weight': the graph has no such state that is not trained"),
    ("state_updates.0.1", "loss", "update of 'count': loss has another shape or element type than the state"),
    ("meta.inputs", 3, "meta 'inputs' must be str, not int"),
]


@pytest.mark.parametrize(("path", "value", "message"), BROKEN)
def test_every_rule_has_its_text(path, value, message):
    with pytest.raises(GraphError, match=message):
        Graph.from_json(broken(path, value))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", b"\xff\xfe\x00", '{"a":1,"a":2}', '{"x":NaN}', "[" * 100_000, "1" * 5000])
def test_what_is_no_document_is_refused(text):
    with pytest.raises(GraphError, match="graph document"):
        Graph.from_json(text)


def test_other_versions_are_refused_with_the_remedy():
    with pytest.raises(
        VersionError, match="graph document has version 2, this program reads 1: use equal versions on all machines"
    ):
        Graph.from_json(broken("version", 2))


LIMITS = [
    (Limits(document_bytes=10), r"graph document has \d+ bytes: at most 10 are read"),
    (Limits(ops=3), "graph has 7 operators: at most 3 are allowed"),
    (Limits(states=2), "graph has 3 states: at most 2 are allowed"),
    (Limits(data_bytes=3), "graph has 4 bytes of data: at most 3 are allowed"),
    (Limits(init_steps=1), "state 'weight': 2 initializer steps, at most 1 are allowed"),
    (Limits(arguments=2), "3 arguments, at most 2 are allowed"),
    (Limits(text_length=3), "a text has 4 characters, at most 3 are allowed"),
]


@pytest.mark.parametrize(("limits", "message"), LIMITS)
def test_limits(limits, message):
    with pytest.raises(GraphError, match=message):
        Graph.from_json(sample().to_json(), limits)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["x", "fill", "linear:1", "aten.add.Tensor", "farflung.input", "placeholder", "float32", "weight"]),
    st.recursive(
        st.sampled_from([{"v": "x"}, {"v": "split:1"}, {"s": "mask"}, {"l": 0}, {"d": F}, {"f": "nan"}, {"v": 3}]),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=4,
    ),
    st.dictionaries(st.sampled_from(["name", "v", "kind", "target"]), st.text(max_size=3), max_size=2),
)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_mutations_are_refused_or_valid(data):
    document = json.loads(sample().to_json())
    for _ in range(data.draw(st.integers(1, 3))):
        _mutate(document, data)
    try:
        graph = Graph.from_json(json.dumps(document))
    except (GraphError, VersionError):
        return
    assert Graph.from_json(graph.to_json()).hash == graph.hash


def _mutate(place, data) -> None:
    """Replace, delete or copy something at a random depth."""
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], (dict, list)) and data.draw(st.integers(0, 3)):
            place = place[key]
            continue
        what = data.draw(st.sampled_from(["replace", "delete", "copy"]))
        if what == "delete":
            del place[key]
        elif what == "copy" and isinstance(place, list):
            place.append(copy.deepcopy(place[key]))
        else:
            place[key] = copy.deepcopy(data.draw(JUNK))  # the drawn objects are shared between examples
        return


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_torn_and_flipped_bytes_are_refused_or_valid(data):
    raw = bytearray(sample().to_json().encode())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    text = bytes(raw[: data.draw(st.integers(0, len(raw)))]) if data.draw(st.booleans()) else bytes(raw)
    with contextlib.suppress(GraphError, VersionError):
        assert Graph.from_json(text).ops


def test_a_graph_in_eval_mode_needs_no_loss():
    pen = Pen()
    x = pen.op("farflung.input", (), spec(F, 4), OpKind.PLACEHOLDER, name="x")
    y = pen.op("aten.relu.default", (x,), spec(F, 4), name="y")
    graph = Graph(name="g", mode="eval", ops=tuple(pen.ops), states=(), outputs=(("y", y),))
    assert Graph.from_json(graph.to_json()) == graph
