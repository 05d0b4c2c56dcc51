"""The ready loop on sources made by hand: which action comes next, what it sends, what it leaves in the trace."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from farflung.engines.base import Array, Forward, MicroBatch, StageRunner
from farflung.errors import TrainingError
from farflung.graph.cut import Edge, SubGraph
from farflung.schedules.base import Action, ActionKind
from farflung.step.actions import ActionResult
from farflung.step.context import StepContext
from farflung.step.inbox import Inbox
from farflung.step.ready_loop import QueuedActions, run_actions
from farflung.step.step_meter import StepMeter
from farflung.telemetry import injecting
from farflung.telemetry.events import SpanKind
from farflung.telemetry.trace import SpanRing

FORWARD, BACKWARD = ActionKind.FORWARD, ActionKind.BACKWARD


class Routes:
    """Every value has its stage as its name."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bool]] = []

    def key(self, micro_batch: int, edge: Edge, *, gradient: bool) -> Hashable:
        return (edge.value, gradient)

    def send(self, micro_batch: int, results: Sequence[tuple[Edge, Array]], *, gradient: bool) -> None:
        self.sent.extend((str(edge.value), gradient) for edge, _ in results)


class Runner:
    """Passes values on; ``seen``: what it was given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def forward(self, key: MicroBatch, values: Mapping[Any, Array], data: Mapping[str, Array]) -> Forward:
        self.seen.append(dict(values))
        return Forward(values={"out": np.zeros(1)}, outputs={"loss": np.float32(0.5)})  # type: ignore[dict-item]

    def backward(self, key: MicroBatch, gradients: Mapping[Any, Sequence[Array]], weight: float) -> Mapping[Any, Array]:
        self.seen.append((dict(gradients), weight))
        return {"in": np.ones(1)}


class Source(QueuedActions):
    def __init__(self, inbox: Inbox, routes: Routes, queue: Sequence[Action], *, training: bool = True) -> None:
        super().__init__(inbox, routes, 7, training=training)
        self.queue, self.made, self.done_actions, self.fake = list(queue), list[ActionResult](), list[str](), Runner()

    def heads(self) -> Sequence[Action]:
        return self.queue

    def piece(self, action: Action) -> SubGraph:
        def edge(value: str, target: int) -> SimpleNamespace:
            return SimpleNamespace(value=value, target=target)

        takes, gives = [edge(f"in{action.stage}", 0)], [edge("out", 9)]
        back = [edge("grad", 1), edge("grad2", 2)]
        return cast(
            SubGraph,
            SimpleNamespace(takes=takes, gives=gives, requires_gradients=back, sends_gradients=[edge("in", 0)]),
        )

    def runner(self, action: Action) -> StageRunner:
        return cast(StageRunner, self.fake)

    def data(self, action: Action) -> Mapping[str, Array]:
        return {}

    def weight(self, action: Action) -> float:
        return 0.25

    def completed(self, action: Action, result: ActionResult) -> None:
        self.queue.remove(action)
        self.done_actions.append(str(action))
        self.made.append(result)


def context_of(inbox: Inbox) -> StepContext:
    return cast(StepContext, SimpleNamespace(inbox=inbox, trace=SpanRing(), setup=SimpleNamespace(device="a")))


def test_the_first_action_whose_inputs_are_here_comes_next() -> None:
    inbox, routes = Inbox(), Routes()
    source = Source(inbox, routes, [Action(0, FORWARD, 0), Action(1, FORWARD, 0), Action(2, FORWARD, 0)])
    for stage in (2, 1):
        inbox.put((f"in{stage}", False), np.zeros(1))

    def late(action: Action, result: ActionResult, completed: Any = source.completed) -> None:
        completed(action, result)
        if action.stage == 1:
            inbox.put(("in0", False), np.zeros(1))

    source.completed = late  # type: ignore[method-assign]
    run_actions(source, context_of(inbox), StepMeter())
    assert source.done_actions == ["1F0", "0F0", "2F0"]
    assert [result.loss for result in source.made] == [0.5] * 3
    assert routes.sent == [("out", False)] * 3
    assert len(inbox) == 0, "inputs are taken"


def test_gradients_are_taken_by_descending_reading_stage_with_the_weight() -> None:
    inbox, routes = Inbox(), Routes()
    source = Source(inbox, routes, [Action(0, BACKWARD, 3)])
    for name in ("grad", "grad2"):
        inbox.put((name, True), np.zeros(1))
    run_actions(source, context_of(inbox), StepMeter())
    ((gradients, weight),) = source.fake.seen
    assert (list(gradients), weight) == (["grad2", "grad"], 0.25)
    assert routes.sent == [("in", True)]


@pytest.mark.parametrize("training", [True, False])
def test_only_training_has_spans_and_fault_points(training: bool) -> None:
    inbox, points = Inbox(), list[tuple[str, object]]()
    source = Source(inbox, Routes(), [Action(1, FORWARD, 4)], training=training)
    inbox.put(("in1", False), np.zeros(1))
    context, meter = context_of(inbox), StepMeter()
    with injecting(lambda name, facts: points.append((name, facts["step"]))):
        run_actions(source, context, meter)
    spans, _ = context.trace.drain()
    told = [(span.what, span.name, span.stage, span.micro_batch, span.step) for span in spans]
    assert told == ([(SpanKind.WAIT, "for F", 1, 4, 7), (SpanKind.COMPUTE, "F", 1, 4, 7)] if training else [])
    assert points == ([("worker.before_forward", 7)] if training else [])
    assert list(meter.busy) == [1]


def test_a_run_that_was_aborted_computes_nothing_more() -> None:
    inbox = Inbox()
    source = Source(inbox, Routes(), [Action(0, FORWARD, 0)])
    inbox.put(("in0", False), np.zeros(1))
    inbox.abort(TrainingError("over"))
    with pytest.raises(TrainingError, match="over"):
        run_actions(source, context_of(inbox), StepMeter())
    assert source.done_actions == []
