"""Where the time went on each process of a trace.

Rows of a process: compute (forwards, backwards, updates), send (encoding and frames on their way out), receive (frames coming
in and decoding), wait (the compute thread has nothing to do) and exchange (replicas agree on layers: from the begin until the
means are there).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from farflung.telemetry.events import SpanKind
from farflung.telemetry.trace import ProcessTrace, Span

__all__ = ["ROWS", "TimeShares", "time_shares"]

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
    ``compute``, ``exposed``, ``idle`` and ``other`` do not overlap and add up to ``total``. ``exposed``: a transfer without
    computing. ``idle``: waiting, for a value or for the other replicas, without computing or a transfer.
    """

    process: str
    total: float
    compute: float
    send: float
    receive: float
    wait: float
    transfer: float
    hidden: float
    idle: float
    before: float = 0.0

    @property
    def hidden_share(self) -> float:
        """``hidden / transfer`` (1 where nothing was transferred)."""
        return self.hidden / self.transfer if self.transfer > 0 else 1.0

    @property
    def exposed(self) -> float:
        """Seconds of transfer during which the process did not compute."""
        return self.transfer - self.hidden

    @property
    def other(self) -> float:
        """Seconds without any span: reading data, checkpoints, pauses after a loss."""
        return max(self.total - self.compute - self.exposed - self.idle, 0.0)


def time_shares(traces: Sequence[ProcessTrace]) -> list[TimeShares]:
    """Where the time went, a row for each process. O(n log n) in the number of spans."""
    shares = []
    for trace in traces:
        first = min((span.start for span in trace.spans), default=0.0)
        begin = min((span.start for span in trace.spans if span.step >= 0), default=first)
        spans = [span for span in trace.spans if span.end > begin or span.start >= begin]
        rows = {row: _union((span for span in spans if ROWS[span.what] == row), begin) for row in _ORDER}
        moving = _merge(rows["send"] + rows["receive"])
        active = _merge(moving + rows["compute"])
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
                idle=_length(everything) - _length(active),
                before=begin - first,
            )
        )
    return shares


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
