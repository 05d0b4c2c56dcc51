"""When a step is on record, in which order, and what a worker cannot report."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.broker.progress import Progress
from farflung.clock import VirtualClock
from farflung.errors import WireError
from farflung.job.load import make_job
from farflung.messages.conversions.step_reports import StepReport
from farflung.telemetry.records import CodecUse, EvaluationRecord, StepRecord


def report(step: int, *, stage: int = 0, loss: float | None = None) -> StepReport:
    return StepReport(
        step=step,
        seconds=1.0,
        busy=0.5,
        wait=0.5,
        sent={(stage, stage + 1): 10},
        dense={(stage, stage + 1): 20},
        stage_busy={stage: 0.5},
        loss=loss,
        losses=() if loss is None else (loss, loss),
        samples=5,
        rate=0.1,
        codecs={(stage, stage + 1): CodecUse(encode_seconds=0.5, decode_seconds=0.25, error=loss)},
    )


def progress(workers: int, steps: int = 10, first: int = 0) -> tuple[Progress, list[StepRecord | EvaluationRecord], VirtualClock]:
    clock, told = VirtualClock(), list[StepRecord | EvaluationRecord]()
    job = make_job({"steps": steps, "micro_batch_sizes": [2, 3], "data": {"kind": "text", "path": "x", "sequence": 8}})
    return Progress(job, workers, clock, told.append, 0.25, first), told, clock


def test_a_step_is_on_record_when_all_have_told_it() -> None:
    made, told, clock = progress(2)
    clock.advance(5)
    made.begin()
    clock.advance(2)
    made.report(report(0, loss=3.0))
    assert told == []
    made.report(report(0, stage=1))
    (record,) = told
    assert isinstance(record, StepRecord)
    assert (record.step, record.loss, record.seconds, record.elapsed) == (0, 3.0, 2.0, 2.0)
    assert (record.samples, record.tokens, record.predicted_seconds) == (5, 40, 0.25)
    assert record.link_bytes == {(0, 1): 10, (1, 2): 10}
    assert record.busy_seconds == {0: 0.5, 1: 0.5}


@settings(deadline=None, max_examples=50)
@given(order=st.permutations([(step, worker) for step in range(4) for worker in range(3)]), first=st.integers(0, 5))
def test_records_come_in_order_whatever_the_order_of_reports(order: list[tuple[int, int]], first: int) -> None:
    made, told, _ = progress(3, first=first)
    for step, worker in order:
        made.report(report(step + first, stage=worker, loss=float(step) if worker == 2 else None))
    assert [(record.step, record.loss) for record in told if isinstance(record, StepRecord)] == [
        (step + first, float(step)) for step in range(4)
    ]
    assert (made.count, made.last) == (4, told[-1])


def test_a_long_run_is_followed() -> None:
    made, told, _ = progress(1, steps=1000)
    for step in range(1000):
        made.report(report(step, loss=1.0))
    made.evaluation(1000, {"loss": 1.0})
    assert (made.count, len(told)) == (1000, 1001)


@pytest.mark.parametrize("step", [10, 4, 200])
def test_steps_that_cannot_be_are_refused(step: int) -> None:
    made, _, _ = progress(1, steps=10, first=5)
    with pytest.raises(WireError, match=f"a report of step {step} came while step 5 of 10 is open"):
        made.report(report(step))


def test_a_worker_cannot_open_steps_without_end() -> None:
    made, _, _ = progress(2, steps=1000)
    for step in range(64):
        made.report(report(step))
    with pytest.raises(WireError, match="a report of step 64 came while step 0"):
        made.report(report(64))


def test_evaluations() -> None:
    made, told, _ = progress(1)
    made.evaluation(4, {"loss": 0.0, "correct": 1.5})
    assert told == [EvaluationRecord(step=4, elapsed=0.0, loss=0.0, perplexity=1.0, accuracy=0.5)]
    with pytest.raises(WireError, match="an evaluation must have a loss, this one has correct"):
        made.evaluation(4, {"correct": 1.0})
