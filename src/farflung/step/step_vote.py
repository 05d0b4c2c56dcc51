"""The vote on a step: workers that make losses send them to the leader, and the leader sends its verdict to everyone.

Both happen as soon as the losses are known, before the last backward. So no worker waits for a verdict at the end of a step,
where it would stand behind the sums over replicas.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping

from farflung.errors import WireError
from farflung.messages.data import Losses, Verdict
from farflung.step.context import StepContext

__all__ = ["StepVote"]


class StepVote:
    """One worker's part. The compute thread calls ``report`` and ``gather``, any thread ``received``."""

    def __init__(self, context: StepContext, copy_due: Callable[[int], bool], takes_part: Callable[[int, str], bool]) -> None:
        """``copy_due``: whether a copy interval begins after a step. ``takes_part``: whether a device computes in a step."""
        self._context, self._copy_due, self._takes_part = context, copy_due, takes_part
        #: Guards ``_announced``: the compute thread and a transport thread may both find the losses complete.
        self._lock = threading.Lock()
        #: The newest step with a verdict, and the own losses of the newest step whose losses are all known here.
        self._announced, self._mine = -1, (-1, dict[int, float]())
        setup = context.setup
        stage = setup.loss_stage
        self._own = setup.places[stage].count(setup.device) if stage in setup.own_stages else 0
        self._others = setup.plan.stages[stage].devices[1:]

    def report(self, step: int, losses: Mapping[int, float]) -> None:
        """Send ``losses`` once they are all that this worker makes in ``step``."""
        if len(losses) != self._own:
            return
        setup = self._context.setup
        if setup.device == setup.leader:
            self._mine = (step, dict(losses))  # one assignment: transport threads read it without the lock
            self.received(step)
        else:
            found = {str(micro_batch): loss for micro_batch, loss in losses.items()}
            self._context.transfer.post(setup.leader, Losses(run=setup.run, step=step, losses=found))

    def receive_losses(self, peer: str, message: Losses) -> None:
        """Store losses of another replica (transport thread); the leader announces its verdict as soon as it has all."""
        self._context.inbox.put(("losses", message.step, peer), message.losses)
        self.received(message.step)

    def receive_verdict(self, peer: str, message: Verdict) -> None:
        """Store the verdict on a step (transport thread).

        Raises:
            WireError: ``peer`` is not the leader.
        """
        if peer != self._context.setup.leader:
            raise WireError(f"only {self._context.setup.leader} decides on a step, not {peer}")
        self._context.inbox.put(("verdict", message.step), message)

    def received(self, step: int) -> None:
        """Announce the verdict on ``step`` if all losses are here."""
        at, mine = self._mine
        inbox = self._context.inbox
        found = inbox.seen([("losses", step, device) for device in self._awaited(step)]) if at == step else None
        if found is not None:
            self._announce(step, mine | _losses(found))

    def gather(self, step: int, losses: dict[int, float]) -> dict[int, float]:
        """Return all losses of ``step`` on the leader; where several replicas make losses, none on the others."""
        setup = self._context.setup
        if not self._others:
            return losses
        if setup.device != setup.leader:
            return {}
        losses |= _losses([self._context.inbox.take(("losses", step, device)) for device in self._awaited(step)])
        self._announce(step, losses)
        return losses

    def _awaited(self, step: int) -> list[str]:
        return [device for device in self._others if self._takes_part(step, device)]

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


def _losses(found: list[dict[str, float]]) -> dict[int, float]:
    return {int(micro_batch): loss for losses in found for micro_batch, loss in losses.items()}
