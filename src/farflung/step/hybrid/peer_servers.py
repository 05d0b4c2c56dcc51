"""Servers of one stage help each other: a server that has none of its own slices left in a step computes those of its peers.

Each server has the pool of its own slices. Once all of these had their forward, and while it has room, it reports that it is
free; a peer's pool then gives it one task. It is told when each peer's slices are done, and stays until all are. All replicas of
a stage have the same states, so nothing but the task and its answer is sent, and no bit depends on which server computes.

Cost: for each stage, step and pair of servers two small frames, and two for each task that moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from farflung.errors import WireError
from farflung.messages.fields import whole
from farflung.protocol.pool.pool_events import Task, TaskKind
from farflung.step.hybrid.slices import Order
from farflung.step.inbox import Inbox
from farflung.step.run_setup import RunSetup
from farflung.step.transfer.outbox import Outbox, OutgoingFrame
from farflung.transports.base import Urgency
from farflung.wire.frames import Frame

__all__ = ["PeerServers"]


class PeerServers:
    """The other servers of one worker's stages. Transport threads call ``stage_of`` and ``served``, and append to ``lent``; the
    compute thread calls the rest."""

    def __init__(self, setup: RunSetup, inbox: Inbox, outbox: Outbox) -> None:
        self._run, self._inbox, self._outbox = setup.run, inbox, outbox
        #: stage -> the other servers, and how fast they are by their share of the micro-batches (this one: 1)
        self.speeds: dict[int, dict[str, float]] = {}
        for stage in setup.own_stages:
            counts = {replica.device: float(len(replica.micro_batches)) for replica in setup.plan.replicas_of(stage)}
            mine = counts.pop(setup.device)
            self.speeds[stage] = {name: count / mine for name, count in counts.items()}
        #: Tasks of peers to be computed here: (stage, peer, order).
        self.lent: deque[tuple[int, str, Order]] = deque()
        #: (stage, peer) -> the last step in which its slices were done
        self._over: dict[tuple[int, str], int] = {}
        self._asked: set[tuple[int, str]] = set()
        self._told: set[int] = set()
        self._held: set[tuple[int, int]] = set()
        self._step = -1
        #: Tasks of peers that were computed here, in all steps.
        self.computed = 0

    def stage_of(self, peer: str, frame: Frame) -> int:
        """Return the stage of a frame from ``peer``.

        Raises:
            WireError: ``peer`` and this worker are not both servers of it.
        """
        stage = whole(frame.header, "stage")
        if peer not in self.speeds.get(stage, ()):
            raise WireError(f"{peer} and this worker are not both servers of stage {stage}; its {frame.kind!r:.20} is refused")
        return stage

    def served(self, peer: str, stage: int, step: int) -> None:
        """The slices of ``peer`` are done in ``step`` (transport thread)."""
        self._over[stage, peer] = step
        self._inbox.poke()

    def begin(self, step: int) -> None:
        """A step begins; state of the last one is dropped."""
        self._step = step
        for held in (self._asked, self._told, self._held):
            held.clear()

    def over(self) -> bool:
        """Return whether all peers' slices are done."""
        return all(self._is_over(stage, name) for stage, names in self.speeds.items() for name in names)

    def tell(self, stage: int) -> None:
        """Tell the peers, once, that the slices of ``stage`` here are done."""
        if stage not in self._told:
            self._told.add(stage)
            for name in self.speeds[stage]:
                self._small(name, "served", stage)

    def ask(self, stage: int, spare: int) -> None:
        """Report to peers that this server is idle and has room for ``spare`` slices."""
        left = [name for name in self.speeds[stage] if not self._is_over(stage, name)]
        room = spare - sum(held == stage for held, _ in self._held) - sum((stage, name) in self._asked for name in left)
        for name in [name for name in left if (stage, name) not in self._asked][: max(room, 0)]:
            self._asked.add((stage, name))
            self._small(name, "free", stage)

    def next(self) -> tuple[int, str, Order] | None:
        """Return the next task of a peer."""
        while self.lent:
            stage, name, order = self.lent.popleft()
            if order.task.step == self._step:
                self._asked.discard((stage, name))
                return stage, name, order
        return None

    def done(self, stage: int, task: Task) -> None:
        """A task of a peer was computed here."""
        self.computed += 1
        place = (stage, task.index)
        if task.kind is TaskKind.FORWARD:
            self._held.add(place)
        else:
            self._held.discard(place)

    def post(self, name: str, make: Callable[[], Frame]) -> None:
        """Send a task or an answer."""
        self._outbox.post(name, OutgoingFrame(make=make, urgency=Urgency.VALUES))

    def _is_over(self, stage: int, name: str) -> bool:
        return self._over.get((stage, name), -1) >= self._step

    def _small(self, name: str, kind: str, stage: int) -> None:
        head: Mapping[str, str | int] = {"run": self._run, "step": self._step, "stage": stage}
        self._outbox.post(name, OutgoingFrame(make=lambda: Frame(kind, head), urgency=Urgency.CONTROL))
