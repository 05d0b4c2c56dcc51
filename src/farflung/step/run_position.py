"""How far one worker is in a run, and which batches of the submitter may therefore wait in its inbox."""

from __future__ import annotations

from farflung.messages.data import Batch
from farflung.step.inbox import Inbox

__all__ = ["EVALUATIONS_AHEAD", "RunPosition"]

#: A worker runs at most this many evaluation micro-batches ahead of the one that makes the outputs.
EVALUATIONS_AHEAD = 4


class RunPosition:
    """Completed steps and evaluation micro-batches. The compute thread writes, transport threads wait for it."""

    def __init__(self, first_step: int, inbox: Inbox) -> None:
        self._inbox = inbox
        #: Completed training steps.
        self.step = first_step
        self._evaluated = 0

    def step_done(self) -> None:
        """Count a training step; batches of the next step may come."""
        self.step += 1
        self._inbox.poke()

    def evaluated(self, micro_batches: int) -> None:
        """Set how many micro-batches of the present evaluation are done; the next batches may come."""
        self._evaluated = micro_batches
        self._inbox.poke()

    def evaluation_done(self) -> None:
        """Reset the count before batches of the next evaluation come."""
        self._evaluated = 0

    def wait_until_due(self, batch: Batch) -> None:
        """Wait on a transport thread until a batch of the submitter may be stored: so few batches are in memory at a time.

        Raises:
            BaseException: the error that ended the run.
        """
        self._inbox.wait_until(lambda: self._is_due(batch))

    def _is_due(self, batch: Batch) -> bool:
        """Return whether the batch is of the next step at most, or of the next few micro-batches of an evaluation."""
        step, key = batch.step, batch.key
        if key.use == "eval":
            return self.step > step or (self.step == step and key.micro_batch <= self._evaluated + EVALUATIONS_AHEAD)
        return self.step + 1 >= step
