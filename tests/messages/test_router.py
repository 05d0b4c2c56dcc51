"""A router gives each message to the handler of its type, and refuses what it has no handler for."""

from __future__ import annotations

import pytest

from farflung.errors import WireError
from farflung.messages.commands import Start, Stop
from farflung.messages.data import Losses
from farflung.messages.router import Router
from farflung.messages.schema import Channel, Message
from farflung.wire.frames import Frame


def test_a_message_reaches_the_handler_of_its_type() -> None:
    router: Router[str, str] = Router(Channel.COMMANDS)
    router.register(Start, lambda sender, message: f"{sender} starts {message.run} {message.attempt}")
    router.register(Stop, lambda sender, message: f"{sender} stops {message.run}")
    assert router.receive("broker", Frame("start", {"run": "run-1", "attempt": 2})) == "broker starts run-1 2"
    assert router.receive("broker", Frame("stop", {"run": "run-1"})) == "broker stops run-1"


def test_a_type_without_a_handler_is_refused() -> None:
    router: Router[str, None] = Router(Channel.COMMANDS)
    router.register(Stop, lambda sender, message: None)
    with pytest.raises(WireError) as caught:
        router.receive("broker", Frame("start", {"run": "run-1", "attempt": 2}))
    assert str(caught.value) == "'start' is not expected here: this end of commands takes stop"


def test_a_malformed_frame_reaches_no_handler() -> None:
    taken: list[Message] = []
    router: Router[str, None] = Router(Channel.COMMANDS)
    router.register(Stop, lambda sender, message: taken.append(message))
    with pytest.raises(WireError, match="missing required field `run`"):
        router.receive("broker", Frame("stop", {}))
    assert taken == []


def test_a_type_has_one_handler_on_its_own_channel() -> None:
    router: Router[str, None] = Router(Channel.COMMANDS)
    router.register(Stop, lambda sender, message: None)
    with pytest.raises(ValueError, match="'stop' has a handler already"):
        router.register(Stop, lambda sender, message: None)
    with pytest.raises(ValueError, match="'losses' does not travel on commands"):
        router.register(Losses, lambda sender, message: None)
