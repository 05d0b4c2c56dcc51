"""The spans of frames in a worker's trace: what a frame carried, and when it was sent, received and decoded."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from functools import partial

from farflung.messages.data import UseKey, Value, ValueKey
from farflung.messages.schema import Message, SectionedMessage, kind_of
from farflung.telemetry.events import SpanKind
from farflung.telemetry.trace import Span, SpanRing
from farflung.transports.base import Arrival

__all__ = ["FrameLog", "MessageFacts", "message_facts"]

#: The largest number that a record of a trace holds.
_LARGEST = 2**31 - 1
#: How many arrivals may wait for their frames.
_MOST_ARRIVALS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFacts:
    """What a message carried. ``what``: ``activation``, ``gradient`` or the message's kind; -1: it belongs to no single one.

    ``source`` and ``target``: the stages that sent and that read it. ``nbytes``: of its sections.
    """

    what: str
    step: int = -1
    micro_batch: int = -1
    source: int = -1
    target: int = -1
    nbytes: int = 0


def message_facts(message: Message) -> MessageFacts:
    """Return what ``message`` carried."""
    sections = message.sections if isinstance(message, SectionedMessage) else ()
    nbytes = sum(memoryview(section).nbytes for section in sections)
    match message:
        case Value(key=ValueKey() as key):
            ends = (key.target, key.source) if key.gradient else (key.source, key.target)
            what, step = "gradient" if key.gradient else "activation", _number(key.step)
            return MessageFacts(what=what, step=step, micro_batch=key.micro_batch, source=ends[0], target=ends[1], nbytes=nbytes)
        case Value(key=UseKey() as key):
            return MessageFacts(what="gradient of a tied parameter", step=_number(key.step), nbytes=nbytes)
    return MessageFacts(what=kind_of(message), step=_number(getattr(message, "step", -1)), nbytes=nbytes)


def _number(step: int) -> int:
    return step if step <= _LARGEST else -1


class FrameLog:
    """Adds the spans of a run's incoming frames to a trace. Thread-safe: frames arrive and are decoded on different threads."""

    def __init__(self, trace: SpanRing) -> None:
        self._trace = trace
        #: Guards the next two.
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

    def decoded(self, peer: str, message: Message, nbytes: int, begin: float) -> None:
        """Record the spans in which ``message`` was received and decoded; decoding lasted from ``begin`` to now.

        ``nbytes``: of its frame (0: not known, as inside one process).
        """
        facts = message_facts(message)
        place = {"step": facts.step, "micro_batch": facts.micro_batch, "stage": facts.target}
        arrival = self._take(peer, nbytes)
        if arrival is not None:
            name, seconds = f"receive {facts.what}", max(arrival.end - arrival.start, 0.0)
            span = partial(Span, what=SpanKind.RECEIVE, peer=peer, nbytes=arrival.nbytes, start=arrival.start, seconds=seconds)
            self._trace.add(span(name=name, step=facts.step, micro_batch=facts.micro_batch, stage=facts.target))
        self._trace.note(SpanKind.DECODE, f"decode {facts.what}", begin, peer=peer, nbytes=facts.nbytes, **place)

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
