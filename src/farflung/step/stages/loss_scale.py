"""The loss scale of ``precision = "fp16"``: all workers have the same one in each step, with a sync strategy all of a pipeline.

Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.2, with the rule of ``torch.amp.GradScaler``: an overflow
multiplies the scale by ``backoff`` and skips the step, ``every`` steps in a row without one multiply it by ``growth``. Whether a
step overflows is known from the norms that these workers exchange, so no worker decides alone.
What differs: the scale is a power of 2, so that gradients divided by it have the bits of an unscaled backward, and a run ends by
its ``on_nan`` once the scale is at ``_SMALLEST``: then the numbers are bad for another reason.
Cost: one message from one worker to each other at the beginning of an attempt.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from farflung.engines.base import Array
from farflung.job.groups import is_frozen
from farflung.messages.data import LossScaleState
from farflung.step.run_setup import RunSetup

__all__ = ["LossScale", "is_scale_slot"]

_PREFIX = "loss_scale/"
_SMALLEST = 2.0**-16


def is_scale_slot(name: str) -> bool:
    """Return whether an optimizer slot ``<slot>/<parameter>`` is the loss scale of the run."""
    return name.startswith(_PREFIX)


class LossScale:
    """The scale of one worker (compute thread). Always 1 where the job's precision needs none.

    With a sync strategy, each pipeline has a scale of its own and leaves out a step alone. The state travels as an optimizer slot
    of the first trained parameter: in checkpoints, copies and retained states.
    """

    def __init__(self, setup: RunSetup) -> None:
        job = setup.job
        self.on = job.precision == "fp16"
        self._rule = job.loss_scale
        trained = (state.name for state in setup.graph.parameters if state.name in setup.graph.trained)
        self._anchor = next((name for name in trained if not is_frozen(job.optimizer, name)), "") if self.on else ""
        stage = setup.owner(self._anchor) if self._anchor else setup.loss_stage
        #: The worker that sends the scale to the others when an attempt begins.
        self.source = setup.primary(stage) if setup.plan.sync is None else setup.pipeline[stage]
        #: The factor of the loss in the present step.
        self.factor = 1.0
        #: Steps in a row without an overflow.
        self._calm = 0
        self.reset()
        #: Whether all workers have the same scale: not after states were loaded.
        self.agreed = not self.on

    @property
    def exhausted(self) -> bool:
        """Whether a smaller scale would not help."""
        return not self.on or self.factor <= _SMALLEST

    def reset(self) -> None:
        """Begin with the first scale of the job: ``load`` finds none where no checkpoint was written."""
        self.factor, self._calm = self._rule.initial if self.on else 1.0, 0

    def load(self, slots: Mapping[str, Array]) -> None:
        """Take the scale from the slots of a stage, if it is there."""
        found = slots.get(_PREFIX + self._anchor) if self.on else None
        if found is not None:
            self.factor, self._calm = float(found[0]), int(found[1])
        self.agreed = not self.on

    def slots(self, names: Collection[str]) -> dict[str, Array]:
        """Return the slot of a stage with the states ``names``."""
        return {_PREFIX + self._anchor: np.array([self.factor, self._calm])} if self.on and self._anchor in names else {}

    def message(self, run: str, step: int) -> LossScaleState:
        """Return what the other workers begin with."""
        return LossScaleState(run=run, step=step, scale=self.factor, calm=self._calm)

    def agree(self, given: LossScaleState | None) -> None:
        """All workers have the same scale: that of ``given`` (None: the own one)."""
        if given is not None:
            self.factor, self._calm = given.scale, given.calm
        self.agreed = True

    def unscaled(self, gradient: Array) -> Array:
        """Return ``gradient`` without the factor."""
        return gradient * gradient.dtype.type(1.0 / self.factor) if self.on else gradient

    def applied(self) -> None:
        """A step was applied."""
        self._calm += 1
        if self.on and self._calm == self._rule.every:
            larger = self.factor * self._rule.growth
            self.factor, self._calm = larger if math.isfinite(np.float32(larger)) else self.factor, 0

    def skipped(self) -> None:
        """A step was left out."""
        if self.on:
            self.factor, self._calm = max(self.factor * self._rule.backoff, _SMALLEST), 0
