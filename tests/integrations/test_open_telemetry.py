"""Spans reach a collector over real HTTP, and join in one trace for each step."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from farflung.clock import monotonic, wall_time
from farflung.extras import wants_traces
from farflung.integrations.open_telemetry import TraceExporter, open_exporter
from farflung.messages.watching import Note, RecordLine
from farflung.telemetry import RecoveryRecord, Span, SpanKind
from tests.support.records.recorded_runs import step_record


class Collector:
    """Takes OTLP over HTTP, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/traces" and collector.status == 200:
                    collector.requests.append(ExportTraceServiceRequest.FromString(body))
                    collector.headers.append(dict(self.headers))
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="collector", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def spans(self) -> list[tuple[dict[str, Any], Any]]:
        """The resource of each span, and the span."""
        return [
            ({item.key: item.value.string_value for item in group.resource.attributes}, span)
            for request in self.requests
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    found = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret123")
    yield found
    found.close()


def opened(service: str, said: list[str]) -> TraceExporter:
    found = open_exporter(service, "one", said.append)
    assert found is not None
    return found


def attributes(span: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}


def test_spans_of_all_processes_join_in_the_trace_of_their_step(collector: Collector) -> None:
    said: list[str] = []
    broker, worker = opened("farflung-broker", said), opened("farflung-worker", said)
    begin, now = monotonic(), wall_time()
    worker.spans(
        "run-1",
        [
            Span(what=SpanKind.COMPUTE, name="F", start=begin, seconds=0.25, stage=1, micro_batch=0, step=3),
            Span(what=SpanKind.SEND, name="send activation", start=begin, seconds=0.5, step=3, peer="b", nbytes=100),
            Span(what=SpanKind.WAIT, name="wait", start=begin, seconds=0.5, step=4),
        ],
    )
    broker.message("run-1", RecordLine(line=step_record(3).to_line()), 1)
    broker.message("run-1", Note(text="of no interest"), 1)
    lost = RecoveryRecord(step=4, attempt=2, replayed=0, pause=1.5, elapsed=2.0, cause="b was lost", source="memory")
    broker.message("run-1", RecordLine(line=lost.to_line()), 2)
    worker.close()
    broker.close()
    assert said == []
    found = {span.name: (resource, span) for resource, span in collector.spans()}
    assert set(found) == {"step", "recovery", "compute F", "send activation", "wait"}
    step = found["step"][1]
    third = {name for name, (_, span) in found.items() if span.trace_id == step.trace_id}
    assert third == {"step", "compute F", "send activation"}
    assert not step.parent_span_id
    assert {found[name][1].parent_span_id for name in third - {"step"}} == {step.span_id}
    assert found["compute F"][0]["service.name"] == "farflung-worker"
    assert step.end_time_unix_nano - step.start_time_unix_nano == pytest.approx(1e8, rel=1e-3)
    assert attributes(step)["farflung.loss"] == step_record(3).loss
    compute = found["compute F"][1]
    assert attributes(compute) == {"farflung.run": "run-1", "farflung.step": 3, "farflung.stage": 1, "farflung.micro_batch": 0}
    assert compute.start_time_unix_nano / 1e9 == pytest.approx(now, abs=1.0)
    assert attributes(found["send activation"][1])["farflung.peer"] == "b"
    assert attributes(found["recovery"][1])["farflung.cause"] == "b was lost"
    assert collector.headers[0]["authorization"] == "secret123"


def test_a_sampler_keeps_the_same_steps_in_all_processes(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.3")
    broker, worker = opened("b", []), opened("w", [])
    for step in range(200):
        worker.spans("run-1", [Span(what=SpanKind.WAIT, name="wait", start=1.0, seconds=0.1, step=step)])
        broker.message("run-1", RecordLine(line=step_record(step).to_line()), step)
    broker.close()
    worker.close()
    kept = {
        name: {attributes(span)["farflung.step"] for _, span in collector.spans() if span.name == name}
        for name in ("step", "wait")
    }
    assert kept["step"] == kept["wait"]
    assert 30 < len(kept["step"]) < 90


def test_a_collector_that_fails_is_one_line(collector: Collector) -> None:
    collector.status = 400
    said: list[str] = []
    exporter = opened("farflung-broker", said)
    for step in range(1200):  # three requests
        exporter.message("run-1", RecordLine(line=step_record(step).to_line()), step)
    exporter.close()
    assert said == [
        "warning: traces are lost: the collector does not take them; check OTEL_EXPORTER_OTLP_ENDPOINT, training is not affected"
    ]


def test_the_queue_is_bounded(collector: Collector) -> None:
    exporter = opened("farflung-worker", [])
    exporter.close()
    for step in range(10_000):
        exporter.spans("run-1", [Span(what=SpanKind.WAIT, name="wait", start=1.0, seconds=0.1, step=step)])
    assert exporter.waiting == 4096


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_the_environment_decides(environment: dict[str, str], wanted: bool) -> None:
    assert wants_traces(environment) is wanted


def test_what_is_not_possible_is_one_line(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert open_exporter("farflung-broker", "one", said.append) is None
    monkeypatch.setattr("farflung.integrations.open_telemetry.find_spec", lambda name: None)
    assert open_exporter("farflung-broker", "one", said.append) is None
    assert said[0].startswith("no traces: OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf")
    assert said[1].endswith("OpenTelemetry is not installed: pip install 'farflung[otel]'")
