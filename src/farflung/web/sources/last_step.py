"""The newest step that every process has reported, as a time chart. Only the ends of the event files are read."""

from __future__ import annotations

import json
from pathlib import Path

from farflung.plan import Plan
from farflung.telemetry import ProcessTrace, Span, SpanKind
from farflung.telemetry.trace import ClockOffset, span_from_fields
from farflung.web.reports.ink import inline
from farflung.web.reports.time_chart import ChartRow, time_chart

__all__ = ["last_step_chart"]

#: Bytes that are read of the end and of the beginning (which has the clock) of each file.
_END, _BEGIN = 256 << 10, 16 << 10


def last_step_chart(events: Path, plan: Plan) -> tuple[int, str] | None:
    """Return the number of the step (from 1) and its chart as SVG, ``None`` if the run has no trace. Reads files."""
    traces = [trace for path in sorted(events.glob("*.jsonl")) if (trace := _read_end(path)).spans]
    computed = [{span.step for span in trace.spans if span.what is SpanKind.COMPUTE} for trace in traces]
    common = set.intersection(*computed) if computed else set()
    if len(common) > 1:
        common.discard(max(common))  # its last spans may be on their way
    if not common:
        return None
    step = max(common)
    known = {trace.process: trace for trace in traces}
    rows = []
    for stages, device in sorted((tuple(one.index for one in plan.stages_of(name)), name) for name in plan.devices):
        if device in known:
            own = tuple(span for span in known[device].spans if span.step == step)
            trace = ProcessTrace(process=device, spans=own, offset=known[device].offset)
            rows.append(ChartRow(trace=trace, stages=stages))
    return (step + 1, inline(time_chart(rows, len(plan.stages), f"Step {step + 1}"))) if rows else None


def _read_end(path: Path) -> ProcessTrace:
    """The newest spans of a process, with the newest clock offset that was read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            lines = file.read(_BEGIN).split(b"\n")[:-1]
            if size > _BEGIN:
                file.seek(max(_BEGIN, size - _END))
                lines += file.read(_END).split(b"\n")[1:-1]
    except OSError:
        return ProcessTrace(process=path.stem, spans=())
    offset, spans = ClockOffset(), list[Span]()
    for line in lines:
        try:
            body = json.loads(line)
            if body["kind"] == "clock" and "offset" in body:
                offset = ClockOffset(seconds=float(body["offset"]), error=float(body["error"]))
            elif body["kind"] == "span":
                spans.append(span_from_fields(body))
        except (ValueError, KeyError, TypeError):
            continue  # the beginning of a block is in the middle of a line
    return ProcessTrace(process=path.stem, spans=tuple(spans), offset=offset)
