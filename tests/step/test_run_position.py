"""Which batches of the submitter may wait in the inbox."""

from __future__ import annotations

import threading

import pytest

from farflung.messages.array_headers import ArrayHeader
from farflung.messages.data import Batch, BatchKey
from farflung.step.inbox import Inbox
from farflung.step.run_position import EVALUATIONS_AHEAD, RunPosition

ARRAY = ArrayHeader(dtype="float32", shape=(), strides=None)


def training(step: int) -> Batch:
    return Batch(run="r", key=BatchKey(use="data", step=step, micro_batch=0, name="x"), step=step, array=ARRAY)


def evaluation(step: int, micro_batch: int) -> Batch:
    return Batch(run="r", key=BatchKey(use="eval", step=step, micro_batch=micro_batch, name="x"), step=step, array=ARRAY)


def waits(position: RunPosition, batch: Batch) -> threading.Event:
    """Set when the batch may be stored."""
    due = threading.Event()
    threading.Thread(target=lambda: (position.wait_until_due(batch), due.set()), daemon=True).start()
    return due


@pytest.mark.parametrize("batch", [training(3), training(4), evaluation(2, 99), evaluation(3, EVALUATIONS_AHEAD)])
def test_batches_of_the_next_step_and_of_the_next_few_evaluations_are_due(batch: Batch) -> None:
    RunPosition(3, Inbox()).wait_until_due(batch)


def test_a_batch_that_is_farther_ahead_waits_for_the_step() -> None:
    position = RunPosition(3, Inbox())
    due = waits(position, training(5))
    assert not due.is_set()
    position.step_done()
    assert due.wait(20)
    assert position.step == 4


def test_an_evaluation_lets_batches_in_as_it_goes_and_forgets_its_count_at_the_end() -> None:
    position = RunPosition(3, Inbox())
    due = waits(position, evaluation(3, EVALUATIONS_AHEAD + 1))
    assert not due.is_set()
    position.evaluated(1)
    assert due.wait(20)
    position.evaluation_done()
    again = waits(position, evaluation(3, EVALUATIONS_AHEAD + 1))
    assert not again.is_set()
    position.evaluated(1)
    assert again.wait(20)
