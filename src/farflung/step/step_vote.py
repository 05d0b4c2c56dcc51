"""The vote on a step: workers that make losses send them to the leader, and the leader sends its verdict to everyone.

Under a strategy without a barrier, the losses of a long local step count in the step in which it ends, so nobody waits for them.

Both happen as soon as the losses are known, before the last backward. So no worker waits for a verdict at the end of a step,
where it would stand behind the sums over replicas.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

from farflung.errors import WireError
from farflung.messages.data import Losses, Verdict
from farflung.step.context import StepContext

__all__ = ["StepVote"]


class StepVote:
    """One worker's part. The compute thread calls ``report`` and ``gather``, any thread ``announce``."""

    def __init__(self, context: StepContext, copy_due: Callable[[int], bool], due: Callable[[int], Mapping[str, int]]) -> None:
        """``copy_due``: whether a copy interval begins after a step. ``due``: the devices whose losses count in a step, and the
        step in which each of them makes these losses.
        """
        self._context, self._copy_due, self._due = context, copy_due, due
        #: Guards ``_announced``: the compute thread and a transport thread may both find the losses complete.
        self._lock = threading.Lock()
        setup = context.setup
        #: The newest step with a verdict.
        self._announced = setup.first_step - 1
        stage = setup.loss_stage
        self._own = setup.places[stage].count(setup.device) if stage in setup.own_stages else 0

    def report(self, step: int, losses: Mapping[int, float]) -> None:
        """Send ``losses`` once they are all that this worker makes in ``step``."""
        if len(losses) != self._own:
            return
        setup = self._context.setup
        if setup.device == setup.leader:
            self._context.inbox.put(("losses", step, setup.device), dict(losses))
            self.announce()
        else:
            found = {str(micro_batch): loss for micro_batch, loss in losses.items()}
            self._context.transfer.post(setup.leader, Losses(run=setup.run, step=step, losses=found))

    def receive_losses(self, peer: str, message: Losses) -> None:
        """Store losses of another replica (transport thread); the leader announces its verdict as soon as it has all.

        Raises:
            WireError: they are not of the micro-batches of ``peer``. Later, an honest sender would be blamed for that.
        """
        places = self._context.setup.places[self._context.setup.loss_stage]
        own = {str(micro_batch) for micro_batch, place in enumerate(places) if place == peer}
        if message.losses.keys() != own:
            raise WireError(f"{peer} makes the losses of micro-batches {', '.join(sorted(own)) or 'none'}, and sent others")
        self._context.inbox.put(("losses", message.step, peer), {int(key): loss for key, loss in message.losses.items()})
        self.announce()

    def receive_verdict(self, peer: str, message: Verdict) -> None:
        """Store the verdict on a step (transport thread).

        Raises:
            WireError: ``peer`` is not the leader.
        """
        if peer != self._context.setup.leader:
            raise WireError(f"only {self._context.setup.leader} decides on a step, not {peer}")
        self._context.inbox.put(("verdict", message.step), message)

    def announce(self) -> None:
        """On the leader, announce the verdicts on the next steps whose losses are all here.

        The leader may be behind: it computes a long local step, or it rests. Others do not wait for it then.
        """
        setup = self._context.setup
        while setup.device == setup.leader and self._announced + 1 < setup.job.steps:
            step = self._announced + 1
            found = self._context.inbox.seen(self._keys(step))
            if found is None:
                return
            self._announce(step, _losses(found))

    def gather(self, step: int) -> dict[int, float]:
        """Return all losses that count in ``step`` on the leader, none on the others."""
        if self._context.setup.device != self._context.setup.leader:
            return {}
        found = _losses([self._context.inbox.take(key) for key in self._keys(step)])
        self._announce(step, found)
        self.announce()  # while these losses were taken, nobody found them
        return found

    def _keys(self, step: int) -> list[tuple[str, int, str]]:
        """Where the losses that count in ``step`` wait."""
        return [("losses", made, device) for device, made in self._due(step).items()]

    def _announce(self, step: int, losses: Mapping[int, float]) -> None:
        """Send everyone, once, whether the losses are finite, and whether the run ends or saves after this step."""
        with self._lock:
            if step <= self._announced:
                return
            self._announced = step
        setup, hooks = self._context.setup, self._context.hooks
        bad = [index for index, loss in losses.items() if not math.isfinite(loss)]
        stop, save = hooks.stop_requested(), hooks.save_requested()
        more = step + 1 < setup.job.steps
        leave = more and not stop and hooks.leave_requested()
        ordered = [losses[index] for index in sorted(losses)]
        verdict = Verdict(
            run=setup.run,
            step=step,
            finite=not bad,
            bad=tuple(bad),
            losses=tuple(ordered),
            stop=stop or leave,
            save=(save and more and not stop) or leave,  # a last step that saves drains the run, which then writes no other one
            copy_states=more and self._copy_due(step),
        )
        self._context.inbox.put(("verdict", step), verdict)
        for peer in setup.peers:
            self._context.transfer.post(peer, verdict)


def _losses(found: list[Any]) -> dict[int, float]:
    return {micro_batch: loss for losses in found for micro_batch, loss in losses.items()}
