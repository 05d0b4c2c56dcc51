"""Reports of one run: complete, self-contained, escaped, and useful for runs that were cut short."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import DataError, InputError
from farflung.telemetry import CodecUse, RecoveryRecord, RunFolder, RunResult, StepRecord
from farflung.web.reports import load_run, write_report
from farflung.web.reports.markdown import to_markdown
from farflung.web.reports.page import Page, to_html
from farflung.web.reports.tables import Table, headline, stages, totals

MakeRun = Callable[..., Path]
NASTY = "<script>alert('x')</script> & \"q\" | $x_1$ `c` _u_"


class Reader(HTMLParser):
    """Collects tags, and the text outside of pictures and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("svg", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside and data.strip():
            self.texts.append(data)


def read(path: Path) -> Reader:
    return Reader(path.read_text(encoding="utf-8"))


def pictures(page: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)


def cells(reader: Reader) -> set[str]:
    return set(reader.texts)


def test_a_report_has_plots_and_tables(make_run: MakeRun) -> None:
    folder = make_run(sample="def f():\n    pass\n")
    path = write_report(folder)
    assert path == folder / "report.html"
    reader = read(path)
    for title in ("Loss", "Step time", "Predicted against measured", "Bytes per link", "Stages", "Links", "Totals", "Settings"):
        assert title in reader.texts
    assert len(pictures(path.read_text())) == 5
    assert "def f():\n    pass\n" in reader.texts
    assert "finished" in reader.texts


def test_the_figures_are_those_of_the_run(make_run: MakeRun) -> None:
    found = cells(read(write_report(make_run(steps=60, seconds=0.5, nbytes=2_000))))
    assert {"2 kB", "1 kB", "100 kB", "50×", "100×", "120 kB", "60 kB"} <= found, "bytes by link, factors, totals"
    assert {"20 ms", "8 Mbit/s", "30 ms", "16 Mbit/s"} <= found, "latency and bandwidth of both directions"
    assert {"laptop", "office", "home", "town", "150 ms", "250 ms", "64"} <= found, "stages"
    assert {"1.12", "450 ms", "76,800", "600", "ckpt/60"} <= found, "predictions and totals"
    assert {"adatopk", "adamw", "2 × 4, 2"} <= found, "settings that are not the defaults"
    assert "seed" not in found, "a setting with its default is left out"


def test_a_page_needs_nothing_and_runs_nothing(make_run: MakeRun) -> None:
    path = write_report(make_run())
    text = path.read_text()
    reader = Reader(text)
    assert {tag for tag, _ in reader.tags} & {"script", "link", "img", "iframe", "object"} == set()
    assert (
        "meta",
        {"http-equiv": "Content-Security-Policy", "content": "default-src 'none'; style-src 'unsafe-inline'"},
    ) in reader.tags
    references = [value for _, attrs in reader.tags for name, value in attrs.items() if name in ("href", "src", "xlink:href")]
    assert all(value is not None and value.startswith("#") for value in references)
    assert set(re.findall(r"https?://[^\"\s]+", text)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_pictures_are_well_formed_and_the_same_each_time(make_run: MakeRun) -> None:
    folder = make_run()
    first = write_report(folder).read_text()
    for picture in pictures(first):
        ET.fromstring(picture)
    assert write_report(folder).read_text() == first


def test_text_from_outside_is_escaped(make_run: MakeRun) -> None:
    folder = make_run(job_name=NASTY)
    files = RunFolder(folder)
    files.result.write_text(RunResult(status="failed", steps=3, seconds=1.0, cause=NASTY, sample=NASTY).to_json())
    files.plan.write_text(files.plan.read_text().replace('"laptop"', '"<x>laptop</x>"'))
    reader = read(write_report(folder))
    assert {tag for tag, _ in reader.tags} & {"script", "x"} == set()
    assert reader.texts.count(NASTY) >= 2, "title and sample"
    assert any(NASTY in text and text.startswith("2 stages on 2 devices") for text in reader.texts)
    assert "<x>laptop</x>" in reader.texts
    assert "failed" in reader.texts


@settings(deadline=None, max_examples=50)
@given(text=st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=30))
def test_any_text_comes_back_from_the_page(text: str) -> None:
    table = Table(title=text, head=(text,), rows=((text,),), note=text)
    page = Page(title=text, lead=text, badge=text, figures=((text, text),), tables=(table,), texts=((text, text),))
    reader = Reader(to_html(page))
    expected = [
        tag
        for tag, _ in Reader(
            to_html(
                Page(
                    title="x",
                    lead="x",
                    badge="x",
                    figures=(("x", "x"),),
                    tables=(Table(title="x", head=("x",), rows=(("x",),), note="x"),),
                    texts=(("x", "x"),),
                )
            )
        ).tags
    ]
    assert [tag for tag, _ in reader.tags] == expected
    assert text in reader.texts or not text.strip()


@settings(deadline=None, max_examples=50)
@given(text=st.text(st.characters(blacklist_categories=("Cs",)), max_size=30))
def test_markdown_tables_keep_their_columns_and_fences_hold(text: str) -> None:
    table = Table(title="t", head=("a", "b"), rows=((text, text),))
    written = to_markdown(Page(title="p", lead=text, tables=(table,), texts=(("s", text),)), "p")
    row = next(
        line
        for i, line in enumerate(written.split("\n"))
        if line.startswith("| ") and written.split("\n")[i - 1].startswith("| :")
    )
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 3
    fence = re.search(r"(`{3,})text\n(.*)\n\1\n\Z", written, flags=re.DOTALL)
    assert fence is not None
    assert fence[1] not in fence[2]


def test_markdown_has_its_pictures_beside_it(make_run: MakeRun, tmp_path: Path) -> None:
    path = write_report(make_run(), tmp_path / "my report.md")
    text = path.read_text()
    names = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert names == [f"my%20report-{name}.svg" for name in ("loss", "step-time", "prediction", "link-bytes", "plan-map")]
    for name in names:
        ET.parse(tmp_path / name.replace("%20", " "))
    assert "| 0 (laptop) | 1 (office) | activations | topk(ratio=100) | 20 ms | 8 Mbit/s | 2 kB | 100 kB | 50× | 120 kB |" in text


def test_a_run_cut_short_is_shown_as_far_as_it_went(make_run: MakeRun) -> None:
    folder = make_run(steps=30, without=("result.json",))
    metrics = folder / "metrics.jsonl"
    metrics.write_text(metrics.read_text()[:-15])
    reader = read(write_report(folder))
    assert "cut short" in reader.texts
    assert "29 of 60" in reader.texts
    assert len(load_run(folder).steps) == 29


def test_a_run_without_a_finished_step_has_a_report_without_plots(make_run: MakeRun) -> None:
    path = write_report(make_run(steps=0, without=("result.json",)))
    assert "No step was finished, so there is nothing to plot." in path.read_text()
    assert pictures(path.read_text()) == []
    assert "laptop" in read(path).texts


def test_the_graph_and_the_topology_may_be_missing(make_run: MakeRun) -> None:
    reader = read(write_report(make_run(without=("graph.json", "topology.json"))))
    assert "laptop" in reader.texts
    assert "home" not in reader.texts
    assert "20 ms" not in reader.texts


@pytest.mark.parametrize("gone", [("job.json",), ("plan.json",), ("metrics.jsonl",), ("job.json", "plan.json", "metrics.jsonl")])
def test_what_a_folder_lacks_is_named(make_run: MakeRun, gone: tuple[str, ...]) -> None:
    folder = make_run(without=gone)
    with pytest.raises(DataError) as caught:
        write_report(folder)
    lacks = ", ".join(gone)
    remedy = "name the folder of a run that has begun its first step"
    assert str(caught.value) == f"{folder} is not a complete run folder, it lacks {lacks}; {remedy}"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a complete run folder"):
        write_report(tmp_path / "none")


@pytest.mark.parametrize("name", ["job.json", "plan.json", "graph.json", "topology.json", "result.json", "metrics.jsonl"])
@pytest.mark.parametrize("content", [b"{\n", b"\xff\xfe\n", b"[]\n"])
def test_a_damaged_file_is_named(make_run: MakeRun, name: str, content: bytes) -> None:
    folder = make_run()
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=re.escape(name)) as caught:
        write_report(folder)
    assert str(caught.value).count("\n") == 0


def test_another_ending_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a report ends in \.html or \.md, got 'report\.pdf'"):
        write_report(make_run(), tmp_path / "report.pdf")


def test_a_place_that_cannot_be_written_is_named(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot write .*report\.html: .*; choose a folder that can be written"):
        write_report(make_run(), tmp_path / "none" / "report.html")


def test_long_runs_and_losses_that_are_no_numbers_make_small_pictures(make_run: MakeRun) -> None:
    folder = make_run(steps=0)
    lines = [
        StepRecord(
            step=i, loss=math.nan if i % 7 == 0 else 1.0 / (1 + i), seconds=1.0, elapsed=float(i), samples=1, skipped=i % 7 == 0
        )
        for i in range(10_000)
    ]
    (folder / "metrics.jsonl").write_text("".join(line.to_line() for line in lines))
    path = write_report(folder)
    assert path.stat().st_size < 500_000
    assert not any(re.search(r"\bnan\b", picture) for picture in pictures(path.read_text()))
    assert "1429" in read(path).texts, "skipped steps are counted"


def test_a_single_step_is_drawn(make_run: MakeRun) -> None:
    assert len(pictures(write_report(make_run(steps=1)).read_text())) == 5


def test_a_slow_first_step_does_not_squash_the_others(make_run: MakeRun) -> None:
    folder = make_run(steps=0)
    for i in range(20):
        record = StepRecord(step=i, loss=1.0, seconds=60.0 if i == 0 else 1.0, elapsed=60.0 + i, samples=1)
        RunFolder(folder).append(record)
    text = write_report(folder).read_text()
    assert " 1 step takes longer than shown, at most 1 min 0 s." in text
    assert "longer than shown" not in write_report(make_run("even", steps=20)).read_text()


def test_how_far_replicas_were_apart_is_drawn_where_they_were(make_run: MakeRun) -> None:
    assert "Replicas apart" not in write_report(make_run()).read_text()
    folder = make_run("replicas", steps=0)
    for i in range(8):
        divergence = 0.25 if i % 4 == 3 else None
        record = StepRecord(step=i, loss=1.0, seconds=1.0, elapsed=i + 1.0, samples=1, divergence=divergence)
        RunFolder(folder).append(record)
    text = write_report(folder).read_text()
    assert "Replicas apart" in text
    assert "in percent of it, in steps that averaged some" in text


def test_what_codecs_cost_and_lose_stands_beside_their_links(make_run: MakeRun) -> None:
    folder = make_run("coded", steps=0)
    for i in range(3):
        uses = {(0, 1): CodecUse(encode_seconds=0.004, decode_seconds=0.002, error=None if i else 0.125)}
        uses[0, 0] = CodecUse(encode_seconds=0.005, decode_seconds=0.003, error=0.0625)
        sent = {(0, 0): 10, (0, 1): 10}
        record = StepRecord(step=i, loss=1.0, seconds=1.0, elapsed=i + 1.0, samples=1, link_bytes=sent, codecs=uses)
        RunFolder(folder).append(record)
    shown = cells(read(write_report(folder)))
    assert {"encode per step", "4 ms", "2 ms", "measured error", "12.50%"} <= shown
    assert {"each other", "5 ms", "3 ms", "6.25%"} <= shown


def recovered(folder: Path) -> Path:
    """Steps 0 to 9 on three stages, then a loss, then the two stages of the plan."""
    files = RunFolder(folder)
    three = {(0, 1): 9_000_000, (1, 2): 8_000_000, (2, 1): 7_000_000}
    made = [record for record in files.committed() if isinstance(record, StepRecord)]
    first = [replace(record, link_bytes=three, busy_seconds={0: 0.1, 1: 0.1, 2: 0.1}) for record in made[:10]]
    loss = RecoveryRecord(
        step=10, attempt=2, replayed=0, pause=1.0, elapsed=5.0, cause="garage is gone", devices=("laptop", "office")
    )
    files.metrics.write_text("")
    for record in (*first, loss, *made[10:]):
        files.append(record)
    return folder


def test_after_a_recovery_links_are_those_of_the_present_plan(make_run: MakeRun) -> None:
    path = write_report(recovered(make_run()))
    text, found = path.read_text(), cells(read(path))
    assert not re.search(r"\(\w* → \)|\( → ", text), "a link names both of its devices"
    assert {"0 (laptop)", "1 (office)"} <= found
    assert not any(cell.startswith("2 (") for cell in found)
    assert {"2 kB", "1 kB"} <= found, "bytes per step are those of the present plan"
    assert "10 earlier steps ran under another plan, with other links." in text
    assert "From step 11 on, since the last recovery." in text


def test_each_step_is_compared_with_its_own_plan(make_run: MakeRun) -> None:
    """Steps of 1 s under a plan that predicted 1 s, then steps of 0.2 s, of which one stage computes a half."""
    files = RunFolder(recovered(make_run(steps=14)))
    made = files.committed()
    files.metrics.write_text("")
    for record in made:
        seconds = 1.0 if record.step < 10 else 0.2
        times: dict[str, Any] = {
            "seconds": seconds,
            "predicted_seconds": seconds,
            "busy_seconds": {0: seconds / 2, 1: seconds / 2},
        }
        files.append(replace(record, **times) if isinstance(record, StepRecord) else record)
    run = load_run(files.root)
    assert (run.predicted_ratio, run.plan_medians) == (1.0, (1.0,) * 10 + (0.2,) * 4)
    text = write_report(files.root).read_text()
    assert "The median step took 1.00 times the time that its plan predicted." in text
    assert {row[-1] for row in stages(run).rows} == {"50%"}
    assert dict(headline(run))["measured / predicted"] == "1.00"
    assert ("step time, predicted by the last plan", "200 ms") in totals(run).rows


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        ({"status": "stopped"}, "Stopped after 12 of 60 steps by request."),
        ({"status": "stopped", "cause": "the submitter left"}, "Stopped after 12 of 60 steps: the submitter left."),
        ({"status": "failed"}, "The run ended after 12 of 60 steps, and the broker recorded no cause."),
        ({"status": "failed", "cause": "no worker is left"}, "no worker is left"),
    ],
)
def test_how_a_run_ended_is_said(make_run: MakeRun, result: dict[str, str], sentence: str) -> None:
    folder = make_run(steps=12)
    RunFolder(folder).result.write_text(RunResult(steps=12, seconds=6.0, **result).to_json())  # type: ignore[arg-type]
    assert sentence in write_report(folder).read_text()


def test_plots_are_readable_on_a_narrow_screen(make_run: MakeRun) -> None:
    """390 pixels less the page's and the figure's padding; text of 9.5 points."""
    text = write_report(make_run()).read_text()
    room = 390 - 2 * 10 - 2 * 11
    plots = [picture for picture in pictures(text) if 'class="drawn"' not in picture]
    for picture in plots:
        width = re.search(r'width="([\d.]+)pt"', picture)
        assert width is not None
        assert 9.5 * room / float(width[1]) >= 7.0
    assert "figure.wide svg { width: auto; min-width: 960px; }" in text
