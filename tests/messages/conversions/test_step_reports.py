"""Step reports as messages."""

from __future__ import annotations

import pytest

from farflung.errors import WireError
from farflung.messages.conversions.step_reports import StepReport, message_of, newest_messages, report_of
from farflung.messages.reports import MOST_STEPS, Stepped
from farflung.messages.schema import Channel
from farflung.messages.wire_form import decode, decode_as, encode
from farflung.telemetry.records import CodecUse
from farflung.wire.frames import Frame, decode_frame, encode_frame


def test_reports_travel() -> None:
    one = StepReport(
        step=3,
        seconds=1.0,
        busy=0.5,
        wait=0.5,
        sent={(0, 1): 10},
        dense={(0, 1): 20},
        stage_busy={0: 0.5},
        loss=1.5,
        losses=(1.5, 1.5),
        samples=5,
        left_out=2,
        rate=0.1,
        codecs={(0, 1): CodecUse(encode_seconds=0.5, decode_seconds=0.25, error=1.5)},
    )
    message = message_of(one, "r", 1)
    frame = decode_frame(b"".join(encode_frame(encode(message))))
    assert report_of(decode_as(frame, Channel.REPORTS, Stepped)) == one
    for spoiled in ({"codecs": [[0, 1, 0.5]]}, {"sent": [[1, 2]]}):
        with pytest.raises(WireError, match="bad message 'step'"):
            decode(Frame("step", {**frame.header, **spoiled}), Channel.REPORTS)


def short(step: int, micro_batches: int = 1) -> StepReport:
    losses = (1.5,) * micro_batches
    return StepReport(step=step, seconds=0.125, busy=0.0, wait=0.0, sent={}, dense={}, stage_busy={}, losses=losses)


@pytest.mark.parametrize(("seconds", "first"), [(0.0, 1000 - MOST_STEPS), (10.0, 920), (1000.0, 0)])
def test_the_newest_reports_are_those_of_the_last_seconds(seconds: float, first: int) -> None:
    found = newest_messages([short(step) for step in range(1000)], "r", 1, seconds)
    assert [one.step for one in found] == list(range(first, 1000))


def test_large_reports_are_fewer_and_the_newest_one_is_always_there() -> None:
    found = newest_messages([short(step, 50_000) for step in range(9)], "r", 1)
    assert [one.step for one in found] == [7, 8]
    assert [one.step for one in newest_messages([short(0, 200_000)], "r", 1)] == [0]
