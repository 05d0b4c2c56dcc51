"""Servers of one stage help each other: who has nothing left of its own slices in a step computes those of its fellows.

Each server has the pool of its own slices. Once all of these had their forward, and while it has room, it says that it is free;
a fellow's pool then gives it one task. It hears from each fellow when that one's slices are done, and stays until all are. All
replicas of a stage have the same states, so nothing but the task and its answer is sent, and no bit depends on who computes.

Cost: for each stage, step and pair of servers two small frames, and two for each task that moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from farflung.errors import WireError
from farflung.messages.fields import whole
from farflung.protocol.pool_events import Task, TaskKind
from farflung.step.outbox import OutgoingFrame
from farflung.transports.base import Urgency
from farflung.wire.frames import Frame

if TYPE_CHECKING:
    from farflung.step.executor import Executor
    from farflung.step.hybrid.slices import Order

__all__ = ["FELLOW_KINDS", "Fellows"]

#: Frames that servers of a stage send each other of it.
FELLOW_KINDS = frozenset({"answer", "free", "served", "task"})


class Fellows:
    """The fellows of one executor's stages. What transport threads tell it becomes true under the mailbox's lock, or one item
    at a time; all else is for the compute thread."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        setup = executor.setup
        #: stage -> the other servers, and how fast they are by their share of the micro-batches (this one: 1)
        self.speeds: dict[int, dict[str, float]] = {}
        for stage in setup.own_stages:
            counts = {replica.device: float(len(replica.micro_batches)) for replica in setup.plan.replicas_of(stage)}
            mine = counts.pop(setup.device)
            self.speeds[stage] = {name: count / mine for name, count in counts.items()}
        #: What fellows have sent to be computed here: (stage, who, what).
        self.lent: deque[tuple[int, str, Order]] = deque()
        #: (stage, fellow) -> the last step in which its slices were done
        self._over: dict[tuple[int, str], int] = {}
        self._asked: set[tuple[int, str]] = set()
        self._told: set[int] = set()
        self._held: set[tuple[int, int]] = set()
        self._step = -1
        #: Tasks of fellows that were computed here, in all steps.
        self.computed = 0

    def stage_of(self, peer: str, frame: Frame) -> int:
        """The stage of a frame from ``peer``.

        Raises:
            WireError: they are no fellows in it.
        """
        stage = whole(frame.header, "stage")
        if peer not in self.speeds.get(stage, ()):
            raise WireError(f"{peer} and this worker are not both servers of stage {stage}; its {frame.kind!r:.20} is refused")
        return stage

    def served(self, peer: str, stage: int, step: int) -> None:
        """The slices of ``peer`` are done in ``step`` (transport thread)."""
        self._over[stage, peer] = step
        self._executor.mailbox.poke()

    def begin(self, step: int) -> None:
        """A step begins; what is left of the last one is not needed."""
        self._step = step
        for held in (self._asked, self._told, self._held):
            held.clear()

    def over(self) -> bool:
        """Whether all fellows' slices are done."""
        return all(self._is_over(stage, name) for stage, names in self.speeds.items() for name in names)

    def tell(self, stage: int) -> None:
        """The slices of ``stage`` here are done."""
        if stage not in self._told:
            self._told.add(stage)
            for name in self.speeds[stage]:
                self._small(name, "served", stage)

    def ask(self, stage: int, spare: int) -> None:
        """There is nothing to do here, and room for so many slices."""
        left = [name for name in self.speeds[stage] if not self._is_over(stage, name)]
        room = spare - sum(held == stage for held, _ in self._held) - sum((stage, name) in self._asked for name in left)
        for name in [name for name in left if (stage, name) not in self._asked][: max(room, 0)]:
            self._asked.add((stage, name))
            self._small(name, "free", stage)

    def next(self) -> tuple[int, str, Order] | None:
        """The next task of a fellow."""
        while self.lent:
            stage, name, order = self.lent.popleft()
            if order.task.step == self._step:
                self._asked.discard((stage, name))
                return stage, name, order
        return None

    def done(self, stage: int, task: Task) -> None:
        """A task of a fellow was computed here."""
        self.computed += 1
        place = (stage, task.index)
        if task.kind is TaskKind.FORWARD:
            self._held.add(place)
        else:
            self._held.discard(place)

    def post(self, name: str, make: Callable[[], Frame]) -> None:
        """Send a task or an answer."""
        self._executor.links.post(name, OutgoingFrame(make=make, urgency=Urgency.VALUES))

    def _is_over(self, stage: int, name: str) -> bool:
        return self._over.get((stage, name), -1) >= self._step

    def _small(self, name: str, kind: str, stage: int) -> None:
        head: Mapping[str, str | int] = {"run": self._executor.setup.run, "step": self._step, "stage": stage}
        self._executor.links.post(name, OutgoingFrame(make=lambda: Frame(kind, head), urgency=Urgency.CONTROL))
