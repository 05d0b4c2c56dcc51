"""The two-phase commit of a step: a worker *prepares* a step when its gradients are complete, and applies it when all have.

So no worker is more than one step ahead of another, and a worker that is behind can follow (``protocol.retained_states``).
The workers of the first stage end a step's backwards last, and begin the next step. So every worker reports to each of them, and
one of them notifies each other worker that all are prepared. That message arrives before the first values of the next step, which
the worker waits for anyway.

Cost per step, with N workers, F of them with the first stage: (N - F) (F + 1) + F (F - 1) messages of some ten bytes, instead of
N (N - 1), and the time of the slowest of them. A job that clips gradients or needs their norm sends norms from each worker to
each other one at this point. Then the norms are the messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from farflung.engines.base import Array
from farflung.messages.conversions.step_reports import StepReport
from farflung.messages.data import StepReady
from farflung.messages.reports import MOST_RETAINED_STEPS
from farflung.protocol.retained_states import Decision, RetainedState
from farflung.step.context import StepContext
from farflung.step.stages.local_stages import LocalStages
from farflung.step.stages.retained_stages import RetainedStages
from farflung.telemetry.faults import fault_point

__all__ = ["TwoPhaseCommit"]

#: Losses of micro-batches in the stored step reports: a bound of their memory.
_MOST_LOSSES = 1 << 17


class TwoPhaseCommit:
    """Where one worker stands between two steps."""

    def __init__(self, context: StepContext, stages: LocalStages) -> None:
        self._context, self._stages = context, stages
        setup = context.setup
        #: Whether states outlive a loss: not with a sync strategy, whose pipelines differ.
        self.survives = setup.survives and setup.plan.sync is None and setup.job.on_loss == "recover"
        #: Steps that the states include, with the skipped ones.
        self._step = setup.first_step
        self._ready = False
        self._decision: Decision | None = None
        #: stage -> the states that the forwards of the present step have changed, as they were before
        self._before: Mapping[int, Mapping[str, Array]] = {}
        #: For the broker: it may lack reports of a worker that died, or have been frozen itself.
        most = _MOST_LOSSES // len(setup.job.micro_batch_sizes)
        self._reports: deque[StepReport] = deque(maxlen=max(1, min(most, MOST_RETAINED_STEPS)))

    def begin(self) -> None:
        """A step begins: copy the states that it changes before its end."""
        self._ready = False
        self._before = self._stages.begin_delayed() or self._changed_by_forwards()

    def _changed_by_forwards(self) -> dict[int, Mapping[str, Array]]:
        """Return copies of the states that forwards change (batch-norm statistics), by stage.

        A model that has such states has no delayed update.
        """
        setup = self._context.setup
        if setup.job.on_nan != "skip" and not self.survives and not self._stages.loss_scale.on:
            return {}
        changed = {name for name, _ in setup.graph.state_updates}
        found = {index: changed & set(setup.subgraphs[index].states) for index in setup.own_stages}
        return {index: self._stages.base(index).states(names) for index, names in found.items() if names}

    def prepared(self) -> None:
        """The gradients of the step are complete: from now on this worker can apply it even if others are lost."""
        self._ready = self.survives

    def agree(self, step: int) -> None:
        """Wait until all workers are prepared."""
        setup, transfer, inbox = self._context.setup, self._context.transfer, self._context.inbox
        if not self.survives:
            return
        fault_point("worker.prepared", step=step, device=setup.device)
        first = setup.plan.stages[0].devices
        before = [peer for peer in first if peer != setup.device]
        later = [peer for peer in setup.peers if peer not in first]
        for peer in before:
            transfer.post(peer, StepReady(run=setup.run, step=step))
        if setup.device not in first:
            inbox.take(("prepared", step, self._herald(setup.device)))  # all workers are prepared
            return
        for peer in (*before, *later):
            inbox.take(("prepared", step, peer))
        for peer in later:
            if self._herald(peer) == setup.device:
                transfer.post(peer, StepReady(run=setup.run, step=step))

    def receive(self, peer: str, message: StepReady) -> None:
        """Store that ``peer`` is prepared, or reports that all are (transport thread)."""
        self._context.inbox.put(("prepared", message.step, peer), True)

    def _herald(self, device: str) -> str:
        """Return the worker of the first stage that notifies ``device``, which has another stage, that all are prepared."""
        plan = self._context.setup.plan
        first = plan.stages[0].devices
        return first[sorted(plan.devices).index(device) % len(first)]

    def apply(self, step: int, scale: Array | None, sync: Callable[[Array | None], None] | None) -> None:
        """The second phase: update the states; ``sync`` does it where replicas agree by a strategy."""
        self._stages.update(step, scale, sync)
        self._done(step, Decision(scale=None if scale is None else float(scale)))

    def skip(self, step: int, sync: Callable[[], None] | None) -> None:
        """Leave the step out, in place of the second phase. ``sync``: see ``LocalStages.restore``."""
        self._stages.restore(self._before, sync)
        self._done(step, Decision(applied=False))

    def rolled_back(self, step: int) -> None:
        """The states were loaded from a checkpoint in place of the second phase. Others cannot follow that by themselves."""
        self._done(step, None)

    def _done(self, step: int, decision: Decision | None) -> None:
        self._step, self._decision = step + 1, decision
        self._ready, self._before = False, {}
        self._stages.settle()  # last: ``retained`` must not pair the new states with the old step

    def log(self, report: StepReport, losses: Sequence[float], mean: float | None) -> None:
        """Store the report of a step, with the losses that all workers know, in case that of the leader is lost."""
        self._reports.append(replace(report, loss=mean, losses=tuple(losses), gave={}, took={}, audits=()))

    @property
    def reports(self) -> tuple[StepReport, ...]:
        """The last reports."""
        return tuple(self._reports)

    def retained(self) -> RetainedStages | None:
        """Return the states of this worker, whose attempt has ended (None: training cannot continue from them)."""
        if not (self.survives and self._stages.consistent):
            return None
        retained_state = RetainedState(
            step=self._step,
            committed=self._stages.committed,
            states=self._stages.names,
            ready=self._ready,
            decision=self._decision,
        )
        return RetainedStages(self._stages, retained_state, self._before)
