"""Whether a step may be applied: who makes losses tells the leader, and the leader tells everyone.

Both happen as soon as the losses are known, before the last backward, so that nobody waits for a verdict at the end of a step
(where it would stand behind whatever replicas exchange there).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping

from farflung.step.inbox import Inbox
from farflung.step.run_setup import RunHooks, RunSetup
from farflung.step.value_transfer import ValueTransfer

__all__ = ["Verdicts"]


class Verdicts:
    """One worker's part. ``tell`` and ``gather`` are called by the compute thread, ``heard`` on any."""

    def __init__(
        self,
        setup: RunSetup,
        hooks: RunHooks,
        mailbox: Inbox,
        courier: ValueTransfer,
        copy_due: Callable[[int], bool],
        takes_part: Callable[[int, str], bool],
    ) -> None:
        """``copy_due``: whether copies of the states shall be sent to their guards after a step. ``takes_part``: whether a device
        computes in a step."""
        self._copy_due, self._takes_part = copy_due, takes_part
        self._setup, self._hooks, self._mailbox, self._courier = setup, hooks, mailbox, courier
        self._lock = threading.Lock()
        #: The newest step with a verdict, and the own losses of the newest step whose losses are all known here.
        self._announced, self._mine = -1, (-1, dict[int, float]())
        stage = setup.loss_stage
        self._own = setup.places[stage].count(setup.device) if stage in setup.own_stages else 0
        self._others = setup.plan.stages[stage].devices[1:]

    def tell(self, step: int, losses: Mapping[int, float]) -> None:
        """``losses`` are those that were made here so far in ``step``."""
        if len(losses) != self._own:
            return
        if self._setup.device == self._setup.leader:
            self._mine = (step, dict(losses))
            self.heard(step)
        else:
            told = {str(micro_batch): loss for micro_batch, loss in losses.items()}
            self._courier.post(self._setup.leader, "losses", step, {"losses": told})

    def heard(self, step: int) -> None:
        """Losses of another replica came: the leader announces as soon as it has all."""
        at, mine = self._mine
        told = self._mailbox.seen([("losses", step, device) for device in self._awaited(step)]) if at == step else None
        if told is not None:
            self._announce(step, mine | _losses(told))

    def gather(self, step: int, losses: dict[int, float]) -> dict[int, float]:
        """Where several replicas make losses, the leader gets all of them; nobody else keeps any."""
        if not self._others:
            return losses
        if self._setup.device != self._setup.leader:
            return {}
        losses |= _losses([self._mailbox.take(("losses", step, device)) for device in self._awaited(step)])
        self._announce(step, losses)
        return losses

    def _awaited(self, step: int) -> list[str]:
        return [device for device in self._others if self._takes_part(step, device)]

    def _announce(self, step: int, losses: Mapping[int, float]) -> None:
        """Tell everyone, once, whether the losses are numbers and whether this step is the last, or a checkpoint's."""
        with self._lock:
            if step <= self._announced:
                return
            self._announced = step
        bad = [index for index, loss in losses.items() if not math.isfinite(loss)]
        stop, save = self._hooks.stop_requested(), self._hooks.save_requested()
        more = step + 1 < self._setup.job.steps
        leave = more and not stop and self._hooks.leave_requested()
        told = [losses[index] for index in sorted(losses)]
        # a step that is the last and saves is handed over; else the end writes its own checkpoint
        asked = {"stop": stop or leave, "save": (save and more and not stop) or leave, "copy": more and self._copy_due(step)}
        verdict = {"finite": not bad, "bad": bad, "losses": told, **asked}
        self._mailbox.put(("verdict", step), verdict)
        for peer in self._setup.peers:
            self._courier.post(peer, "verdict", step, verdict)


def _losses(told: list[dict[str, dict[str, float]]]) -> dict[int, float]:
    return {int(micro_batch): loss for fields in told for micro_batch, loss in fields["losses"].items()}
