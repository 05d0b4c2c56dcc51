"""Drawings: the right boxes and links, stages by colour, well-formed output for hostile names."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import GraphError
from farflung.graph.builder import GraphBuilder
from farflung.graph.ir import Graph
from farflung.graph.render import STAGE_COLOURS, draw, to_dot, to_svg, to_text
from tests.support.plans.random_graphs import bounds, graphs

SVG = "{http://www.w3.org/2000/svg}"


def residual() -> Graph:
    builder = GraphBuilder("residual")
    x = builder.input("x", "float32", (2, 8))
    x = builder.add("inner.0", "Linear", x, in_features=8, out_features=8)
    y = builder.add("inner.1", "Linear", x, in_features=8, out_features=8)
    z = builder.add("add", "Add", x, y)
    builder.add("loss", "MSELoss", z, builder.label("label", "float32", (2, 8)))
    return builder.build()


def test_boxes_and_links():
    drawing = draw(residual())
    assert [(box.path, box.parameters) for box in drawing.boxes] == [("inner.0", 72), ("inner.1", 72), ("add", 0), ("loss", 0)]
    assert [(link.source, link.target, link.nbytes) for link in drawing.links] == [
        (0, 1, 64),
        (0, 2, 64),
        (1, 2, 64),
        (2, 3, 64),
    ]


def test_levels_and_stages_split_runs():
    graph = residual()
    assert [box.path for box in draw(graph, level=1).boxes] == ["inner", "add", "loss"]
    split = draw(graph, level=1, bounds=[(0, 2), (2, len(graph.ops))])
    assert [(box.path, box.stage) for box in split.boxes] == [("inner", 0), ("inner", 1), ("add", 1), ("loss", 1)]
    with pytest.raises(GraphError, match="the stages end at position 2"):
        draw(graph, bounds=[(0, 2)])


def test_text():
    text = to_text(residual(), bounds=[(0, 2), (2, 6)])
    lines = text.splitlines()
    assert lines[0] == "residual: 6 operators, 4 modules, 144 parameters"
    assert " ".join(lines[1].split()) == "stage module type operators parameters result sent if cut below values"
    assert lines[3].split() == ["0", "inner.0", "Linear", "2", "72", "float32[2x8]", "64B", "1"]
    assert lines[4].split() == ["1", "inner.1", "Linear", "1", "72", "float32[2x8]", "128B", "2"]


def test_svg_has_a_box_per_module_and_colours_per_stage():
    graph = residual()
    root = ET.fromstring(to_svg(graph, bounds=[(0, 2), (2, 6)]))
    fills = [box.get("fill") for box in root.iter(f"{SVG}rect")][1:]
    assert fills == [STAGE_COLOURS[0], *[STAGE_COLOURS[1]] * 3]
    assert len(list(root.iter(f"{SVG}path"))) == 4
    height = float(root.get("height"))
    assert all(float(box.get("y", 0)) + 38 <= height for box in root.iter(f"{SVG}rect"))


def test_dot():
    text = to_dot(residual())
    assert text.startswith('digraph "residual" {')
    assert "n0 -> n2" in text
    assert text.count("fillcolor") == 4


HOSTILE = '</text><script>alert("x")</script>\\" ]; n9 [label="\n\x07\ud800'


def test_hostile_names_are_escaped():
    graph = residual()
    ops = tuple(replace(op, module=HOSTILE, module_type=HOSTILE) if op.module == "add" else op for op in graph.ops)
    hostile = replace(graph, ops=ops, name=HOSTILE)
    root = ET.fromstring(to_svg(hostile))
    assert not list(root.iter(f"{SVG}script"))
    dot = to_dot(hostile)
    body = [line for line in dot.splitlines() if line.startswith("  n2 [")]
    assert len(body) == 1
    inner = body[0].removeprefix('  n2 [label="').rsplit('", fillcolor=', 1)[0]
    assert '"' not in inner.replace("\\\\", "").replace('\\"', "")
    assert len(to_text(hostile).splitlines()) == 3 + 4
    to_text(hostile).encode()


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_any_graph_can_be_drawn(data):
    graph = data.draw(graphs())
    tiles = data.draw(st.one_of(st.none(), bounds(graph)))
    level = data.draw(st.sampled_from(["leaf", "block", 1]))
    ET.fromstring(to_svg(graph, level=level, bounds=tiles))
    drawing = draw(graph, level=level, bounds=tiles)
    assert [box.start for box in drawing.boxes] == [0, *[box.stop for box in drawing.boxes[:-1]]]
    assert drawing.boxes[-1].stop == len(graph.ops)
    assert all(link.source < link.target for link in drawing.links)
