"""Whatever comes in a frame, ``decode`` returns a message or raises ``WireError``. ``tests/testing`` tries every type."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import WireError
from farflung.messages.schema import Channel, Message
from farflung.messages.wire_form import decode, encode, types_on
from farflung.testing.messages import damaged_frame
from farflung.wire.frames import Frame, decode_frame, encode_frame


def read(channel: Channel, frame: Frame) -> Message | None:
    """The message in a frame that has passed the wire (None: the wire or ``decode`` refuses it)."""
    with suppress(WireError):
        return decode(decode_frame(b"".join(map(bytes, encode_frame(frame)))), channel)
    return None


def test_a_damaged_golden_frame_is_read_or_refused(golden: Any) -> None:
    whole = decode_frame(b"".join(map(bytes, encode_frame(golden.frame))))
    for seed in range(30):
        message = read(golden.channel, damaged_frame(whole, np.random.default_rng(seed)))
        if message is not None:  # then it is a message like any other
            assert read(golden.channel, encode(message)) is not None


@settings(deadline=None, max_examples=60)
@given(channel=st.sampled_from(Channel), kind=st.text(max_size=12))
def test_an_unknown_kind_is_refused(channel: Channel, kind: str) -> None:
    if kind not in types_on(channel):
        with pytest.raises(WireError, match="unknown message"):
            decode(Frame(kind, {}), channel)
