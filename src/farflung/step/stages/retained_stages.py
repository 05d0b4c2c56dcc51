"""The states that an ended attempt leaves on a worker. Nothing is copied: they stay in the memory of the stages' runners."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from farflung.engines.base import Array
from farflung.protocol.retained_states import Decision, RetainedState, ahead
from farflung.step.stages.local_stages import LocalStages

__all__ = ["RetainedStages"]


class RetainedStages:
    """States after ``retained_state.step`` steps. If ``retained_state.ready``, the gradients of the next step are retained too.

    ``before``: states that the next step's forwards have changed, as they were before.
    """

    def __init__(self, stages: LocalStages, retained_state: RetainedState, before: Mapping[int, Mapping[str, Array]]) -> None:
        self._stages, self._state, self._before = stages, retained_state, before
        if not retained_state.ready:
            stages.discard()

    @property
    def retained_state(self) -> RetainedState:
        """Which states these are."""
        return self._state

    def advance(self, decision: Decision) -> None:
        """Apply the step that was prepared, or leave it out."""
        if decision.applied:
            scale = None if decision.scale is None else np.asarray(decision.scale, np.float32)
            self._stages.update(self._state.step, scale)
        else:
            self._stages.restore(self._before)
        self._before = {}
        self._state = ahead(self._state, decision)

    def release(self) -> None:
        """Release the engine that holds the states."""
        if self._stages.engine is not None:
            self._stages.engine.end()

    def read(self, states: Collection[str]) -> Mapping[str, Array]:
        """Return ``states`` with their optimizer slots, packed."""
        return self._stages.read(states, self._before)
