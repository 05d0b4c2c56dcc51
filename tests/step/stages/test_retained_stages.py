"""What an ended attempt leaves: the step that was prepared can be applied, or left out, later."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from farflung.protocol.retained_states import Decision, RetainedState
from farflung.step.stages.local_stages import LocalStages
from farflung.step.stages.retained_stages import RetainedStages

BEFORE = {0: {"mean": np.zeros(2)}}


class Stages:
    """Writes down what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def discard(self) -> None:
        self.calls.append(("discard", None))

    def update(self, step: int, scale: Any) -> None:
        self.calls.append(("update", (step, scale)))

    def restore(self, before: Any) -> None:
        self.calls.append(("restore", before))

    def read(self, wanted: Any, instead: Any) -> Any:
        self.calls.append(("read", instead))
        return {}


def retained(*, ready: bool) -> tuple[RetainedStages, Stages]:
    stages = Stages()
    retained_state = RetainedState(step=5, committed=4, states=frozenset({"w", "mean"}), ready=ready)
    return RetainedStages(cast(LocalStages, stages), retained_state, BEFORE), stages


def test_gradients_are_dropped_unless_the_next_step_was_prepared() -> None:
    assert retained(ready=False)[1].calls == [("discard", None)]
    assert retained(ready=True)[1].calls == []


@pytest.mark.parametrize("scale", [None, 0.5])
def test_a_prepared_step_is_applied_as_the_others_did(scale: float | None) -> None:
    states, stages = retained(ready=True)
    states.read({"mean"})
    states.advance(Decision(scale=scale))
    states.read({"mean"})
    (_, before), (name, (step, factor)), (_, after) = stages.calls
    assert (name, step, factor if factor is None else (float(factor), factor.dtype)) == (
        "update",
        5,
        None if scale is None else (0.5, np.float32),
    )
    assert (before, after) == (BEFORE, {}), "statistics are read as before the step, until it is applied"
    assert (states.retained_state.step, states.retained_state.committed, states.retained_state.ready) == (6, 5, False)


def test_a_step_that_the_others_left_out_is_left_out() -> None:
    states, stages = retained(ready=True)
    states.advance(Decision(applied=False))
    assert stages.calls == [("restore", BEFORE)]
    assert (states.retained_state.step, states.retained_state.committed) == (6, 4)
