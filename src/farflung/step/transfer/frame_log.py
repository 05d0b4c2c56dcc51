"""The spans of frames in a worker's trace: what a frame carried, and when it was sent, received and decoded."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from functools import partial

from farflung.telemetry.events import SpanKind
from farflung.telemetry.trace import Span, SpanRing, frame_name
from farflung.transports.base import Arrival
from farflung.transports.meter import frame_bytes
from farflung.wire.frames import Frame

__all__ = ["FrameFacts", "FrameLog", "frame_facts"]

#: The largest number that a record of a trace holds.
_LARGEST = 2**31 - 1
#: How many arrivals may wait for their frames.
_MOST_ARRIVALS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameFacts:
    """What a frame carried. ``what``: ``activation``, ``gradient`` or the frame's kind; -1: it belongs to no single one.

    ``source`` and ``target``: the stages that sent and that read it.
    """

    what: str
    step: int = -1
    micro_batch: int = -1
    source: int = -1
    target: int = -1


def frame_facts(frame: Frame) -> FrameFacts:
    """Return what a frame carried, from its header; fields of a malformed header count as unknown."""
    key = frame.header.get("key")
    if frame.kind == "value" and isinstance(key, list) and len(key) == 8 and key[0] == "value":
        _, _, step, micro_batch, _, source, target, gradient = key
        if gradient:
            source, target = target, source
        what = "gradient" if gradient else "activation"
        return FrameFacts(
            what=what, step=_number(step), micro_batch=_number(micro_batch), source=_number(source), target=_number(target)
        )
    if frame.kind == "value" and isinstance(key, list) and len(key) == 5 and key[0] == "use":
        return FrameFacts(what="gradient of a tied parameter", step=_number(key[1]))
    return FrameFacts(what=frame_name("", frame.kind).strip(), step=_number(frame.header.get("step")))


def _number(value: object) -> int:
    return value if isinstance(value, int) and -1 <= value <= _LARGEST else -1


class FrameLog:
    """Adds the spans of a run's incoming frames to a trace. Thread-safe: frames arrive and are decoded on different threads."""

    def __init__(self, trace: SpanRing) -> None:
        self._trace = trace
        self._lock = threading.Lock()
        #: Arrivals that wait for their frame, by sender and size: frames of one size and urgency are decoded in order.
        self._arrivals: dict[tuple[str, int], deque[Arrival]] = {}
        self._waiting = 0

    def arrived(self, arrival: Arrival) -> None:
        """Remember when a frame came in, until it is decoded."""
        with self._lock:
            if self._waiting >= _MOST_ARRIVALS:  # frames that are refused are never decoded
                self._arrivals.clear()
                self._waiting = 0
            self._arrivals.setdefault((arrival.peer, arrival.nbytes), deque()).append(arrival)
            self._waiting += 1

    def decoded(self, peer: str, frame: Frame, begin: float) -> None:
        """Record the spans in which ``frame`` was received and decoded; decoding lasted from ``begin`` to now."""
        facts = frame_facts(frame)
        place = {"step": facts.step, "micro_batch": facts.micro_batch, "stage": facts.target}
        arrival = self._take(peer, frame_bytes(frame))
        if arrival is not None:
            name, seconds = frame_name("receive", facts.what), max(arrival.end - arrival.start, 0.0)
            span = partial(Span, what=SpanKind.RECEIVE, peer=peer, nbytes=arrival.nbytes, start=arrival.start, seconds=seconds)
            self._trace.add(span(name=name, step=facts.step, micro_batch=facts.micro_batch, stage=facts.target))
        size = sum(memoryview(section).nbytes for section in frame.sections)
        self._trace.note(SpanKind.DECODE, frame_name("decode", facts.what), begin, peer=peer, nbytes=size, **place)

    def _take(self, peer: str, nbytes: int) -> Arrival | None:
        with self._lock:
            arrivals = self._arrivals.get((peer, nbytes))
            if not arrivals:
                return None
            arrival = arrivals.popleft()
            self._waiting -= 1
            if not arrivals:
                del self._arrivals[peer, nbytes]
            return arrival
