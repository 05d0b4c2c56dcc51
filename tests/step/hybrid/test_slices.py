"""Messages between a server and a helper: what is written is read, and what is malformed is refused before memory is taken."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from farflung.engines import get_engine
from farflung.engines.base import EngineSettings
from farflung.errors import WireError
from farflung.messages.hybrid import HelperStates, SliceAnswer
from farflung.protocol.pool.pool_events import Task, TaskKind
from farflung.step.actions import ActionInputs, ActionResult
from farflung.step.hybrid.slices import StageSlices, compute
from tests.support.network.sent_messages import sent
from tests.support.steps.small_runs import ROWS, small_setup

FORWARD = Task(step=2, kind=TaskKind.FORWARD, index=1)
BACKWARD = Task(step=2, kind=TaskKind.BACKWARD, index=1)


def chain() -> tuple[StageSlices, StageSlices]:
    setup = small_setup("a")
    return StageSlices(setup, 0), StageSlices(setup, 1)


def data() -> dict[str, dict[str, np.ndarray]]:  # type: ignore[type-arg]
    x = np.random.default_rng(0).normal(size=(ROWS, 8)).astype(np.float32)
    return {"first": {"x": x}, "last": {"label": np.array([0, 1, 2, 3])}}


def test_a_helper_makes_what_the_server_would() -> None:
    """Through frames, over two stages, forward and backward: the same bits as on one runner."""
    first, last = chain()
    given, engine = data(), get_engine("torch")
    runners = []
    for slices in (first, last, first, last):
        runner = engine.open(slices.pieces[ROWS], EngineSettings(seed=3))
        runner.initialize(slices.names(every=True))
        runners.append(runner)
    for slices, server, helper in ((first, runners[0], runners[2]), (last, runners[1], runners[3])):
        states = server.states(slices.names(every=True))
        helper.load(slices.read_states(sent(slices.states_message(2, slices.names(every=True), states))))

    def both(slices: StageSlices, task: Task, work: ActionInputs, near: int) -> ActionResult:
        order = slices.read_task(sent(slices.task_message(task, work)))
        assert order.task == task
        there = slices.read_answer(sent(slices.answer_message(task, compute(runners[near + 2], order.task, order.work))))
        here = compute(runners[near], task, work)
        assert there[0] == task
        assert there[1].loss == here.loss
        for left, right in ((there[1].values, here.values), (there[1].gradients, here.gradients)):
            assert left.keys() == right.keys()
            assert all(left[key].tobytes() == np.ascontiguousarray(right[key]).tobytes() for key in right)  # type: ignore[index]
        return here

    forward = both(first, FORWARD, ActionInputs(values={}, data=given["first"]), 0)
    inner = ActionInputs(values=forward.values, data=given["last"])
    assert both(last, FORWARD, inner, 1).loss is not None
    back = both(last, BACKWARD, ActionInputs(weight=0.5), 1)
    assert back.gradients
    again = both(last, BACKWARD, ActionInputs(values=inner.values, data=inner.data, weight=0.5), 1)
    assert all(again.gradients[use].tobytes() == array.tobytes() for use, array in back.gradients.items())
    edge = first.pieces[ROWS].requires_gradients[0]
    both(first, BACKWARD, ActionInputs(gradients={edge.value: [back.values[edge.value]]}, weight=0.5), 0)


def test_what_is_malformed_is_refused() -> None:
    first, last = chain()
    task = first.task_message(FORWARD, ActionInputs(values={}, data=data()["first"]))
    with pytest.raises(WireError, match="'task' messages here are of the 2 slices of stage 1, got slice 1 of stage 0"):
        last.read_task(task)
    with pytest.raises(WireError, match="'task' messages here are of the 2 slices of stage 0, got slice 2 of stage 0"):
        first.read_task(replace(task, index=2))
    with pytest.raises(WireError, match="a 'task' message has 1 arrays here, 0 came"):
        first.read_task(replace(task, arrays=()))
    with pytest.raises(WireError, match="an array of a slice of stage 0 is missing"):
        first.read_task(replace(task, arrays=(None,)))
    large = first.task_message(FORWARD, ActionInputs(values={}, data={"x": np.zeros((ROWS, 9), np.float32)}))
    with pytest.raises(WireError, match=r"oversized: float32 \[4, 9\] has more than the 128 bytes of the plan"):
        first.read_task(large)
    with pytest.raises(WireError, match=r"stage 0 has no state 'third\.weight'"):
        first.read_states(HelperStates(run="r", step=0, names=("third.weight",), when="now", arrays=(None,)))
    name = first.names(every=False)[0]
    wrong = first.states_message(0, [name], {name: np.zeros((2, 2), np.float32)})
    with pytest.raises(WireError, match=r"'first.weight' is float32\[16, 8\], float32\[2, 2\] came"):
        first.read_states(wrong)
    answer = SliceAnswer(run="r", step=2, stage=0, kind="B", index=1, seconds=0.0, outputs={}, arrays=(None,))
    with pytest.raises(WireError, match="'answer' message has 2 arrays here, 1 came"):
        first.read_answer(answer)
    value = first.pieces[ROWS].sends_activations[0]
    lying = first.answer_message(FORWARD, ActionResult(values={value.value: np.zeros(value.spec.shape, np.float32)}, loss=1.0))
    with pytest.raises(WireError, match="a forward of stage 0 makes no loss"):
        first.read_answer(lying)
