"""The frames by which a relay calls a member."""

from __future__ import annotations

import pytest

from farflung.wire.frames import Frame, decode_frame, encode_frame
from farflung.wire.relay_calls import RelayCall


def test_a_call_passes_the_wire() -> None:
    call = RelayCall("a", "token")
    assert RelayCall.of(decode_frame(b"".join(map(bytes, encode_frame(call.to_frame()))))) == call


def test_other_frames_are_no_calls() -> None:
    assert RelayCall.of(Frame("value", {"from": "a", "token": "t"})) is None


@pytest.mark.parametrize("header", [{}, {"from": "a"}, {"from": 3, "token": "t"}, {"from": "a", "token": b"t"}])
def test_a_malformed_call_names_nobody(header: dict[str, object]) -> None:
    assert RelayCall.of(Frame("relay-call", header)) == RelayCall("", "")
