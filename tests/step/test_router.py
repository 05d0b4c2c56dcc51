"""Small messages of a step: decoded once, stored where they are waited for, refused where they do not belong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from farflung.errors import WireError
from farflung.messages.data import EvaluationVote, Losses, Norms, StepReady, Token, Verdict
from farflung.messages.schema import Message
from farflung.messages.wire_form import encode
from farflung.step.executor import Executor
from farflung.transports.memory import MemoryHub
from farflung.wire.frames import Frame
from tests.support.small_runs import small_setup

RUN = "run-small"
VERDICT = Verdict(run=RUN, step=3, finite=True, bad=(), losses=(0.5,), stop=False, save=False, copy_states=False)


def executor(device: str) -> Executor:
    endpoint = MemoryHub().endpoint(device, lambda peer, frame: None)
    return Executor(small_setup(device), endpoint, cast(Any, SimpleNamespace()), cast(Any, SimpleNamespace()))


@pytest.mark.parametrize(
    ("message", "key", "item"),
    [
        (VERDICT, ("verdict", 3), VERDICT),
        (Losses(run=RUN, step=3, losses={"1": 2.0}), ("losses", 3, "b"), {"1": 2.0}),
        (Norms(run=RUN, step=3, norms={"w": 2.0}), ("norms", 3, "b"), {"w": 2.0}),
        (StepReady(run=RUN, step=3), ("prepared", 3, "b"), True),
        (EvaluationVote(run=RUN, step=3, index=2, stop=True), ("eval-done", 3, 2), True),
    ],
)
def test_small_messages_wait_under_their_kind_and_step(message: Message, key: tuple[object, ...], item: object) -> None:
    made = executor("a")
    made.on_frame("b", encode(message))
    assert made.inbox.take(key) == item


def test_a_token_waits_under_its_number() -> None:
    made = executor("a")
    token = Token(run=RUN, step=0, index=1, token=5, stop=False)
    made.on_frame("b", encode(token))
    assert made.inbox.take(("token", 0, 1)) == token


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (Frame("verdict", {**encode(VERDICT).header, "step": "0"}), "bad message 'verdict'.*'step'"),
        (Frame("verdict", {**encode(VERDICT).header, "finite": 1}), "bad message 'verdict'.*'finite'"),
        (Frame("norms", {"run": RUN, "step": 0, "norms": {"w": "big"}}), "bad message 'norms'"),
        (Frame("norms", {"run": RUN, "step": 0}), "bad message 'norms'.*missing required field `norms`"),
        (Frame("token", {"run": RUN, "step": 0, "index": 1, "token": 1}), "bad message 'token'.*missing required field `stop`"),
        (Frame("dance", {"step": 0}), "unknown message 'dance'"),
        (Frame("slope", {"run": RUN, "step": 0}, (b"12",)), "'slope' is not expected here"),
    ],
)
def test_what_does_not_belong_here_is_refused(frame: Frame, says: str) -> None:
    made = executor("a")
    with pytest.raises(WireError, match=says):
        made.on_frame("b", frame)
    assert len(made.inbox) == 0


def test_only_the_leader_decides() -> None:
    with pytest.raises(WireError, match="only b decides on a step, not a"):
        executor("b").on_frame("a", encode(VERDICT))
