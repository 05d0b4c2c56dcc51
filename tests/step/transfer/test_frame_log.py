"""A worker's trace says what each frame carried, and joins a frame to its arrival."""

from __future__ import annotations

import pytest

from farflung.step.transfer.frame_log import FrameFacts, FrameLog, frame_facts
from farflung.telemetry import SpanKind, SpanRing
from farflung.transports.base import Arrival
from farflung.transports.meter import frame_bytes
from farflung.wire.frames import Frame


def value(micro_batch: object, *, gradient: bool = False, step: object = 7) -> Frame:
    key = ["value", "train", step, micro_batch, "block.out", 1, 2, gradient]
    return Frame("value", {"run": "r", "key": key}, (b"12345678",))


@pytest.mark.parametrize(
    ("frame", "facts"),
    [
        (value(3), FrameFacts(what="activation", step=7, micro_batch=3, source=1, target=2)),
        (value(3, gradient=True), FrameFacts(what="gradient", step=7, micro_batch=3, source=2, target=1)),
        (Frame("value", {"key": ["use", 7, 1, "w", "op"]}), FrameFacts(what="gradient of a tied parameter", step=7)),
        (Frame("token", {"step": 2, "index": 17}), FrameFacts(what="token", step=2)),
        (Frame("losses", {"step": 2}), FrameFacts(what="losses", step=2)),
        (Frame("lent", {}), FrameFacts(what="lent")),
    ],
)
def test_facts_of_frames(frame: Frame, facts: FrameFacts) -> None:
    assert frame_facts(frame) == facts


@pytest.mark.parametrize("wrong", ["3", None, 2**40, -9, [1]])
def test_a_malformed_header_counts_as_unknown(wrong: object) -> None:
    assert frame_facts(value(wrong, step=wrong)) == FrameFacts(what="activation", source=1, target=2)


def test_frames_get_the_times_at_which_they_arrived() -> None:
    ring = SpanRing(clock=lambda: 9.0)
    log = FrameLog(ring)
    frames = [value(0), value(1), value(0, gradient=True)]
    for number, (frame, peer) in enumerate(zip(frames, ("a", "a", "b"), strict=True)):
        log.arrived(Arrival(peer=peer, nbytes=frame_bytes(frame), start=float(number), end=number + 0.5))
    log.decoded("b", frames[2], 8.0)
    log.decoded("a", frames[0], 8.0)
    log.decoded("a", frames[1], 8.0)
    log.decoded("a", value(2), 8.5)  # its arrival was not told
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
