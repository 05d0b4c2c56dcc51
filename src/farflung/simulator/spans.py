"""What a simulation did, as the traces that real runs write (``telemetry.trace``), in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from farflung.simulator.machine import Outcome
from farflung.simulator.program import Program
from farflung.telemetry.events import SpanKind
from farflung.telemetry.trace import ProcessTrace, Span

__all__ = ["traces_of"]

#: Shorter pauses between two actions are no waiting (rounding of the clock).
_LEAST_WAIT = 1e-9
#: What a link carries to an action of a micro-batch.
_CARRIED = {"F": "activation", "B": "gradient", "W": "gradient"}
_NAMES = {"U": "update", "X": "exchange", "N": "norms"}


def traces_of(program: Program, outcome: Outcome) -> tuple[ProcessTrace, ...]:
    """Per device: compute and wait, encode and send, receive (its link) and decode. Ascending by start."""
    found: list[list[Span]] = [[] for _ in program.devices]
    for device, span in (*_computing(program, outcome), *_moving(program, outcome)):
        found[device].append(span)
    return tuple(
        ProcessTrace(process=name, spans=tuple(sorted(spans, key=lambda span: (span.start, span.what))))
        for name, spans in zip(program.devices, found, strict=True)
    )


def _computing(program: Program, outcome: Outcome) -> Iterator[tuple[int, Span]]:
    free = [0.0] * len(program.devices)
    for device, number, step, start, seconds in sorted(outcome.spans, key=lambda span: span[3]):
        action = program.actions[number]
        inner = action.micro_batch >= 0
        span = partial(Span, step=step, stage=action.stage if inner else -1, micro_batch=action.micro_batch)
        name = _NAMES.get(action.kind, action.kind)
        if start - free[device] > _LEAST_WAIT:
            why = f"for {name}" if inner else "for the end of the step"
            yield device, span(what=SpanKind.WAIT, name=why, start=free[device], seconds=start - free[device])
        free[device] = start + seconds
        if seconds > 0:
            yield device, span(what=SpanKind.COMPUTE, name=name, start=start, seconds=seconds)


def _moving(program: Program, outcome: Outcome) -> Iterator[tuple[int, Span]]:
    for link, base, target, size, begin, start, end, delivered in outcome.frames:
        action = program.actions[target]
        way = program.links[link]
        here, there = program.devices[way.source], program.devices[way.target]
        inner = action.micro_batch >= 0
        what = _CARRIED[action.kind] if inner else _NAMES[action.kind]
        span = partial(
            Span,
            step=base // len(program.actions),
            stage=action.stage if inner else -1,
            micro_batch=action.micro_batch,
            nbytes=int(size),
        )
        if start > begin:
            yield way.source, span(what=SpanKind.ENCODE, name=f"encode {what}", start=begin, seconds=start - begin, peer=there)
        yield way.source, span(what=SpanKind.SEND, name=f"send {what}", start=start, seconds=end - start, peer=there)
        first, arrived = start + way.latency, min(delivered, end + way.latency)
        yield way.target, span(what=SpanKind.RECEIVE, name=f"receive {what}", start=first, seconds=arrived - first, peer=here)
        if delivered > arrived:
            left = delivered - arrived
            yield way.target, span(what=SpanKind.DECODE, name=f"decode {what}", start=arrived, seconds=left, peer=here)
