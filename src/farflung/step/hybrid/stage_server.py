"""Hybrid training: the slices of a server's stages are computed here and by helpers, as the task pool decides.

Helpers get the stage's states in each step and whatever a task needs, and return its results. Nothing that is needed lies only
with them. Where a stage has several servers, each has its own slices; helpers help all of them, and they help each other
(``peer_servers``).

Cost, beside the plan's figure: the inputs of the stage's slices of a step, one copy of its states while there are helpers, and a
gradient of the stage for each slice whose backward ended before that of an earlier one.
"""

from __future__ import annotations

from collections import deque

from farflung.clock import monotonic
from farflung.errors import FarflungError, WireError
from farflung.messages.hybrid import ServerFree, ServerServed, SliceAnswer, SliceTask
from farflung.messages.router import PeerRouter
from farflung.protocol.pool.pool_events import Answered, HelperCame, HelperWent, PeerFree, PoolEvent
from farflung.protocol.pool.pool_settings import PoolSettings
from farflung.protocol.pool.task_pool import TaskPool
from farflung.step.actions import ActionResult
from farflung.step.context import StepContext
from farflung.step.hybrid.helper_links import HelperLinks
from farflung.step.hybrid.peer_servers import PeerServers
from farflung.step.hybrid.slice_actions import SliceActions, SliceParts, Waste
from farflung.step.hybrid.slices import StageSlices
from farflung.step.ready_loop import run_actions
from farflung.step.reduction.gradient_exchange import GradientExchange
from farflung.step.stages.local_stages import LocalStages
from farflung.step.step_meter import StepMeter
from farflung.step.step_vote import StepVote

__all__ = ["StageServer"]


class StageServer:
    """The server of one worker's stages. The compute thread calls ``run``, any thread the rest."""

    makes_gradients = True

    def __init__(self, context: StepContext, stages: LocalStages, vote: StepVote, sums: GradientExchange) -> None:
        self.context = context
        setup = context.setup
        #: The other servers of the own stages.
        self.peers = PeerServers(setup, context.inbox, context.outbox)
        self._pools: dict[int, TaskPool] = {}
        for stage in setup.own_stages:
            found = PoolSettings.of(setup.plan, setup.job, stage)
            self._pools[stage] = TaskPool(
                setup.device,
                room=found.room,
                helper_room=found.helper_room,
                patience=found.patience,
                peers=self.peers.speeds[stage],
            )
        self._slices = {stage: StageSlices(setup, stage) for stage in setup.own_stages}
        self._helpers = HelperLinks(context.outbox, self.went)
        #: What other threads report to the compute thread: (stage, event, the result that came with an answer).
        self._events: deque[tuple[int, PoolEvent, ActionResult | None]] = deque()
        self._waste = Waste()
        self._step = -1
        self._parts = SliceParts(
            context=context,
            stages=stages,
            vote=vote,
            sums=sums,
            pools=self._pools,
            slices=self._slices,
            peers=self.peers,
            helpers=self._helpers,
            events=self._events,
            waste=self._waste,
        )

    # -- the compute thread -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Nothing to prepare."""

    def run(self, step: int, meter: StepMeter) -> None:
        """See ``TrainingMode``."""
        self._step = step
        source = SliceActions(self._parts, step)
        run_actions(source, self.context, meter)
        meter.add_helpers(source.helped)

    def close(self) -> None:
        """Send nothing more to helpers."""
        self._helpers.close()

    # -- other threads ------------------------------------------------------------------------------------------------

    def came(self, name: str, stage: int, speed: float, *, fed: bool = True) -> None:
        """The helper ``name`` is ready for ``stage``.

        ``speed``: of its device, relative to this one. ``fed``: this server sends its states, not another one of the stage.
        """
        if stage not in self._pools:
            return
        self._helpers.add(name, stage, fed=fed)
        self._report(stage, HelperCame(helper=name, speed=speed, now=monotonic()))

    def went(self, name: str, why: str) -> None:
        """``name`` helps no more, if it did."""
        stage = self._helpers.remove(name)
        if stage is None:
            return
        self.context.hooks.on_helper_gone(f"{name} helps stage {stage} no more: {why}")
        self._report(stage, HelperWent(helper=name, now=monotonic()))

    def register(self, router: PeerRouter) -> None:
        """Register what takes messages of other servers and of helpers (transport threads).

        The handlers raise:
            WireError: the message does not belong here, or has other arrays than it needs.
        """
        router.register(ServerServed, self.peers.served)
        router.register(ServerFree, self._peer_free)
        router.register(SliceTask, self._peer_task)
        router.register(SliceAnswer, self._answer)

    def knows(self, helper: str) -> bool:
        """Return whether ``helper`` ever helped here (any thread)."""
        return helper in self._helpers.known

    def refuse(self, helper: str, error: Exception) -> FarflungError:
        """End the help of ``helper``, whose answer is bad; the run continues. Return what the helper gets."""
        wrong = error if isinstance(error, FarflungError) else WireError(f"a bad answer: {type(error).__name__}: {error}")
        self.went(helper, f"it sent a bad answer: {wrong}")
        return wrong

    def _peer_free(self, peer: str, message: ServerFree) -> None:
        self.peers.check(peer, message)
        self._report(message.stage, PeerFree(peer=peer, step=message.step, now=monotonic()))

    def _peer_task(self, peer: str, message: SliceTask) -> None:
        self.peers.check(peer, message)
        self.peers.lent.append((message.stage, peer, self._slices[message.stage].read_task(message)))
        self.context.inbox.poke()

    def _answer(self, peer: str, message: SliceAnswer) -> None:
        """Store the answer of a peer server or of a helper."""
        if peer in self.context.setup.peers:
            self.peers.check(peer, message)
            self._store_answer(peer, message.stage, message)
            return
        stage = self._helpers.stage(peer)
        if stage is None or message.step != self._step:
            return  # the helper was given up, or the step is over
        try:
            self._store_answer(peer, stage, message)
        except Exception as error:  # whatever is wrong with the answer: the helper goes, the run continues
            raise self.refuse(peer, error) from error

    def _store_answer(self, peer: str, stage: int, message: SliceAnswer) -> None:
        task, result = self._slices[stage].read_answer(message)
        self._report(stage, Answered(device=peer, task=task, seconds=result.seconds, now=monotonic()), result)

    def _report(self, stage: int, event: PoolEvent, result: ActionResult | None = None) -> None:
        self._events.append((stage, event, result))
        self.context.inbox.poke()

    @property
    def cost(self) -> str:
        """What was computed twice, or for nothing (empty: nothing)."""
        return self._waste.text
