"""OpenTelemetry traces over OTLP (extra ``farflung[otel]``), made from the spans that brokers and workers note anyway.

Configured by the standard variables of the environment (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_EXPORTER_OTLP_HEADERS``,
``OTEL_TRACES_SAMPLER``, ``OTEL_RESOURCE_ATTRIBUTES``, ...). A trace is one step of a run. Its ids are hashes of run and step, so
the spans of all processes join without a message between them, and a sampler by trace id keeps the same steps everywhere.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import find_spec
from typing import TYPE_CHECKING

from farflung.clock import monotonic, wall_time
from farflung.messages.schema import Message
from farflung.messages.watching import RecordLine
from farflung.telemetry.records import EvaluationRecord, Record, RecoveryRecord, StepRecord, read_record
from farflung.telemetry.trace import Span
from farflung.thread_group import ThreadGroup
from farflung.tracking.secrets import one_line

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from farflung.messages.conversions.step_reports import StepReport

__all__ = ["TraceExporter", "open_exporter"]

#: Items that wait at most (lists of spans, and records), spans of one request, and seconds between requests.
_MOST_WAITING, _BATCH, _PAUSE = 4096, 512, 1.0
#: Seconds for the last request when the process ends.
_END_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """What waits to be exported: spans of a worker, or the record of a broker; ``now`` is the wall time at which it came."""

    run: str
    now: float
    spans: Sequence[Span] = ()
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """A span by the wall clock. ``root``: the span of the step itself, of which the others are children."""

    run: str
    step: int
    name: str
    start: float
    end: float
    attributes: Mapping[str, str | int | float]
    root: bool = False


def open_exporter(service: str, name: str, say: Callable[[str], None]) -> TraceExporter | None:
    """Return an exporter (see ``extras.wants_traces``). ``say`` receives one line if that is not possible: None."""
    if find_spec("opentelemetry.exporter.otlp.proto.http") is None:
        say("no traces: OTEL_EXPORTER_OTLP_ENDPOINT is set, and OpenTelemetry is not installed: pip install 'farflung[otel]'")
        return None
    if os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf") != "http/protobuf":
        say(
            "no traces: OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf; set it, and the endpoint of OTLP over HTTP (port 4318)"
        )
        return None
    return TraceExporter(service, name, say)


class TraceExporter:
    """Exports spans on a thread "otel". ``step``, ``spans`` and ``message`` only append to a bounded queue."""

    def __init__(self, service: str, name: str, say: Callable[[str], None]) -> None:
        """``service``: the name of the program, unless the environment has one. ``name``: of this broker or worker."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)  # ``say`` reports failures, once
        named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        about = {"service.instance.id": name} | ({} if named else {"service.name": service})
        self._provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        self._exporter = OTLPSpanExporter()
        self._say, self._failed = say, False
        self._waiting: deque[_Waiting] = deque(maxlen=_MOST_WAITING)
        self._closed = threading.Event()
        self._threads = ThreadGroup()
        self._threads.spawn("otel", self._export_all)

    @property
    def waiting(self) -> int:
        """How many items wait to be exported."""
        return len(self._waiting)

    def step(self, run: str, report: StepReport) -> None:
        """Steps are exported by the broker."""

    def spans(self, run: str, spans: Sequence[Span]) -> None:
        """Export ``spans``, which are over."""
        if spans:
            self._waiting.append(_Waiting(run=run, now=wall_time(), spans=spans))

    def message(self, run: str, message: Message, records: int) -> None:
        """Export a record of ``run`` that its watchers receive; other messages are ignored."""
        del records
        if isinstance(message, RecordLine):
            self._waiting.append(_Waiting(run=run, now=wall_time(), line=message.line))

    def close(self) -> None:
        """Export what is left, and join the thread."""
        self._closed.set()
        self._threads.join(_END_SECONDS)
        with suppress(Exception):  # of a server that does not answer, or of the library
            self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _export_all(self) -> None:
        while True:
            closed = self._closed.wait(_PAUSE)
            batch: list[_Timed] = []
            with suppress(IndexError):  # it is empty
                while True:
                    batch += _timed(self._waiting.popleft())
                    if len(batch) >= _BATCH:
                        self._export(batch)
                        batch = []
            self._export(batch)
            if closed:
                return

    def _export(self, batch: Sequence[_Timed]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            spans = [span for span in map(self._readable, batch) if span is not None]
            good = not spans or self._exporter.export(spans) is SpanExportResult.SUCCESS
            cause = "the collector does not take them"
        except Exception as error:  # noqa: BLE001 - whatever the library raises, training goes on without traces
            good, cause = False, one_line(error)
        if good:
            self._failed = False
        elif not self._failed:
            self._failed = True
            self._say(f"warning: traces are lost: {cause}; check OTEL_EXPORTER_OTLP_ENDPOINT, training is not affected")

    def _readable(self, span: _Timed) -> ReadableSpan | None:
        """Return ``span`` as the SDK has it (None: the sampler drops its trace)."""
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

        trace = _hash(16, span.run, span.step)
        if not self._provider.sampler.should_sample(None, trace, span.name).decision.is_sampled():  # type: ignore[no-untyped-call]
            return None
        root = SpanContext(trace, _hash(8, span.run, span.step), is_remote=not span.root, trace_flags=TraceFlags(1))
        own = root if span.root else SpanContext(trace, random.getrandbits(64) or 1, is_remote=False, trace_flags=TraceFlags(1))
        return ReadableSpan(
            name=span.name,
            context=own,
            parent=None if span.root else root,
            resource=self._provider.resource,
            attributes={"farflung.run": span.run, "farflung.step": span.step, **span.attributes},
            kind=SpanKind.INTERNAL,
            start_time=int(span.start * 1e9),
            end_time=int(span.end * 1e9),
        )


def _hash(size: int, run: str, step: int) -> int:
    return int.from_bytes(blake2b(f"{run}/{step}".encode(), digest_size=size).digest(), "big")


def _timed(item: _Waiting) -> Iterator[_Timed]:
    if item.line:
        record = read_record(item.line)
        if record is not None:
            yield _of_record(item, record)
        return
    offset = wall_time() - monotonic()
    for span in item.spans:
        places = {"stage": span.stage, "micro_batch": span.micro_batch, "bytes": span.nbytes or -1}
        facts = {f"farflung.{key}": value for key, value in places.items() if value >= 0}
        yield _Timed(
            run=item.run,
            step=span.step,
            name=span.name if span.name.startswith(span.what.value) else f"{span.what.value} {span.name}",
            start=span.start + offset,
            end=span.end + offset,
            attributes=facts | ({"farflung.peer": span.peer} if span.peer else {}),
        )


def _of_record(item: _Waiting, record: Record) -> _Timed:
    if isinstance(record, StepRecord):
        facts: dict[str, str | int | float] = {"farflung.loss": record.loss, "farflung.samples": record.samples}
        if record.predicted_seconds is not None:
            facts["farflung.predicted_seconds"] = record.predicted_seconds
        return _Timed(
            run=item.run,
            step=record.step,
            name="step",
            start=item.now - record.seconds,
            end=item.now,
            attributes=facts,
            root=True,
        )
    if isinstance(record, EvaluationRecord):
        loss = {"farflung.loss": record.loss}
        return _Timed(run=item.run, step=record.step - 1, name="evaluation", start=item.now, end=item.now, attributes=loss)
    assert isinstance(record, RecoveryRecord)
    lost: dict[str, str | int | float] = {"farflung.cause": record.cause, "farflung.source": record.source}
    lost["farflung.repeated_steps"] = record.replayed
    return _Timed(run=item.run, step=record.step, name="recovery", start=item.now - record.pause, end=item.now, attributes=lost)
