"""A run leaves a trace: every worker's spans, on one clock, in the run's folder."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from typer.testing import CliRunner

from farflung.broker.records.run_store import RunStore
from farflung.cli.main import app
from farflung.engines.base import DeviceReport
from farflung.engines.torch.engine import TorchEngine
from farflung.errors import InputError
from farflung.messages.conversions.step_reports import trace_of
from farflung.messages.reports import Traced
from farflung.telemetry import ClockOffset, ProcessTrace, Span, SpanKind, read_traces, time_shares
from tests.support.runs.loopback import Loopback, text_folder, text_job


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two workers, four steps of two micro-batches."""
    place = tmp_path_factory.mktemp("traced")
    text_folder(place)
    patch = pytest.MonkeyPatch()
    report = DeviceReport(name="test", flops_per_second=1e9, launch_seconds=0.0, total_bytes=8 * 10**9, free_bytes=8 * 10**9)
    patch.setattr(TorchEngine, "measure", lambda self, device, peak=None: report)
    with Loopback(place, 2) as cluster:
        folder = cluster.run(text_job()).folder
    patch.undo()
    return folder


def test_every_worker_tells_what_it_did(finished: Path) -> None:
    traces = read_traces(finished / "events")
    assert [trace.process for trace in traces] == ["a", "b"]
    for trace in traces:
        computed = [span for span in trace.spans if span.what is SpanKind.COMPUTE]
        assert [span.name for span in computed].count("F") == [span.name for span in computed].count("B") == 4 * 2
        assert [span.name for span in computed].count("update") == 4
        assert {span.step for span in computed} == {0, 1, 2, 3}
        assert {span.what for span in trace.spans} >= {SpanKind.SEND, SpanKind.ENCODE, SpanKind.DECODE, SpanKind.WAIT}
        sent = [span for span in trace.spans if span.what is SpanKind.SEND and span.name in ("send activation", "send gradient")]
        assert sent
        assert all(span.nbytes > 0 and span.peer in {"a", "b"} - {trace.process} for span in sent)
        received = [span for span in trace.spans if span.what is SpanKind.RECEIVE and span.micro_batch >= 0]
        assert received
        assert {span.name for span in received} <= {"receive activation", "receive gradient"}
        assert all(span.step >= 0 and span.stage >= 0 and span.nbytes > 0 for span in received)
        assert trace.lost == 0
        assert abs(trace.offset.seconds) <= trace.offset.error + 1e-3  # one machine, one clock


def test_time_adds_up(finished: Path) -> None:
    for shares in time_shares(read_traces(finished / "events")):
        assert 0 < shares.compute <= shares.total
        assert shares.compute + shares.wait <= shares.total * 1.001
        assert 0 <= shares.hidden <= shares.transfer
        assert shares.compute + shares.exposed + shares.idle + shares.other == pytest.approx(shares.total)


def test_the_command_prints_and_writes(finished: Path, tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    told = CliRunner().invoke(app, ["trace", str(finished), "--perfetto", str(target)])
    for column in ("before", "total", "send, receive", "hidden", "clock"):
        assert f"{column}: " in told.stdout or f"{column} = " in told.stdout, "the legend"
    assert told.exit_code == 0, told.output
    assert all(word in told.output for word in ("compute", "transfer only", "wait only", "other", "hidden"))
    assert "ui.perfetto.dev" in told.output
    document = json.loads(target.read_text())
    assert {event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"} == {"a", "b"}
    assert set(document["otherData"]["clocks"]) == {"a", "b"}
    sent = Counter(
        {"activation": "forward"}.get(span.name.split()[1], "backward")
        for trace in read_traces(finished / "events")
        for span in trace.spans
        if span.what is SpanKind.SEND and span.name.startswith(("send activation", "send gradient"))
    )
    arrows = [event for event in document["traceEvents"] if event["ph"] in "sf"]
    assert min(sent["forward"], sent["backward"]) >= 4 * 2  # four steps of two micro-batches
    for phase in "sf":
        assert Counter(event["name"] for event in arrows if event["ph"] == phase) == sent
    by_name = CliRunner().invoke(app, ["trace", finished.name, "--home", str(finished.parents[1])])
    assert by_name.exit_code == 0, by_name.output


def test_a_folder_without_trace_is_told(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["trace", str(tmp_path)])
    assert isinstance(told.exception, InputError)
    assert "has no trace" in str(told.exception)


def test_a_trace_on_disk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farflung.broker.records.run_store._MAX_SPANS", 3)
    store = RunStore(tmp_path)
    spans = tuple(Span(what=SpanKind.WAIT, name="x", start=float(i), seconds=0.5) for i in range(2))
    for _ in range(3):
        store.add_trace("w", (ProcessTrace(process="", spans=spans, offset=ClockOffset(), lost=1), False))
    (trace,) = read_traces(tmp_path / "events")
    assert len(trace.spans) == 3
    assert trace.lost == 3 + 3


def test_the_clocks_offset_is_told_once() -> None:
    told = Traced(run="r", attempt=1, names=(), spans=b"", lost=0, clock=(1.5, 0.25), links=())
    offset = ClockOffset(seconds=1.5, error=0.25)
    assert trace_of(told) == (ProcessTrace(process="", spans=(), offset=offset), True)
    assert trace_of(structs.replace(told, clock=None)) == (ProcessTrace(process="", spans=()), False)


def test_a_worker_that_cannot_be_dialled_dials_and_links_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """b tells an address at which nobody listens, as behind a NAT; a, which sends first, is dialled by b."""
    report = DeviceReport(name="test", flops_per_second=1e9, launch_seconds=0.0, total_bytes=8 * 10**9, free_bytes=8 * 10**9)
    monkeypatch.setattr(TorchEngine, "measure", lambda self, device, peak=None: report)
    text_folder(tmp_path)
    with Loopback(tmp_path, 2) as cluster:
        cluster.broker.runs.machine.members["b"] = replace(cluster.broker.runs.machine.members["b"], address="127.0.0.2:9")
        end = cluster.run(text_job())
        assert (end.result.status, end.result.steps) == ("finished", 4)
        told = [line for line in cluster.said["a"] if line.startswith("link to b: ")]
    assert "sent in" in told[-1]
    assert "since this worker began" in told[-1]
    assert re.search(r"\d connections? under", told[-1])


def test_spans_that_cannot_be_written_are_told_of_once_and_counted(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "run")
    spans = tuple(Span(what=SpanKind.COMPUTE, name="F", start=float(number), seconds=1.0) for number in range(3))
    (tmp_path / "run").write_text("no folder")
    told = ProcessTrace(process="", spans=spans), False
    trouble = store.add_trace("a", told)
    assert trouble.startswith("cannot write telemetry to ")
    assert trouble.endswith("; the run goes on, and its trace lacks what can't be written")
    assert store.add_trace("a", told) == ""
    assert store.add_trace("b", told) == ""
    (tmp_path / "run").unlink()
    assert store.add_trace("a", told) == ""
    (trace,) = read_traces(tmp_path / "run" / "events")
    assert (len(trace.spans), trace.lost) == (3, 6)
