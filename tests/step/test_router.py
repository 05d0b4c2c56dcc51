"""Small messages of a step: decoded once, stored where they are waited for, refused where they do not belong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from farflung.errors import WireError
from farflung.messages.data import EvaluationVote, LayerExchange, LocalStepTime, Losses, Norms, Slope, StepReady, Token, Verdict
from farflung.messages.hybrid import ServerServed
from farflung.messages.schema import Message, kind_of
from farflung.step.executor import Executor
from farflung.transports.memory import MemoryHub
from tests.support.steps.small_runs import small_setup

RUN = "run-small"
VERDICT = Verdict(run=RUN, step=3, finite=True, bad=(), losses=(0.5,), stop=False, save=False, copy_states=False)


def executor(device: str) -> Executor:
    endpoint = MemoryHub().endpoint(device, lambda peer, frame: None)
    return Executor(small_setup(device), endpoint, cast(Any, SimpleNamespace()), cast(Any, SimpleNamespace()))


@pytest.mark.parametrize(
    ("message", "key", "item"),
    [
        (VERDICT, ("verdict", 3), VERDICT),
        (Losses(run=RUN, step=3, losses={"0": 1.0, "1": 2.0}), ("losses", 3, "b"), {0: 1.0, 1: 2.0}),
        (Norms(run=RUN, step=3, norms={"w": 2.0}), ("norms", 3, "b"), {"w": 2.0}),
        (StepReady(run=RUN, step=3), ("prepared", 3, "b"), True),
        (EvaluationVote(run=RUN, step=3, index=2, stop=True), ("eval-done", 3, 2), True),
    ],
)
def test_small_messages_wait_under_their_kind_and_step(message: Message, key: tuple[object, ...], item: object) -> None:
    made = executor("a")
    made.receive("b", message)
    assert made.inbox.take(key) == item


def test_a_token_waits_under_its_number() -> None:
    made = executor("a")
    token = Token(run=RUN, step=0, index=1, token=5, stop=False)
    made.receive("b", token)
    assert made.inbox.take(("token", 0, 1)) == token


@pytest.mark.parametrize(
    "message",
    [
        Slope(run=RUN, step=0, sections=(b"12",)),
        ServerServed(run=RUN, step=0, stage=0),
        LocalStepTime(run=RUN, place=0, seconds=1.0),
        LayerExchange(run=RUN, stage=0, tag="t", arrays=()),
    ],
)
def test_a_message_that_this_run_does_not_need_is_refused(message: Message) -> None:
    made = executor("a")
    with pytest.raises(WireError, match=f"'{kind_of(message)}' is not expected here: this end of data takes copied, copy, "):
        made.receive("b", message)
    assert len(made.inbox) == 0


@pytest.mark.parametrize("losses", [{"1": 2.0}, {"0": 1.0, "1": 2.0, "2": 3.0}, {"0": 1.0, "one": 2.0}])
def test_losses_of_other_micro_batches_are_refused_when_they_come(losses: dict[str, float]) -> None:
    """The leader reads them when all have come: it would blame whoever sent the last ones."""
    made = executor("a")
    with pytest.raises(WireError, match=r"^b makes the losses of micro-batches 0, 1, and sent others$"):
        made.receive("b", Losses(run=RUN, step=3, losses=losses))
    assert len(made.inbox) == 0


def test_only_the_leader_decides() -> None:
    with pytest.raises(WireError, match="only b decides on a step, not a"):
        executor("b").receive("a", VERDICT)
