"""What a run tells about itself: events and spans, step records, the run folder, and named fault points.

- ``events``, ``trace``, ``timeline``: events and spans. ``perfetto_file``: a trace as a file. ``activity``: what a worker does.
- ``records``, ``attempt_record``: one step, one attempt. ``folder``: the run folder. ``whole_lines``: lines of its files.
- ``log_file``, ``log_line``, ``terminal``: logs and how people see them. ``shortage``: errors of a full disk.
- ``faults``: named fault points.
"""

from farflung.telemetry.attempt_record import AttemptRecord
from farflung.telemetry.events import SpanKind
from farflung.telemetry.faults import FAULT_POINTS, Injector, fault_point, injecting
from farflung.telemetry.folder import RunFolder
from farflung.telemetry.perfetto_file import perfetto
from farflung.telemetry.records import (
    CodecUse,
    EvaluationRecord,
    Record,
    RecoveryRecord,
    RelayedRecord,
    RunResult,
    StepRecord,
    committed,
    read_record,
)
from farflung.telemetry.timeline import TimeShares, time_shares
from farflung.telemetry.trace import ClockOffset, ProcessTrace, Span, SpanRing, read_traces, write_spans

__all__ = [
    "FAULT_POINTS",
    "AttemptRecord",
    "ClockOffset",
    "CodecUse",
    "EvaluationRecord",
    "Injector",
    "ProcessTrace",
    "Record",
    "RecoveryRecord",
    "RelayedRecord",
    "RunFolder",
    "RunResult",
    "Span",
    "SpanKind",
    "SpanRing",
    "StepRecord",
    "TimeShares",
    "committed",
    "fault_point",
    "injecting",
    "perfetto",
    "read_record",
    "read_traces",
    "time_shares",
    "write_spans",
]
