"""Drawings of plans: everything in its place and on the page, told in words too, safe, the same each time, at any size."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.cluster import Device, Topology
from farflung.errors import DataError, InputError
from farflung.graph.builder import GraphBuilder
from farflung.graph.ir import Graph
from farflung.job.spec import CodecSpec, JobSpec, PlanSpec
from farflung.planners import get_planner
from farflung.simulator import SimulationSettings, Simulator
from farflung.telemetry import ClockOffset, ProcessTrace, RunFolder, Span, SpanKind, write_spans
from farflung.units import Bytes, FlopsPerSecond
from farflung.web.reports import write_report
from farflung.web.reports.drawing import PlanDrawing, write_drawing
from farflung.web.reports.ink import inline
from farflung.web.reports.plan_map import plan_map
from farflung.web.reports.scene import Scene, Spot, Way, scene_of_plan
from farflung.web.reports.time_chart import ChartRow, time_chart

MakeRun = Callable[..., Path]
SVG = "{http://www.w3.org/2000/svg}"
NASTY = '<script>alert("x")</script>&\x07'


def chain(layers: int) -> Graph:
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (8, 32))
    for i in range(layers):
        value = builder.add(f"fc{i}", "Linear", value, in_features=32, out_features=32)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (8, 32)))
    return builder.build()


def network(count: int, regions: int, prefix: str = "d") -> Topology:
    devices = [
        Device(name=f"{prefix}{i}", memory=Bytes(1e9), speed=FlopsPerSecond(1e8), region=f"r{i * regions // count}")
        for i in range(count)
    ]
    numbers = [int(device.region[1:]) for device in devices]
    far = [[1e-3 if a == b else 0.02 for b in range(regions)] for a in range(regions)]
    rate = [[1e7 if a == b else 1e5 for b in range(regions)] for a in range(regions)]
    return Topology.from_groups(devices, numbers, far, rate, "net")


def drawing(topology: Topology, job: JobSpec, layers: int, name: str = "job") -> PlanDrawing:
    graph = chain(layers)
    plan = get_planner("equal_number").plan(graph, topology, job=job)
    simulator = Simulator(graph, topology, job, SimulationSettings(spans=True))
    return PlanDrawing(
        name=name,
        plan=plan,
        topology=topology,
        estimate=simulator.evaluate(plan),
        simulation=simulator.run(plan),
        texts=(("Why", "because"),),
    )


TWO = JobSpec(micro_batch_sizes=(8,) * 3, codec=CodecSpec(name="topk", ratio=10))


def titles(text: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(text).iter(f"{SVG}title")]


def test_a_page_holds_both_pictures_and_loads_nothing(tmp_path: Path) -> None:
    given_ = drawing(network(2, 2), TWO, 6)
    page = write_drawing(given_, tmp_path / "plan.html").read_text()
    assert page == write_drawing(given_, tmp_path / "again.html").read_text()
    found = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(found) == 2
    assert not re.search(r"\b(?:src|href)=|@import|url\(", page)
    assert set(re.findall(r"https?://[^\"' ]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme:dark" in page
    assert "because" in page
    for picture in found:
        root = ET.fromstring(picture)
        assert root.get("role") == "img"
        names = (root.get("aria-labelledby") or "").split()
        texts = {element.get("id"): element.text for element in root if element.get("id")}
        assert all(texts[name] for name in names)
    assert "2 stages on 2 devices in 2 regions." in found[0]
    assert any("d0 to d1" in text and "codec topk 10" in text for text in titles(found[0]))
    assert any("backward of micro-batch 2, stage 1" in text for text in titles(found[1]))


def test_an_svg_holds_both_pictures_in_one_document(tmp_path: Path) -> None:
    text = write_drawing(drawing(network(2, 2), TWO, 6), tmp_path / "plan.svg").read_text()
    root = ET.fromstring(text.split("\n", 1)[1])
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert {"Devices, stages and links", "One simulated step", "d0 (0)", "d1 (1)"} <= set(words)
    assert len(root.findall(f"{SVG}g")) == 2


def test_blocks_are_as_long_as_what_they_stand_for() -> None:
    found = drawing(network(2, 2), TWO, 6)
    rows = [ChartRow(trace=trace, stages=(i,)) for i, trace in enumerate(found.simulation.traces)]
    picture = time_chart(rows, 2)
    root = ET.fromstring(inline(picture))
    widths: dict[str, float] = {}
    for block in root.iter(f"{SVG}rect"):
        title = block.findtext(f"{SVG}title")
        if title is not None:
            name = title.split(":")[0]
            if (block.get("class") or "") in ("forward", "backward"):
                widths[name] = widths.get(name, 0.0) + float(block.get("width") or 0)
    last = max(span.end for row in rows for span in row.trace.spans)
    scale = (1160 - 170 - 16) / last
    for row in rows:
        spans = [s for s in row.trace.spans if s.what is SpanKind.COMPUTE and s.micro_batch >= 0]
        assert widths[row.trace.process] == pytest.approx(scale * sum(s.seconds for s in spans), abs=0.2)
    assert "d0 computes" in picture.description


def test_sixty_four_devices_stay_readable(tmp_path: Path) -> None:
    job = JobSpec(micro_batch_sizes=(1,) * 8, plan=PlanSpec(replicas=8))
    found = drawing(network(64, 8), job, 10)
    scene = scene_of_plan(found.plan, found.topology, found.estimate, found.simulation)
    text = inline(plan_map(scene))
    assert sum(title.startswith("d") and "stage" in title for title in titles(text)) == 64
    assert len(re.findall('class="way', text)) <= 24 * 8 + 64
    assert len(text) < 200_000
    write_drawing(found, tmp_path / "plan.html")
    assert (tmp_path / "plan.html").stat().st_size < 2_000_000


def test_a_site_that_divides_parameters_or_micro_batches_says_so() -> None:
    network_ = network(2, 2)
    site, other = network_.devices
    found = drawing(network_.with_devices([replace(site, ranks=2), other]), JobSpec(micro_batch_sizes=(8,) * 4), 6)
    first, second = found.plan.stages
    plan = replace(found.plan, stages=(replace(first, shard="parameters"), replace(second, shard="tensor")))
    spots = scene_of_plan(plan, found.topology, found.estimate, found.simulation).spots
    assert ["ranks divide the parameters of stage" in spot.facts for spot in spots] == [True, False]
    assert ["ranks compute each micro-batch of stage 1 together" in spot.facts for spot in spots] == [False, True]


def test_hundreds_of_devices_are_drawn_as_regions_and_their_charts_cut() -> None:
    spots = tuple(Spot(name=f"d{i}", region=f"r{i % 20}", stages=(i % 4,), busy=0.5) for i in range(400))
    ways = tuple(Way(source=a.name, target=b.name, nbytes=1e6, share=0.1) for a, b in pairwise(spots))
    picture = plan_map(Scene(spots=spots, ways=ways, stages=4, spare={"r3": 7, "elsewhere": 2}))
    text = inline(picture)
    assert "on 400 devices in 20 regions. Each region is drawn as one box. 9 devices are not used." in picture.description
    assert "7 not used" in text
    assert "elsewhere" in text
    rows = [ChartRow(trace=ProcessTrace(process=s.name, spans=(_span(i),)), stages=s.stages) for i, s in enumerate(spots)]
    assert "304 more devices are not drawn" in time_chart(rows, 4).body


def test_one_thing_has_no_plural() -> None:
    picture = plan_map(Scene(spots=(Spot(name="d0", region="r", stages=(0,)),), ways=(), stages=1, spare={"r": 1}))
    assert "1 stage on 1 device in 1 region. 1 device is not used." in picture.description
    chart = time_chart([ChartRow(trace=ProcessTrace(process="d0", spans=(_span(0),)), stages=(0,))], 1)
    assert "500 ms on 1 device: d0 computes 100%" in chart.description


def _span(at: float) -> Span:
    return Span(what=SpanKind.COMPUTE, name="F", start=at, seconds=0.5, stage=0, micro_batch=0, step=0)


def test_names_from_outside_are_text(tmp_path: Path) -> None:
    topology = network(2, 1, NASTY)
    for ending in (".html", ".svg"):
        text = write_drawing(drawing(topology, TWO, 4, NASTY), tmp_path / f"plan{ending}").read_text()
        assert "<script" not in text
        assert "&lt;script&gt;" in text
    ET.fromstring(text.split("\n", 1)[1])


def test_what_cannot_be_drawn_is_named(tmp_path: Path) -> None:
    found = drawing(network(2, 2), TWO, 4)
    with pytest.raises(InputError, match=r"a drawing ends in \.html or \.svg, got 'plan\.png'"):
        write_drawing(found, tmp_path / "plan.png")
    with pytest.raises(DataError, match=r"cannot write .*: No such file or directory; choose a folder"):
        write_drawing(found, tmp_path / "none" / "plan.svg")


@settings(deadline=None, max_examples=40)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=9))
def test_devices_stand_apart_and_on_the_page(sizes: list[int]) -> None:
    spots, number = [], 0
    for region, size in enumerate(sizes):
        for _ in range(size):
            spots.append(Spot(name=f"d{number}", region=f"r{region}", stages=(number,)))
            number += 1
    ways = tuple(Way(source=a.name, target=b.name, nbytes=1e5, share=0.9) for a, b in pairwise(spots))
    picture = plan_map(Scene(spots=tuple(spots), ways=ways, stages=number))
    root = ET.fromstring(inline(picture))
    for kind in ("tile", "box s-edge"):
        rects = [_place(r) for r in root.iter(f"{SVG}rect") if r.get("class") == kind]
        assert len(rects) == (number if kind == "tile" else len(sizes))
        for x, y, width, height in rects:
            assert x >= -0.01
            assert y >= 0
            assert x + width <= picture.width + 0.01
            assert y + height <= picture.height
        for (ax, ay, aw, ah), (bx, by, bw, bh) in combinations(rects, 2):
            assert ax + aw <= bx + 0.01 or bx + bw <= ax + 0.01 or ay + ah <= by + 0.01 or by + bh <= ay + 0.01
    assert len([path for path in root.iter(f"{SVG}path") if (path.get("class") or "").startswith("way")]) == len(ways)


def _place(rect: ET.Element) -> tuple[float, float, float, float]:
    x, y, width, height = (float(rect.get(key) or 0) for key in ("x", "y", "width", "height"))
    return x, y, width, height


def test_a_report_draws_the_step_that_workers_noted(make_run: MakeRun) -> None:
    folder = make_run()
    events = RunFolder(folder).events
    events.mkdir()
    for process, offset in (("laptop", 5.0), ("office", 0.0)):
        spans = [replace(_span(20.0 - offset), step=step) for step in range(60)]
        write_spans(events, process, spans, offset=ClockOffset(seconds=offset, error=0.001))
    page = write_report(folder).read_text()
    assert "One step as it was" in page
    assert "office: forward of micro-batch 0, stage 0, 0 s to 500 ms" in page
    assert "laptop: forward of micro-batch 0, stage 0, 0 s to 500 ms" in page


def test_transfers_are_named_by_what_they_carry_and_tooltips_have_separators() -> None:
    facts = {"step": 0, "stage": 1, "micro_batch": 2, "peer": "pc3", "nbytes": 1500}

    def moved(what: SpanKind, name: str, start: float, **others: object) -> Span:
        return Span(what=what, name=name, start=start, seconds=0.5, **(facts | others))  # type: ignore[arg-type]

    spans = (
        moved(SpanKind.ENCODE, "encode activation", 0, nbytes=0),
        moved(SpanKind.SEND, "send activation", 1),
        moved(SpanKind.DECODE, "decode gradient", 2),
        moved(SpanKind.RECEIVE, "receive gradient", 3),
        moved(SpanKind.SEND, "send part", 4, micro_batch=-1),
        moved(SpanKind.SEND, "send losses", 5, micro_batch=-1, stage=-1, nbytes=0),
    )
    picture = inline(time_chart([ChartRow(trace=ProcessTrace(process="pc1", spans=spans), stages=(1,))], 2))
    titles = [title.text for title in ET.fromstring(picture).iter(f"{SVG}title")][1:]
    assert sorted(filter(None, titles)) == sorted(
        [
            "pc1: encode activation of micro-batch 2, stage 1, to pc3, 0 s to 500 ms",
            "pc1: send activation of micro-batch 2, stage 1, to pc3, 1.5 kB, 1.00 s to 1.50 s",
            "pc1: decode gradient of micro-batch 2, stage 1, from pc3, 1.5 kB, 2.00 s to 2.50 s",
            "pc1: receive gradient of micro-batch 2, stage 1, from pc3, 1.5 kB, 3.00 s to 3.50 s",
            "pc1: send part, stage 1, to pc3, 1.5 kB, 4.00 s to 4.50 s",
            "pc1: send losses, to pc3, 5.00 s to 5.50 s",
        ]
    )
    kinds = re.findall(r'<rect class="(\w+)"[^>]*><title>', picture)
    assert sorted(kinds) == sorted(["coding", "activation", "coding", "gradient", "exchange", "message"])
    for name in (">activations<", ">gradients<", ">between replicas<", ">messages<", ">codec<"):
        assert name in picture
    assert "exchange of gradients" not in picture
