"""How many local steps of a period each pipeline takes, where a strategy goes ``by_speed``: as planned, then as measured.

The device with a pipeline's first stage times each local step, from its begin to the end of its last backward, and reports the
median to all workers at a period's end. All follow the reports at the end of the next period: they decide from the same numbers
(``sync.local_step_counts.adapted_steps``), and nobody waits for reports. Cost: a small message to every worker in a period.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import numpy as np

from farflung.clock import precise_time
from farflung.engines.base import Array
from farflung.errors import WireError
from farflung.messages.data import LocalStepTime
from farflung.step.inbox import Inbox
from farflung.step.run_setup import RunSetup
from farflung.step.transfer.outbox import Outbox, OutgoingMessage
from farflung.sync import Traits
from farflung.sync.local_step_counts import adapted_steps, ended, takes
from farflung.transports.base import Urgency

__all__ = ["LocalStepCounts"]


class LocalStepCounts:
    """One worker's part; ``receive`` is called on any thread, all else by the compute thread.

    ``steps``: the local steps of each pipeline that are in force (empty: all take all).
    """

    def __init__(
        self,
        setup: RunSetup,
        traits: Traits,
        inbox: Inbox,
        links: Outbox,
        clock: Callable[[], float] = precise_time,
    ) -> None:
        assert setup.plan.sync is not None
        self._setup, self._inbox, self._links, self._clock = setup, inbox, links, clock
        self.steps = setup.plan.sync.local_steps
        self._traits = traits
        self._adapt = traits.step_gain if self.steps else 0.0
        #: The devices that measure and report, by pipeline.
        self._reporters = setup.plan.stages[0].devices
        self._begin, self._end = 0.0, 0.0
        self._seconds: list[float] = []
        #: Ends of periods whose reports have not been followed yet.
        self._reported: list[int] = []

    def resume(self, retained: Array) -> None:
        """Continue with the counts that a checkpoint holds, if they are of such a group and period."""
        steps = tuple(int(value) for value in retained.reshape(-1).tolist())
        if self._adapt and len(steps) == len(self.steps) and min(steps) >= 1 and max(steps) == self._traits.sync_every:
            self.steps = steps

    def continues(self, retained: Array | None) -> bool:
        """Whether what is under way in a checkpoint with the counts ``retained`` arrives under those in force."""
        given = () if retained is None else tuple(int(value) for value in retained.reshape(-1).tolist())
        return not self._traits.asynchronous or given == self.steps

    @property
    def retained(self) -> Array | None:
        """What a checkpoint must hold."""
        return np.array(self.steps, np.float32) if self._adapt or (self.steps and self._traits.asynchronous) else None

    def participants(self, place: int) -> frozenset[int]:
        """The pipelines that take a local step at ``place``, counted from where the strategy began."""
        if not self.steps:
            return frozenset(range(len(self._reporters)))
        return frozenset(rank for rank, steps in enumerate(self.steps) if takes(place, steps, self._traits.sync_every))

    def due(self, place: int) -> dict[int, int]:
        """The pipelines whose losses count at ``place``, and the place of the local step that makes them."""
        if not (self._traits.asynchronous and self.steps):
            return dict.fromkeys(sorted(self.participants(place)), place)
        last = {rank: ended(place, steps, self._traits.sync_every) for rank, steps in enumerate(self.steps)}
        return {rank: begun for rank, begun in last.items() if begun is not None}

    def begin_step(self, place: int) -> str | None:
        """A step begins; the line for people where local steps change with it, else ``None``."""
        changed = None
        if self._reported and place % self._traits.sync_every == 0 and place - self._reported[0] > self._traits.sync_every:
            changed = self._follow(self._reported.pop(0))
        self._begin = self._end = self._clock()
        return changed

    def backward_ended(self) -> None:
        """The last backward of a stage here is over."""
        self._end = self._clock()

    def end_step(self, place: int, step: int) -> None:
        """The step is done; at a period's end report to the others what a local step took."""
        if not self._adapt:
            return
        if self._end > self._begin:
            self._seconds.append(self._end - self._begin)
        if (place + 1) % self._traits.sync_every:
            return
        self._reported.append(place)
        if self._setup.device in self._reporters:
            self._report(place, step)

    def receive(self, peer: str, message: LocalStepTime) -> None:
        """Store what a local step takes the pipeline of ``peer`` (transport thread).

        Raises:
            WireError: ``peer`` has no first stage, or local steps do not follow their times.
        """
        if peer not in self._reporters or not self._adapt:
            raise WireError(f"{peer} does not report local step times in this run")
        self._inbox.put(("pace", message.place, peer), message.seconds)

    def take(self) -> float:
        """The median of the local steps since the last call, seconds (0: there were none)."""
        found, self._seconds = median(self._seconds) if self._seconds else 0.0, []
        return found

    def _report(self, place: int, step: int) -> None:
        seconds = self.take()
        self._inbox.put(("pace", place, self._setup.device), seconds)
        message = LocalStepTime(run=self._setup.run, place=place, seconds=seconds)
        for peer in self._setup.peers:
            self._links.post(peer, OutgoingMessage(make=lambda: message, urgency=Urgency.CONTROL, step=step, waits=False))

    def _follow(self, place: int) -> str | None:
        seconds = [self._inbox.take(("pace", place, device)) for device in self._reporters]
        job = self._setup.job
        shares = [sum(job.weight(index) for index in replica.micro_batches) for replica in self._setup.plan.replicas_of(0)]
        found = adapted_steps(self.steps, seconds, shares, self._traits.sync_every, self._adapt)
        if found == self.steps:
            return None
        self.steps = found
        took, steps = ", ".join(f"{value:.3g}" for value in seconds), ", ".join(map(str, found))
        return f"local steps took {took} s: replicas take {steps} of {self._traits.sync_every} from here on"
