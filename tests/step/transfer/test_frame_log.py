"""A worker's trace says what each frame carried, and joins a frame to its arrival."""

from __future__ import annotations

import pytest

from farflung.messages.array_headers import ArrayHeader
from farflung.messages.data import LentEnd, Losses, Token, UseKey, Value, ValueKey
from farflung.messages.schema import Message
from farflung.messages.wire_form import encode
from farflung.step.transfer.frame_log import FrameLog, MessageFacts, message_facts
from farflung.telemetry import SpanKind, SpanRing
from farflung.transports.base import Arrival
from farflung.transports.meter import frame_bytes

ARRAY = ArrayHeader(dtype="float32", shape=(2,), strides=None)


def value(micro_batch: int, *, gradient: bool = False, step: int = 7) -> Value:
    key = ValueKey(phase="train", step=step, micro_batch=micro_batch, value="block.out", source=1, target=2, gradient=gradient)
    return Value(run="r", key=key, array=ARRAY, sections=(b"12345678",))


def size(message: Message) -> int:
    return frame_bytes(encode(message))


USE = Value(run="r", key=UseKey(step=7, stage=1, state="w", op="op"), array=ARRAY, sections=(b"1",))


@pytest.mark.parametrize(
    ("message", "facts"),
    [
        (value(3), MessageFacts(what="activation", step=7, micro_batch=3, source=1, target=2, nbytes=8)),
        (value(3, gradient=True), MessageFacts(what="gradient", step=7, micro_batch=3, source=2, target=1, nbytes=8)),
        (value(3, step=2**40), MessageFacts(what="activation", micro_batch=3, source=1, target=2, nbytes=8)),
        (USE, MessageFacts(what="gradient of a tied parameter", step=7, nbytes=1)),
        (Token(run="r", step=2, index=17, token=1, stop=False), MessageFacts(what="token", step=2)),
        (Losses(run="r", step=2, losses={}), MessageFacts(what="losses", step=2)),
        (LentEnd(run="r"), MessageFacts(what="lent-end")),
    ],
)
def test_facts_of_messages(message: Message, facts: MessageFacts) -> None:
    assert message_facts(message) == facts


def test_frames_get_the_times_at_which_they_arrived() -> None:
    ring = SpanRing(clock=lambda: 9.0)
    log = FrameLog(ring)
    messages = [value(0), value(1), value(0, gradient=True)]
    for number, (message, peer) in enumerate(zip(messages, ("a", "a", "b"), strict=True)):
        log.arrived(Arrival(peer=peer, nbytes=size(message), start=float(number), end=number + 0.5))
    for peer, number in (("b", 2), ("a", 0), ("a", 1)):
        log.decoded(peer, messages[number], size(messages[number]), 8.0)
    log.decoded("a", value(2), size(value(2)), 8.5)  # nothing reported its arrival
    spans, _ = ring.drain()
    received = [(span.name, span.peer, span.micro_batch, span.stage, span.start, span.seconds) for span in spans[::2][:3]]
    assert received == [
        ("receive gradient", "b", 0, 1, 2.0, 0.5),
        ("receive activation", "a", 0, 2, 0.0, 0.5),
        ("receive activation", "a", 1, 2, 1.0, 0.5),
    ]
    decoded = [span for span in spans if span.what is SpanKind.DECODE]
    assert [(span.name, span.step, span.micro_batch, span.nbytes, span.seconds) for span in decoded] == [
        ("decode gradient", 7, 0, 8, 1.0),
        ("decode activation", 7, 0, 8, 1.0),
        ("decode activation", 7, 1, 8, 1.0),
        ("decode activation", 7, 2, 8, 0.5),
    ]


def test_arrivals_of_refused_frames_do_not_pile_up() -> None:
    log = FrameLog(SpanRing())
    for number in range(10_000):
        log.arrived(Arrival(peer="a", nbytes=number, start=0.0, end=0.0))
    assert sum(len(waiting) for waiting in log._arrivals.values()) <= 4096
