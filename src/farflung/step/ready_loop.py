"""The ready loop: wait for an action whose inputs are in the inbox, take them, compute, send the results.

Every mode of computing is a *source of actions* for this one loop: a pipeline schedule, the two passes of a zeroth-order step,
slices of a hybrid plan, evaluation and generation. A source decides which action comes next; the loop owns waiting, the trace,
the meter and fault points. The order of additions never depends on which action is ready first (docs/exactness.md).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

from farflung.engines.base import Array, MicroBatch, StageRunner
from farflung.engines.encoded_value import EncodedValue, SentValues
from farflung.errors import FailedBatch
from farflung.graph.cut import Edge, SubGraph
from farflung.graph.ir import ValueRef
from farflung.schedules.base import Action, ActionKind
from farflung.step.actions import ActionInputs, ActionResult, begin, compute
from farflung.step.context import StepContext
from farflung.step.failed_batch import blaming
from farflung.step.inbox import Inbox
from farflung.step.step_meter import StepMeter
from farflung.telemetry.events import SpanKind
from farflung.telemetry.faults import fault_point

__all__ = [
    "ActionSource",
    "QueuedActions",
    "Routes",
    "input_keys",
    "run_actions",
    "send_results",
    "take_gradients",
    "take_values",
]


class Routes(Protocol):
    """Keys and destinations of the values of one pass through the stages."""

    def key(self, micro_batch: int, edge: Edge, *, gradient: bool) -> Hashable:
        """Return the key under which the value of ``edge`` (or its gradient) waits in the inbox."""

    def send(self, micro_batch: int, results: Sequence[tuple[Edge, Array | EncodedValue]], *, gradient: bool) -> None:
        """Send the value of each edge to the stage that reads it, or its gradient to the stage that made it."""


class ActionSource(Protocol):
    """Actions of one step, or of one pass of an evaluation. Called by the compute thread."""

    #: The step of the engine's keys and of the trace.
    step: int
    #: Whether this is training: then actions have spans in the trace, and fault points.
    training: bool

    @property
    def done(self) -> bool:
        """Whether no action is left."""

    def has_news(self) -> bool:
        """Return whether ``next`` should be asked. Called under the inbox's lock: look at the inbox, and do not block."""

    def patience(self) -> float | None:
        """Return after how many seconds ``next`` should be asked anyway (None: never)."""

    def next(self) -> Action | None:
        """Return an action whose inputs are in the inbox (None: there is none, wait again)."""

    def runner(self, action: Action) -> StageRunner:
        """Return the runner that computes ``action``."""

    def inputs(self, action: Action) -> ActionInputs:
        """Take the inputs of ``action`` out of the inbox."""

    def finish(self, action: Action, result: ActionResult) -> None:
        """``action`` is computed: send its results."""


def run_actions(source: ActionSource, context: StepContext, meter: StepMeter) -> None:
    """Compute all actions of ``source``.

    Raises:
        BaseException: the error that ended the run meanwhile.
    """
    trace, step = context.trace, source.step
    awaits = source.awaits if isinstance(source, QueuedActions) else None
    begin = trace.now()
    while not source.done:
        with meter.waiting():
            context.inbox.wait_until(source.has_news, source.patience(), awaits)
        action = source.next()
        if action is None:
            trace.note(SpanKind.WAIT, "for slices", begin, step=step)
            begin = trace.now()
            continue
        if source.training:
            trace.note(SpanKind.WAIT, f"for {action.kind.value}", begin, **_place(action, step))
        with meter.computing(action.stage):
            _compute(source, action, context)
        begin = trace.now()


def _compute(source: ActionSource, action: Action, context: StepContext) -> None:
    trace, step = context.trace, source.step
    if source.training:
        if action.kind is ActionKind.FORWARD:
            fault_point("worker.before_forward", step=step, device=context.setup.device)
        else:
            fault_point("worker.before_backward", step=step, device=context.setup.device)
    inputs, runner = source.inputs(action), source.runner(action)
    begin = trace.now()
    key = MicroBatch(step, action.micro_batch)
    if not source.training:
        result = compute(runner, key, inputs, action.kind)
    else:
        with blaming(FailedBatch(step, action.micro_batch)):
            result = compute(runner, key, inputs, action.kind)
        trace.note(SpanKind.COMPUTE, action.kind.value, begin, **_place(action, step))
    source.finish(action, result)


def _place(action: Action, step: int) -> dict[str, int]:
    return {"stage": action.stage, "micro_batch": action.micro_batch, "step": step}


# -- inputs and results of an action --------------------------------------------------------------------------------------


def input_keys(routes: Routes, piece: SubGraph, action: Action) -> list[Hashable]:
    """Return the keys of what ``action`` waits for: values of earlier stages, gradients of later ones, or nothing."""
    if action.kind is ActionKind.FORWARD:
        return [routes.key(action.micro_batch, edge, gradient=False) for edge in piece.takes]
    if action.kind is ActionKind.WEIGHT:
        return []
    return [routes.key(action.micro_batch, edge, gradient=True) for edge in piece.requires_gradients]


def take_values(inbox: Inbox, routes: Routes, piece: SubGraph, micro_batch: int) -> dict[ValueRef, Array]:
    """Take the values of a forward out of the inbox."""
    return {edge.value: inbox.take(routes.key(micro_batch, edge, gradient=False)) for edge in piece.takes}


def take_gradients(inbox: Inbox, routes: Routes, piece: SubGraph, micro_batch: int) -> dict[ValueRef, list[Array]]:
    """Take the gradients of a backward out of the inbox, each value's by descending reading stage: the order of addition."""
    gradients: dict[ValueRef, list[Array]] = {}
    for edge in sorted(piece.requires_gradients, key=lambda edge: -edge.target):
        gradients.setdefault(edge.value, []).append(inbox.take(routes.key(micro_batch, edge, gradient=True)))
    return gradients


def send_results(routes: Routes, piece: SubGraph, action: Action, values: SentValues) -> None:
    """Send the ``values`` that ``action`` gave: to later stages, or gradients to earlier ones."""
    if action.kind is ActionKind.WEIGHT:
        return
    backward = action.kind is ActionKind.BACKWARD
    edges = piece.sends_gradients if backward else piece.gives
    routes.send(action.micro_batch, [(edge, values[edge.value]) for edge in edges], gradient=backward)


class QueuedActions:
    """A source whose stages have queues: of the queues' heads, the first one whose inputs are here comes next.

    A subclass says what the heads are, and what belongs to an action.
    """

    def __init__(self, inbox: Inbox, routes: Routes, step: int, *, training: bool = True) -> None:
        self._inbox, self._routes = inbox, routes
        self.step, self.training = step, training
        self._offered: list[tuple[Action, list[Hashable]]] | None = None
        self._ready: Action | None = None
        #: The inputs of actions that a site computes already.
        self._begun: dict[Action, ActionInputs] = {}

    def heads(self) -> Sequence[Action]:
        """Return the actions that may come next, the preferred first (empty: none is left)."""
        raise NotImplementedError

    def piece(self, action: Action) -> SubGraph:
        """Return the sub-graph of ``action``."""
        raise NotImplementedError

    def runner(self, action: Action) -> StageRunner:
        """See ``ActionSource``."""
        raise NotImplementedError

    def data(self, action: Action) -> Mapping[str, Array]:
        """Return the values of the placeholders of a forward."""
        raise NotImplementedError

    def weight(self, action: Action) -> float:
        """Return the weight of a backward's loss."""
        raise NotImplementedError

    def completed(self, action: Action, result: ActionResult) -> None:
        """``action`` is computed and its results are sent: remove it from its queue."""
        raise NotImplementedError

    def together(self, action: Action) -> Sequence[Action]:
        """Return ``action`` and those after it that its runner computes at the same time."""
        return (action,)

    # -- ActionSource -------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """See ``ActionSource``."""
        return not self._offers

    @property
    def _offers(self) -> list[tuple[Action, list[Hashable]]]:
        if self._offered is None:
            self._offered = [(head, self._keys(head)) for head in self.heads()]
        return self._offered

    def _keys(self, head: Action) -> list[Hashable]:
        """The keys of what ``head`` waits for, with those that it is computed together with."""
        if head in self._begun:
            return []
        return [key for action in self.together(head) for key in input_keys(self._routes, self.piece(action), action)]

    def has_news(self) -> bool:
        """See ``ActionSource``."""
        self._ready = next((action for action, keys in self._offers if self._inbox.holds(keys)), None)
        return self._ready is not None

    def patience(self) -> float | None:
        """See ``ActionSource``."""
        return None

    def awaits(self) -> Sequence[Hashable]:
        """Return the keys for which the actions that may come next wait. Called under the inbox's lock."""
        return [key for _, keys in self._offers for key in keys]

    def next(self) -> Action | None:
        """See ``ActionSource``."""
        return self._ready

    def inputs(self, action: Action) -> ActionInputs:
        """See ``ActionSource``; the runner of a site begins to compute all actions that it computes together."""
        if action in self._begun:
            return self._begun.pop(action)
        actions = self.together(action)
        if len(actions) == 1:
            return self._take(action)
        taken = {one: self._take(one) for one in actions}
        self._begun |= {one: inputs for one, inputs in taken.items() if one != action}
        begin(self.runner(action), [(MicroBatch(self.step, one.micro_batch), taken[one]) for one in actions], action.kind)
        return taken[action]

    def _take(self, action: Action) -> ActionInputs:
        piece = self.piece(action)
        if action.kind is ActionKind.WEIGHT:
            return ActionInputs()
        if action.kind is ActionKind.BACKWARD:
            gradients = take_gradients(self._inbox, self._routes, piece, action.micro_batch)
            return ActionInputs(gradients=gradients, weight=self.weight(action))
        return ActionInputs(values=take_values(self._inbox, self._routes, piece, action.micro_batch), data=self.data(action))

    def finish(self, action: Action, result: ActionResult) -> None:
        """See ``ActionSource``."""
        send_results(self._routes, self.piece(action), action, result.values)
        self.completed(action, result)
        self._offered = None
