"""All workers begin an attempt, and continue after a rollback, with the loss scale of one of them.

With a sync strategy, those of a pipeline do.
"""

from __future__ import annotations

from farflung.errors import WireError
from farflung.messages.data import LossScaleState
from farflung.step.context import StepContext
from farflung.step.stages.local_stages import LocalStages

__all__ = ["ScaleAgreement"]


class ScaleAgreement:
    """One worker's part. The compute thread calls ``agree``, transport threads ``receive``."""

    def __init__(self, context: StepContext, stages: LocalStages) -> None:
        self._context, self._scale = context, stages.loss_scale

    def agree(self, step: int) -> None:
        """In the first step after states were loaded, take the scale of the worker that has it."""
        scale, setup = self._scale, self._context.setup
        if scale.agreed:
            return
        if setup.device != scale.source:
            scale.agree(self._context.inbox.take(("loss-scale", step, scale.source)))
            return
        for peer in setup.update_group:
            self._context.transfer.post(peer, scale.message(setup.run, step))
        scale.agree(None)

    def receive(self, peer: str, message: LossScaleState) -> None:
        """Store the loss scale.

        Raises:
            WireError: ``peer`` does not have it.
        """
        if peer != self._scale.source:
            raise WireError(f"only {self._scale.source} sends the loss scale, not {peer}")
        self._context.inbox.put(("loss-scale", message.step, peer), message)

    def report(self, step: int) -> None:
        """Log on the leader that ``step`` was skipped; with a sync strategy, on the worker of the pipeline that makes losses."""
        setup = self._context.setup
        alone = setup.plan.sync is not None
        if self._scale.on and setup.device == (setup.pipeline[setup.loss_stage] if alone else setup.leader):
            where = f" in replica {setup.number}" if alone else ""
            self._context.note(f"step {step}: numbers overflowed in float16{where}; the loss scale is now {self._scale.factor:g}")
