"""A worker decodes each frame of a peer once, and gives its message to the part that it is for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from farflung.errors import WireError
from farflung.messages.data import PeerHello, ProbeBytes, RunMessage, StatesWanted, StepReady
from farflung.messages.schema import Message
from farflung.messages.wire_form import encode
from farflung.transports.meter import frame_bytes
from farflung.wire.frames import Frame
from farflung.worker.peer_frames import PeerFrames
from farflung.worker.run_part import CurrentPart, RunPart, Sender

READY = StepReady(run="run-1~2", step=3)


class Part:
    """The current part, called ``run-1~2`` by peers; ``seen``: what it was given."""

    name = "run-1~2"

    def __init__(self) -> None:
        self.seen: list[tuple[Sender, RunMessage]] = []
        self.malformed: list[tuple[str, str]] = []

    def start(self) -> None: ...

    def on_message(self, sender: Sender, message: RunMessage) -> None:
        self.seen.append((sender, message))

    def on_malformed(self, peer: str, error: WireError) -> None:
        self.malformed.append((peer, str(error)))


class Scene:
    def __init__(self) -> None:
        self.part, self.lent = Part(), list[tuple[str, StatesWanted]]()
        self.current = CurrentPart(None)
        self.current.start(cast(RunPart, self.part))
        self.frames = PeerFrames(self.current, lambda peer, wanted: self.lent.append((peer, wanted)))

    def receive(self, message: Message) -> None:
        self.frames.receive("b", encode(message))


def test_a_message_of_the_current_attempt_reaches_its_part() -> None:
    scene = Scene()
    scene.receive(READY)
    assert scene.part.seen == [(Sender("b", frame_bytes(encode(READY))), READY)]


def test_a_message_of_an_older_attempt_is_dropped() -> None:
    scene = Scene()
    scene.receive(StepReady(run="run-1", step=3))
    assert scene.part.seen == []


@pytest.mark.parametrize("message", [PeerHello(), ProbeBytes(), ProbeBytes(sections=(b"12",))])
def test_what_only_has_to_arrive_reaches_nobody(message: Message) -> None:
    scene = Scene()
    scene.receive(message)
    assert (scene.part.seen, scene.part.malformed, scene.lent) == ([], [], [])


def test_retained_states_are_lent_whatever_part_runs() -> None:
    scene, wanted = Scene(), StatesWanted(run="run-1~3", base="run-1", attempt=3, names=("w",))
    scene.receive(wanted)
    assert (scene.lent, scene.part.seen) == ([("b", wanted)], [])


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (Frame("prepared", {"run": "run-1~2", "step": "x"}), "bad message 'prepared': Expected `int`, got `str` in 'step'"),
        (Frame("dance", {"run": "run-1~2"}), "unknown message 'dance': data are "),
        (Frame("prepared", {"run": "run-1~2", "step": 1}, (b"x",)), "bad message 'prepared': expected 0 sections, got 1"),
    ],
)
def test_a_malformed_frame_is_refused_and_reported_to_the_part(frame: Frame, text: str) -> None:
    scene = Scene()
    with pytest.raises(WireError) as caught:
        scene.frames.receive("b", frame)
    assert str(caught.value).startswith(text)
    assert scene.part.malformed == [("b", str(caught.value))]


def test_without_a_part_a_malformed_frame_is_only_refused() -> None:
    frames = PeerFrames(cast(Any, SimpleNamespace(part=None)), lambda peer, wanted: None)
    with pytest.raises(WireError, match="unknown message 'dance'"):
        frames.receive("b", Frame("dance", {}))
