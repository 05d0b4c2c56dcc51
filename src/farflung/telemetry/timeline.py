"""Reading a trace: where the time went on each process, and the same as a file for Perfetto.

Rows of a process: compute (forwards, backwards, updates), send (encoding and frames on their way out), receive (frames coming
in and decoding), wait (the compute thread has nothing to do) and exchange (replicas agree on layers: from the begin until the
means are there).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from farflung.telemetry.events import SpanKind
from farflung.telemetry.trace import ProcessTrace, Span

__all__ = ["ROWS", "TimeShares", "perfetto", "time_shares"]

#: What is drawn in which row.
ROWS: dict[SpanKind, str] = {
    SpanKind.COMPUTE: "compute",
    SpanKind.SEND: "send",
    SpanKind.ENCODE: "send",
    SpanKind.RECEIVE: "receive",
    SpanKind.DECODE: "receive",
    SpanKind.WAIT: "wait",
    SpanKind.EXCHANGE: "exchange",
}
_ORDER = ("compute", "exchange", "wait", "receive", "send")

Intervals = list[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Seconds in which a process did something of a row (two things at once count once), from the begin of its first step to the
    trace's end.

    ``before``: what the trace holds of getting ready (states that are sent, links that are tried).
    ``transfer``: sending or receiving; ``hidden``: the part of it during which the process computed.
    """

    process: str
    total: float
    compute: float
    send: float
    receive: float
    wait: float
    transfer: float
    hidden: float
    before: float = 0.0

    @property
    def hidden_share(self) -> float:
        """``hidden / transfer`` (1 where nothing was transferred)."""
        return self.hidden / self.transfer if self.transfer > 0 else 1.0


def time_shares(traces: Sequence[ProcessTrace]) -> list[TimeShares]:
    """Where the time went, a row for each process. O(n log n) in the number of spans."""
    shares = []
    for trace in traces:
        first = min((span.start for span in trace.spans), default=0.0)
        begin = min((span.start for span in trace.spans if span.step >= 0), default=first)
        spans = [span for span in trace.spans if span.end > begin or span.start >= begin]
        rows = {row: _union((span for span in spans if ROWS[span.what] == row), begin) for row in _ORDER}
        moving = _merge(rows["send"] + rows["receive"])
        everything = _merge([interval for row in rows.values() for interval in row])
        total = everything[-1][1] - begin if everything else 0.0
        shares.append(
            TimeShares(
                process=trace.process,
                total=total,
                compute=_length(rows["compute"]),
                send=_length(rows["send"]),
                receive=_length(rows["receive"]),
                wait=_length(rows["wait"]),
                transfer=_length(moving),
                hidden=_length(_overlap(moving, rows["compute"])),
                before=begin - first,
            )
        )
    return shares


def perfetto(traces: Sequence[ProcessTrace]) -> str:
    """The traces as Chrome trace events (JSON; open it at ui.perfetto.dev): a process each, a row for each kind of span.

    Times are microseconds of the broker's clock since the first span; each process's own clock is moved by its ``offset``, which
    stands in the file with its error. Spans of one row that overlap (two frames on their way) get further rows.
    """
    begin = min((span.start + trace.offset.seconds for trace in traces for span in trace.spans), default=0.0)
    events: list[dict[str, Any]] = []
    for pid, trace in enumerate(traces, start=1):
        shift = trace.offset.seconds - begin
        events += _names(pid, trace)
        for row, spans in _lanes(trace):
            tid = _tid(row)
            events.append(_meta("thread_name", pid, tid, {"name": row}))
            events.append(_meta("thread_sort_index", pid, tid, {"sort_index": tid}))
            events += [_event(pid, tid, span, shift) for span in spans]
    clocks = {trace.process: _clock(trace) for trace in traces}
    return json.dumps(
        {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"clocks": clocks}}, separators=(",", ":"), allow_nan=False
    )


def _clock(trace: ProcessTrace) -> dict[str, float | None]:
    error = trace.offset.error if math.isfinite(trace.offset.error) else None  # None: unknown
    return {"offset_seconds": trace.offset.seconds, "error_seconds": error, "lost": trace.lost}


def _names(pid: int, trace: ProcessTrace) -> list[dict[str, Any]]:
    label = f"clock moved by {trace.offset.seconds:+.6f} s, +-{trace.offset.error:.6f} s"
    return [
        _meta("process_name", pid, 0, {"name": trace.process}),
        _meta("process_labels", pid, 0, {"labels": label}),
        _meta("process_sort_index", pid, 0, {"sort_index": pid}),
    ]


def _meta(name: str, pid: int, tid: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": arguments}


def _event(pid: int, tid: int, span: Span, shift: float) -> dict[str, Any]:
    facts: dict[str, Any] = {"step": span.step, "micro_batch": span.micro_batch, "stage": span.stage}
    facts |= ({"peer": span.peer} if span.peer else {}) | ({"bytes": span.nbytes} if span.nbytes else {})
    label = f"{span.name}{span.micro_batch}" if span.micro_batch >= 0 and span.what is SpanKind.COMPUTE else span.name
    return {
        "ph": "X",
        "name": label,
        "cat": span.what.value,
        "pid": pid,
        "tid": tid,
        "ts": round((span.start + shift) * 1e6, 1),
        "dur": round(span.seconds * 1e6, 1),
        "args": {key: value for key, value in facts.items() if value != -1},
    }


def _tid(row: str) -> int:
    name, _, number = row.partition(" ")
    return 100 * (_ORDER.index(name) + 1) + int(number or 1)


def _lanes(trace: ProcessTrace) -> list[tuple[str, list[Span]]]:
    """The spans by row; one that begins before the last of its row has ended goes to a further row."""
    found: dict[str, list[list[Span]]] = {row: [[]] for row in _ORDER}
    for span in sorted(trace.spans, key=lambda span: span.start):
        lanes = found[ROWS[span.what]]
        free = next((lane for lane in lanes if not lane or lane[-1].end <= span.start + 1e-7), None)
        if free is None:
            lanes.append(free := [])
        free.append(span)
    return [(row if not index else f"{row} {index + 1}", lane) for row in _ORDER for index, lane in enumerate(found[row]) if lane]


def _union(spans: Iterable[Span], begin: float) -> Intervals:
    """What of ``spans`` lies after ``begin``."""
    return _merge([(max(span.start, begin), span.end) for span in spans])


def _merge(intervals: Intervals) -> Intervals:
    merged: Intervals = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _overlap(left: Intervals, right: Intervals) -> Intervals:
    """The common part of two sorted lists of disjoint intervals."""
    found: Intervals = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            found.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return found


def _length(intervals: Intervals) -> float:
    return sum(end - start for start, end in intervals)
