"""A trace as Chrome trace events, for ui.perfetto.dev: a process for each worker, few tracks, and an arrow for each transfer.

| track    | spans                                                                          |
| -------- | ------------------------------------------------------------------------------ |
| compute  | forwards, backwards, updates, and what the compute thread waits for             |
| exchange | replicas agree on layers                                                       |
| send     | frames with tensors on their way out                                           |
| receive  | frames with tensors on their way in                                            |
| codec    | encoding and decoding                                                          |
| messages | frames without tensors, each as an instant: the two-phase commit and the like  |

A span within another one is drawn below it. Spans of one track that overlap only in part get a further track. An arrow leads
from the span in which a frame was sent to the span in which it was received. Its name is ``forward`` (an activation),
``backward`` (a gradient) or ``replicas`` (what replicas exchange).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from farflung.telemetry.events import SpanKind
from farflung.telemetry.trace import ProcessTrace, Span

__all__ = ["perfetto"]

_TRACKS: dict[SpanKind, str] = {
    SpanKind.COMPUTE: "compute",
    SpanKind.WAIT: "compute",
    SpanKind.EXCHANGE: "exchange",
    SpanKind.SEND: "send",
    SpanKind.RECEIVE: "receive",
    SpanKind.ENCODE: "codec",
    SpanKind.DECODE: "codec",
}
_ORDER = ("compute", "exchange", "receive", "send", "codec", "messages")
_ARROWS = {
    "activation": "forward",
    "gradient": "backward",
    "gradient of a tied parameter": "backward",
    **dict.fromkeys(("exchange", "part", "total", "sync", "pieces"), "replicas"),
}
#: Kinds of frames without tensors.
_MESSAGES = frozenset(("norms", "losses", "verdict", "prepared", "slope", "pace", "norm", "copied", "eval-done", "token"))
#: Rounding of stored times, in seconds: spans that overlap by less do not overlap.
_ROUNDING = 1e-6

#: (sender, receiver, what, step, micro-batch): frames with one key travel in order.
_Key = tuple[str, str, str, int, int]
#: (process number, track number, start in microseconds) of a span in the file.
_Place = tuple[int, int, float]


def perfetto(traces: Sequence[ProcessTrace]) -> str:
    """Return the traces as Chrome trace events (JSON). O(n log n) in the number of spans.

    Times are microseconds of the broker's clock since the first span. Each process's own clock is moved by its ``offset``, which
    is in the file with its error.
    """
    begin = min((span.start + trace.offset.seconds for trace in traces for span in trace.spans), default=0.0)
    events: list[dict[str, Any]] = []
    ends: dict[_Key, tuple[list[_Place], list[_Place]]] = defaultdict(lambda: ([], []))
    for pid, trace in enumerate(traces, start=1):
        shift = trace.offset.seconds - begin
        events += _names(pid, trace)
        for track, spans in _tracks(trace):
            tid = _tid(track)
            events.append(_meta("thread_name", pid, tid, {"name": track}))
            events.append(_meta("thread_sort_index", pid, tid, {"sort_index": tid}))
            for span in spans:
                event = _event(pid, tid, span, shift)
                events.append(event)
                if event["ph"] == "X" and span.peer and span.what in (SpanKind.SEND, SpanKind.RECEIVE):
                    sends = span.what is SpanKind.SEND
                    key = _key(trace.process, span) if sends else _key(span.peer, span, trace.process)
                    ends[key][0 if sends else 1].append((pid, tid, event["ts"]))
    events += _arrows(ends)
    clocks = {trace.process: _clock(trace) for trace in traces}
    return json.dumps(
        {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"clocks": clocks}}, separators=(",", ":"), allow_nan=False
    )


def _key(sender: str, span: Span, receiver: str = "") -> _Key:
    what = span.name.partition(" ")[2]
    return sender, receiver or span.peer, what, span.step, span.micro_batch


def _arrows(ends: dict[_Key, tuple[list[_Place], list[_Place]]]) -> Iterable[dict[str, Any]]:
    """An arrow for each frame that both ends recorded. If an end lost spans, the frames of that key get none."""
    number = 0
    for (_, _, what, _, _), (sent, received) in ends.items():
        if what not in _ARROWS or len(sent) != len(received):
            continue
        for source, target in zip(sorted(sent, key=_when), sorted(received, key=_when), strict=True):
            number += 1
            shared = {"id": number, "name": _ARROWS[what], "cat": "transfer"}
            yield {"ph": "s", **shared, "pid": source[0], "tid": source[1], "ts": source[2]}
            # An arrow must not end before it begins: clocks of two machines differ by their errors.
            yield {"ph": "f", "bp": "e", **shared, "pid": target[0], "tid": target[1], "ts": max(target[2], source[2])}


def _when(place: _Place) -> float:
    return place[2]


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
    begin, end = (round((time + shift) * 1e6, 1) for time in (span.start, span.end))
    start = {"name": label, "cat": span.what.value, "pid": pid, "tid": tid, "ts": begin}
    # The duration is the difference of rounded times, so that spans which hold each other still do so in the file.
    shape: dict[str, Any] = {"ph": "i", "s": "t"} if _is_message(span) else {"ph": "X", "dur": round(end - begin, 1)}
    return shape | start | {"args": {key: value for key, value in facts.items() if value != -1}}


def _is_message(span: Span) -> bool:
    """Whether the span is a frame without tensors."""
    return _TRACKS[span.what] in ("send", "receive", "codec") and span.name.partition(" ")[2] in _MESSAGES


def _tid(track: str) -> int:
    name, _, number = track.partition(" ")
    return 100 * (_ORDER.index(name) + 1) + int(number or 1)


def _tracks(trace: ProcessTrace) -> list[tuple[str, list[Span]]]:
    """The spans by track. A span goes to the first lane in which it overlaps nothing, or lies within what it overlaps."""
    lanes: dict[str, list[_Lane]] = {track: [] for track in _ORDER}
    for span in sorted(trace.spans, key=lambda span: (span.start, -span.end)):
        found = lanes["messages" if _is_message(span) else _TRACKS[span.what]]
        lane = next((lane for lane in found if _is_message(span) or lane.has_room(span)), None)
        if lane is None:
            found.append(lane := _Lane())
        lane.add(span)
    named = [(name, index, lane) for name in _ORDER for index, lane in enumerate(lanes[name], start=1)]
    return [(name if index == 1 else f"{name} {index}", lane.spans) for name, index, lane in named]


class _Lane:
    """Spans of one track, nested or one after another; spans are added in the order of their starts."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._open: list[float] = []  # ends of the spans that hold each other, the innermost last

    def has_room(self, span: Span) -> bool:
        while self._open and self._open[-1] <= span.start + _ROUNDING:
            self._open.pop()
        return not self._open or span.end <= self._open[-1]

    def add(self, span: Span) -> None:
        self.spans.append(span)
        self._open.append(span.end)
