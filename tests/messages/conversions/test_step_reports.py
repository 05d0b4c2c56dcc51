"""Step reports as messages."""

from __future__ import annotations

import pytest

from farflung.errors import WireError
from farflung.messages.conversions.step_reports import StepReport, message_of, report_of
from farflung.messages.reports import Stepped
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
        rate=0.1,
        codecs={(0, 1): CodecUse(encode_seconds=0.5, decode_seconds=0.25, error=1.5)},
    )
    message = message_of(one, "r", 1)
    frame = decode_frame(b"".join(encode_frame(encode(message))))
    assert report_of(decode_as(frame, Channel.REPORTS, Stepped)) == one
    for spoiled in ({"codecs": [[0, 1, 0.5]]}, {"sent": [[1, 2]]}):
        with pytest.raises(WireError, match="bad message 'step'"):
            decode(Frame("step", {**frame.header, **spoiled}), Channel.REPORTS)
