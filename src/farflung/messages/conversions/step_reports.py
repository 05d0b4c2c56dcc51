"""Step reports and traces, between their messages and the types that the broker and the engine use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from farflung.messages.reports import MOST_STEPS, AuditItem, Stepped, Traced
from farflung.messages.schema import UNSET
from farflung.plan.verification import Audit, Digests, Transfer, TransferKind, Unit
from farflung.telemetry.records import CodecUse, Link
from farflung.telemetry.trace import ClockOffset, ProcessTrace, unpack_spans

__all__ = ["StepReport", "message_of", "newest_messages", "report_of", "trace_of"]

#: The most bytes of reports that are sent again. A header may have as many items.
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one worker reports of one step.

    Seconds are wall-clock. ``sent`` and ``dense`` are bytes by (sending stage, receiving stage), as sent and as they would
    be without a codec. ``loss``, ``losses`` (by micro-batch) come from the leader only. ``samples``: that count
    in the step; ``left_out``: those of them that this worker's replica left out alone (see ``Committed``). ``divergence``: the
    largest relative distance of this worker's parameters from the mean of the replicas, in a step that averaged some.
    ``excluded``: devices whose gradients were not finite, so that a robust rule left them out; ``spoilers``: those that sent this
    worker values of a micro-batch that were not finite. ``codecs``: what they took here, by (sending stage, receiving stage).
    ``gave`` and ``took``: digests for verification; ``audits``: what it has verified. ``helped``: samples and seconds of helpers
    of this server, by (stage, helper).
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
    left_out: int = 0
    rate: float = 0.0
    grad_norm: float | None = None
    divergence: float | None = None
    excluded: frozenset[str] = frozenset()
    spoilers: frozenset[str] = frozenset()
    gave: Digests = field(default_factory=dict)
    took: Digests = field(default_factory=dict)
    audits: tuple[Audit, ...] = ()
    codecs: Mapping[Link, CodecUse] = field(default_factory=dict)
    helped: Mapping[tuple[int, str], tuple[int, float]] = field(default_factory=dict)


def message_of(report: StepReport, run: str, attempt: int) -> Stepped:
    """Return ``report`` as a message."""
    return Stepped(
        run=run,
        attempt=attempt,
        step=report.step,
        seconds=report.seconds,
        busy=report.busy,
        wait=report.wait,
        sent=tuple((*pair, count) for pair, count in report.sent.items()),
        dense=tuple((*pair, count) for pair, count in report.dense.items()),
        stage_busy=tuple(report.stage_busy.items()),
        loss=report.loss,
        losses=report.losses,
        samples=report.samples,
        skipped=report.skipped,
        left_out=report.left_out or UNSET,
        rate=report.rate,
        grad_norm=report.grad_norm,
        divergence=report.divergence,
        excluded=tuple(sorted(report.excluded)) or UNSET,
        spoilers=tuple(sorted(report.spoilers)) or UNSET,
        gave=_items(report.gave) or UNSET,
        took=_items(report.took) or UNSET,
        audits=tuple(map(_audit_item, report.audits)) or UNSET,
        helped=tuple((*key, *work) for key, work in report.helped.items()) or UNSET,
        codecs=tuple((*pair, use.encode_seconds, use.decode_seconds, use.error) for pair, use in report.codecs.items()),
    )


def newest_messages(reports: Sequence[StepReport], run: str, attempt: int, seconds: float = 0.0) -> tuple[Stepped, ...]:
    """Return the newest of ``reports``, which are in the order of steps, as messages.

    These are the last ``MOST_STEPS``, and those of the last ``seconds``, if they are not too large together.
    """
    found: list[Stepped] = []
    size, age = 0, 0.0
    for report in reversed(reports):
        message = message_of(report, run, attempt)
        size += len(msgspec.msgpack.encode(message))
        if found and (size > _MOST_BYTES or (len(found) >= MOST_STEPS and age >= seconds)):
            break
        found.append(message)
        age += report.seconds
    return tuple(reversed(found))


def report_of(message: Stepped) -> StepReport:
    """Return what ``message_of`` was given."""
    return StepReport(
        step=message.step,
        seconds=message.seconds,
        busy=message.busy,
        wait=message.wait,
        sent={(source, target): count for source, target, count in message.sent},
        dense={(source, target): count for source, target, count in message.dense},
        stage_busy=dict(message.stage_busy),
        loss=message.loss,
        losses=message.losses,
        samples=message.samples,
        skipped=message.skipped,
        left_out=message.left_out or 0,
        rate=message.rate,
        grad_norm=message.grad_norm,
        divergence=message.divergence,
        excluded=frozenset(message.excluded or ()),
        spoilers=frozenset(message.spoilers or ()),
        gave=_digests(message.gave or ()),
        took=_digests(message.took or ()),
        audits=tuple(_audit(item) for item in message.audits or ()),
        helped={(stage, helper): (samples, seconds) for stage, helper, samples, seconds in message.helped or ()},
        codecs={
            (source, target): CodecUse(encode_seconds=encode, decode_seconds=decode, error=error)
            for source, target, encode, decode, error in message.codecs
        },
    )


_Items = tuple[tuple[int, int, int, Literal[0, 1, 2], bytes], ...]


def _items(digests: Digests) -> _Items:
    return tuple((at.source, at.target, at.micro_batch, at.kind.value, digest) for at, digest in digests.items())


def _digests(items: _Items) -> Digests:
    return {Transfer(source, target, index, TransferKind(kind)): digest for source, target, index, kind, digest in items}


def _audit_item(audit: Audit) -> AuditItem:
    unit = audit.unit
    return AuditItem(
        step=unit.step, stage=unit.stage, micro_batch=unit.micro_batch, took=_items(audit.took), gave=_items(audit.gave)
    )


def _audit(item: AuditItem) -> Audit:
    return Audit(unit=Unit(item.step, item.stage, item.micro_batch), took=_digests(item.took), gave=_digests(item.gave))


def trace_of(message: Traced) -> tuple[ProcessTrace, bool]:
    """Return the spans that a worker sent, under no name yet, and whether its clock's offset came with them.

    Raises:
        WireError: the spans are malformed.
    """
    offset = ClockOffset() if message.clock is None else ClockOffset(seconds=message.clock[0], error=message.clock[1])
    spans = unpack_spans(list(message.names), message.spans)
    return ProcessTrace(process="", spans=tuple(spans), offset=offset, lost=message.lost), message.clock is not None
