"""Messages as their receiver gets them: through bytes."""

from __future__ import annotations

from typing import TypeVar

from farflung.messages.schema import Channel, Message
from farflung.messages.wire_form import decode_as, encode
from farflung.wire.frames import decode_frame, encode_frame

SentT = TypeVar("SentT", bound=Message)


def sent(message: SentT) -> SentT:
    """``message``, after it has travelled on the data plane."""
    frame = decode_frame(b"".join(map(bytes, encode_frame(encode(message)))))
    return decode_as(frame, Channel.DATA, type(message))
