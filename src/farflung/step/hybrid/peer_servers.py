"""Servers of one stage help each other: a server that has none of its own slices left in a step computes those of its peers.

Each server has the pool of its own slices. Once all of these had their forward, and while it has room, it reports that it is
free; a peer's pool then gives it one task. It is told when each peer's slices are done, and stays until all are. All replicas of
a stage have the same states, so nothing but the task and its answer is sent, and no bit depends on which server computes.

Cost: for each stage, step and pair of servers two small messages, and two for each task that moves.
"""

from __future__ import annotations

from collections import deque

from farflung.errors import WireError
from farflung.messages.hybrid import ServerFree, ServerServed, SliceAnswer, SliceTask
from farflung.messages.schema import kind_of
from farflung.protocol.pool.pool_events import Task, TaskKind
from farflung.step.hybrid.slices import Order
from farflung.step.inbox import Inbox
from farflung.step.run_setup import RunSetup
from farflung.step.transfer.outbox import MakeMessage, Outbox, OutgoingMessage
from farflung.transports.base import Urgency

__all__ = ["PeerServers"]


class PeerServers:
    """The other servers of one worker's stages. Transport threads call ``check`` and ``served``, and append to ``lent``; the
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
        self._reported: set[int] = set()
        self._held: set[tuple[int, int]] = set()
        self._step = -1

    def check(self, peer: str, message: ServerFree | ServerServed | SliceTask | SliceAnswer) -> None:
        """Check that ``peer`` may send ``message`` here.

        Raises:
            WireError: ``peer`` and this worker are not both servers of its stage.
        """
        stage = message.stage
        if peer not in self.speeds.get(stage, ()):
            refused = f"its {kind_of(message)!r} is refused"
            raise WireError(f"{peer} and this worker are not both servers of stage {stage}; {refused}")

    def served(self, peer: str, message: ServerServed) -> None:
        """The slices of ``peer`` are done (transport thread)."""
        self.check(peer, message)
        self._over[message.stage, peer] = message.step
        self._inbox.poke()

    def begin(self, step: int) -> None:
        """A step begins; state of the last one is dropped."""
        self._step = step
        for held in (self._asked, self._reported, self._held):
            held.clear()

    def over(self) -> bool:
        """Return whether all peers' slices are done."""
        return all(self._is_over(stage, name) for stage, names in self.speeds.items() for name in names)

    def report_done(self, stage: int) -> None:
        """Report to the peers, once, that the slices of ``stage`` here are done."""
        if stage not in self._reported:
            self._reported.add(stage)
            for name in self.speeds[stage]:
                self._post_small(name, ServerServed(run=self._run, step=self._step, stage=stage))

    def ask(self, stage: int, spare: int) -> None:
        """Report to peers that this server is idle and has room for ``spare`` slices."""
        left = [name for name in self.speeds[stage] if not self._is_over(stage, name)]
        room = spare - sum(held == stage for held, _ in self._held) - sum((stage, name) in self._asked for name in left)
        for name in [name for name in left if (stage, name) not in self._asked][: max(room, 0)]:
            self._asked.add((stage, name))
            self._post_small(name, ServerFree(run=self._run, step=self._step, stage=stage))

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
        place = (stage, task.index)
        if task.kind is TaskKind.FORWARD:
            self._held.add(place)
        else:
            self._held.discard(place)

    def post(self, name: str, make: MakeMessage) -> None:
        """Send a task or an answer."""
        self._outbox.post(name, OutgoingMessage(make=make, urgency=Urgency.VALUES))

    def _is_over(self, stage: int, name: str) -> bool:
        return self._over.get((stage, name), -1) >= self._step

    def _post_small(self, name: str, message: ServerFree | ServerServed) -> None:
        self._outbox.post(name, OutgoingMessage(make=lambda: message, urgency=Urgency.CONTROL))
