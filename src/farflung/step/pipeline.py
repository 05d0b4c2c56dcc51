"""Training by a pipeline schedule: forwards and backwards of the own stages. Also the protocol of all modes of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from farflung.engines.base import Array, StageRunner
from farflung.engines.encoded_value import arrays_of
from farflung.graph.cut import SubGraph
from farflung.schedules import Progress, as_ready, get_schedule
from farflung.schedules.base import Action, ActionKind
from farflung.step.actions import ActionInputs, ActionResult, lanes
from farflung.step.context import StepContext
from farflung.step.ready_loop import QueuedActions, run_actions
from farflung.step.reduction.gradient_exchange import GradientExchange
from farflung.step.run_setup import Phase
from farflung.step.stages.local_stages import LocalStages
from farflung.step.stages.stage_runners import splits_backward
from farflung.step.step_meter import StepMeter
from farflung.step.step_vote import StepVote
from farflung.step.sync.interpreter import Synchronizer
from farflung.step.transfer.value_transfer import StepRoutes
from farflung.step.verification.verification import Verification
from farflung.telemetry.events import SpanKind

__all__ = ["PipelineMode", "PipelineParts", "TrainingMode"]


class TrainingMode(Protocol):
    """How a worker's part in a step makes losses and gradients."""

    #: Whether the runners hold gradients after ``run``.
    makes_gradients: bool

    def open(self) -> None:
        """Prepare for the first step; the stages are open."""

    def run(self, step: int, meter: StepMeter) -> None:
        """Compute the own part of ``step``; report the losses that are made here to the vote.

        Raises:
            BaseException: the error that ended the run meanwhile.
        """

    def close(self) -> None:
        """Stop threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineParts:
    """What takes part in the forwards and backwards of a step.

    ``sums``: gradients over replicas, without a sync strategy. ``sync``: how replicas agree (None: gradients are summed).
    ``verification``: how replicas verify each other.
    """

    context: StepContext
    stages: LocalStages
    vote: StepVote
    sums: GradientExchange
    sync: Synchronizer | None
    verification: Verification


class PipelineMode:
    """Forwards and backwards in the plan's schedule."""

    makes_gradients = True

    def __init__(self, parts: PipelineParts) -> None:
        self._parts = parts

    def open(self) -> None:
        """Nothing to prepare."""

    def run(self, step: int, meter: StepMeter) -> None:
        """See ``TrainingMode``."""
        run_actions(_ScheduledActions(self._parts, step), self._parts.context, meter)

    def close(self) -> None:
        """There are no threads."""


class _ScheduledActions(QueuedActions):
    """The own actions of one step: one queue per stage."""

    def __init__(self, parts: PipelineParts, step: int) -> None:
        context, setup = parts.context, parts.context.setup
        super().__init__(context.inbox, StepRoutes(context.transfer, Phase.TRAIN, step), step)
        self._parts, self._context, self._stages = parts, context, parts.stages
        #: Whether the strategy tolerates replicas whose values are not finite.
        self._tolerant = parts.sync is not None and parts.sync.strategy.traits.faulty > 0
        #: The inputs of the action that is computed now.
        self._taken = ActionInputs()
        #: micro-batch -> loss
        self.losses: dict[int, float] = {}
        schedule = get_schedule(setup.plan.schedule)
        orders = schedule.actions(len(setup.plan.stages), setup.job.micro_batches)
        #: The action after which the gradients of parameters hold a micro-batch.
        split = {i: splits_backward(setup.plan, i) for i in setup.own_stages}
        self._adds = {i: ActionKind.WEIGHT if split[i] else ActionKind.BACKWARD for i in setup.own_stages}
        own = {i: [a for a in orders[i] if self._is_own(a)] for i in setup.own_stages}
        self._queues = {stage: Progress(order, free=as_ready(schedule)) for stage, order in own.items()}

    def _is_own(self, action: Action) -> bool:
        """Return whether this worker computes ``action``. Without a split backward, there is nothing left for its second part."""
        setup = self._context.setup
        is_here = setup.places[action.stage][action.micro_batch] == setup.device
        return is_here and (action.kind is not ActionKind.WEIGHT or self._adds[action.stage] is ActionKind.WEIGHT)

    def heads(self) -> Sequence[Action]:
        """Backwards before forwards before gradients of parameters, early stages first."""
        return sorted((action for queue in self._queues.values() for action in queue.heads()), key=lambda a: (a.kind, a.stage))

    def piece(self, action: Action) -> SubGraph:
        return self.runner(action).subgraph

    def runner(self, action: Action) -> StageRunner:
        return self._stages.runner(action.stage, action.micro_batch)

    def together(self, action: Action) -> Sequence[Action]:
        """Return the actions that a site computes together: not the last backward under a strategy that watches it."""
        runner = self.runner(action)
        found = self._queues[action.stage].run(action, lanes(runner)) if lanes(runner) > 1 else (action,)
        return tuple(takewhile(lambda one: self.runner(one) is runner, found))

    def weight(self, action: Action) -> float:
        return self._context.setup.job.weight(action.micro_batch) / self._context.setup.part * self._stages.loss_scale.factor

    def data(self, action: Action) -> Mapping[str, Array]:
        trace, stage, micro_batch = self._context.trace, action.stage, action.micro_batch
        begin = trace.now()
        data = self._context.data(self.piece(action), Phase.TRAIN, self.step, micro_batch)
        if data:
            trace.note(SpanKind.WAIT, "for data", begin, stage=stage, micro_batch=micro_batch, step=self.step)
        self._context.transfer.samples.read(stage, self.step, micro_batch, data)
        return data

    def inputs(self, action: Action) -> ActionInputs:
        found = self._taken = super().inputs(action)
        if self._is_last_backward(action):
            assert self._parts.sync is not None
            self._parts.sync.watch(action.stage, self.runner(action))
        return found

    def finish(self, action: Action, result: ActionResult) -> None:
        if self._is_last_backward(action):
            assert self._parts.sync is not None
            self._parts.sync.watched(action.stage)
        if self._tolerant and action.kind is ActionKind.FORWARD:  # gradients that come back say nothing of their senders then
            for value in arrays_of(result.values).values():
                self._context.transfer.spoilt.check(self.step, self._context.setup.device, value)
        self._parts.verification.computed(self.step, action, self._taken, result)
        super().finish(action, result)

    def completed(self, action: Action, result: ActionResult) -> None:
        stage, micro_batch = action.stage, action.micro_batch
        if action.kind is self._adds[stage] and self._parts.sync is None:
            self._parts.sums.after_backward(self.step, stage, micro_batch, self._stages.base(stage))
        self._queues[stage].take(action)
        if result.loss is not None:
            self.losses[micro_batch] = result.loss
        if action.kind is ActionKind.FORWARD and stage == self._context.setup.loss_stage:
            self._parts.vote.report(self.step, self.losses)

    def _is_last_backward(self, action: Action) -> bool:
        """Return whether ``action`` completes the gradients of a replica under a sync strategy, which may take layers early."""
        if self._parts.sync is None or action.kind is not self._adds[action.stage]:
            return False
        setup = self._context.setup
        replica = next(one for one in setup.plan.replicas_of(action.stage) if one.device == setup.device)
        return action.micro_batch + 1 == replica.end
