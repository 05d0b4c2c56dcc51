"""The kit for message types: every type passes, and the kit notices what it is for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from farflung.errors import WireError
from farflung.messages.commands import Abort
from farflung.messages.data import Value
from farflung.messages.schema import Channel, Message
from farflung.messages.wire_form import decode, types_on
from farflung.testing import check_message, messages
from farflung.testing.messages import HostileFrames, some_frame
from farflung.wire.frames import Frame

TYPES = sorted({found for channel in Channel for found in types_on(channel).values()}, key=lambda found: found.__qualname__)


@pytest.mark.parametrize("message_type", TYPES, ids=lambda found: found.__name__)
def test_every_message_type_passes(message_type: type[Message]) -> None:
    check_message(message_type, HostileFrames(inputs=40))


def test_frames_depend_on_the_seed_alone() -> None:
    def frames(seed: int) -> list[Frame]:
        generator = np.random.default_rng(seed)
        return [some_frame(Value, generator) for _ in range(5)]

    assert frames(3) == frames(3) != frames(4)


def found_by(monkeypatch: pytest.MonkeyPatch, decoder: Any) -> str:
    monkeypatch.setattr(messages, "decode", decoder)
    with pytest.raises(AssertionError) as caught:
        check_message(Abort, HostileFrames(inputs=40))
    return str(caught.value)


def test_another_error_is_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(frame: Frame, channel: Channel) -> Message:
        if "keep" not in frame.header:
            raise KeyError("keep")
        return decode(frame, channel)

    assert "KeyError instead of a WireError" in found_by(monkeypatch, careless)


def test_an_error_of_several_lines_is_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    def chatty(frame: Frame, channel: Channel) -> Message:
        try:
            return decode(frame, channel)
        except WireError as error:
            raise WireError(f"{error}\nand more") from None

    assert "an error of several lines" in found_by(monkeypatch, chatty)


def test_a_type_that_refuses_its_own_fields_is_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(frame: Frame, channel: Channel) -> Message:
        raise WireError("no")

    assert "Abort refuses frames whose fields are all within their bounds" in found_by(monkeypatch, strict)


def test_a_decoder_that_takes_memory_is_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(frame: Frame, channel: Channel) -> Message:
        bytes(messages.MOST_MEMORY)
        return decode(frame, channel)

    assert "decoding took" in found_by(monkeypatch, greedy)


def test_a_message_that_changes_is_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(frame: Frame, channel: Channel) -> Message:
        message = decode(frame, channel)
        assert isinstance(message, Abort)
        return replace(message, attempt=message.attempt // 2)

    assert "a message changes when it is sent again" in found_by(monkeypatch, forgetful)
