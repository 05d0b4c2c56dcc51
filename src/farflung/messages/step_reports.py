"""Step reports as plain values, for their way from a worker to the broker."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from farflung.errors import WireError
from farflung.messages.fields import whole
from farflung.telemetry.records import CodecUse, Link
from farflung.telemetry.trace import ClockOffset, ProcessTrace, unpack_spans

__all__ = ["StepReport", "read_report", "read_trace", "write_report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one worker says of one step.

    Seconds are wall-clock. ``sent`` and ``dense`` are bytes by (sending stage, receiving stage), as sent and as they would
    be without a codec. ``loss``, ``losses`` (by micro-batch) come from the leader only. ``samples``: that count
    in the step. ``divergence``: the largest relative distance of this worker's parameters from the mean of the replicas, in a
    step that averaged some. ``codecs``: what they took here, by (sending stage, receiving stage).
    """

    step: int
    seconds: float
    busy: float
    wait: float
    sent: Mapping[tuple[int, int], int]
    dense: Mapping[tuple[int, int], int]
    stage_busy: Mapping[int, float]
    loss: float | None = None
    losses: tuple[float, ...] = ()
    samples: int = 0
    skipped: bool = False
    rate: float = 0.0
    grad_norm: float | None = None
    divergence: float | None = None
    codecs: Mapping[Link, CodecUse] = field(default_factory=dict)


def write_report(report: StepReport) -> dict[str, Any]:
    """The report's fields as a frame's header."""
    return {
        "step": report.step,
        "seconds": report.seconds,
        "busy": report.busy,
        "wait": report.wait,
        "sent": [[*pair, count] for pair, count in report.sent.items()],
        "dense": [[*pair, count] for pair, count in report.dense.items()],
        "stage_busy": [[stage, seconds] for stage, seconds in report.stage_busy.items()],
        "loss": report.loss,
        "losses": list(report.losses),
        "samples": report.samples,
        "skipped": report.skipped,
        "rate": report.rate,
        "grad_norm": report.grad_norm,
        "divergence": report.divergence,
        "codecs": [[*pair, use.encode_seconds, use.decode_seconds, use.error] for pair, use in report.codecs.items()],
    }


def read_report(header: Mapping[str, Any]) -> StepReport:
    """What ``write_report`` wrote.

    Raises:
        WireError: a field is missing or of another type.
    """
    try:
        return StepReport(
            step=int(header["step"]),
            seconds=float(header["seconds"]),
            busy=float(header["busy"]),
            wait=float(header["wait"]),
            sent={(int(a), int(b)): int(count) for a, b, count in header["sent"]},
            dense={(int(a), int(b)): int(count) for a, b, count in header["dense"]},
            stage_busy={int(stage): float(seconds) for stage, seconds in header["stage_busy"]},
            loss=None if header["loss"] is None else float(header["loss"]),
            losses=tuple(float(loss) for loss in header["losses"]),
            samples=whole(header, "samples"),
            skipped=bool(header["skipped"]),
            rate=float(header["rate"]),
            grad_norm=None if header["grad_norm"] is None else float(header["grad_norm"]),
            divergence=None if header["divergence"] is None else float(header["divergence"]),
            codecs={(int(a), int(b)): _use(*rest) for a, b, *rest in header["codecs"]},
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise WireError(f"a step report is malformed: {error}") from None


def _use(encode: Any, decode: Any, error: Any) -> CodecUse:
    return CodecUse(encode_seconds=float(encode), decode_seconds=float(decode), error=None if error is None else float(error))


def read_trace(header: Mapping[str, Any]) -> tuple[ProcessTrace, bool]:
    """Spans that a worker sent, under no name yet, and whether its clock's offset came with them.

    Raises:
        WireError: a field is missing or of another type.
    """
    clock = header.get("clock")
    known = isinstance(clock, list) and len(clock) == 2 and all(isinstance(value, float) for value in clock)
    if clock is not None and not (known and math.isfinite(clock[0]) and clock[1] >= 0):
        raise WireError("a trace's clock must be two numbers")
    offset = ClockOffset(seconds=clock[0], error=clock[1]) if clock else ClockOffset()
    spans = unpack_spans(header.get("names"), header.get("spans"))
    return ProcessTrace(process="", spans=tuple(spans), offset=offset, lost=whole(header, "lost")), known
