"""When a step is on record, in which order, and what a worker cannot report."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.broker.progress import Progress
from farflung.broker.records.report_limits import ReportLimits
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


def progress(
    workers: int, steps: int = 10, first: int = 0, **more: object
) -> tuple[Progress, list[StepRecord | EvaluationRecord], VirtualClock]:
    clock, told = VirtualClock(), list[StepRecord | EvaluationRecord]()
    job = make_job({"steps": steps, "micro_batch_sizes": [2, 3], "data": {"kind": "text", "path": "x", "sequence": 8}} | more)
    return Progress(ReportLimits(job), [f"w{n}" for n in range(workers)], clock, told.append, 0.25, first), told, clock


def test_a_step_is_on_record_when_all_have_told_it() -> None:
    made, told, clock = progress(2)
    clock.advance(5)
    made.begin()
    clock.advance(2)
    made.report("w0", report(0, loss=3.0))
    assert told == []
    made.report("w1", report(0, stage=1))
    (record,) = told
    assert isinstance(record, StepRecord)
    assert (record.step, record.loss, record.seconds, record.elapsed) == (0, 3.0, 2.0, 2.0)
    assert (record.samples, record.tokens, record.predicted_seconds) == (5, 40, 0.25)
    assert record.link_bytes == {(0, 1): 10, (1, 2): 10}
    assert record.busy_seconds == {0: 0.5, 1: 0.5}


@pytest.mark.parametrize(
    ("first", "second", "expected"), [(0, 0, (5, False)), (0, 3, (2, False)), (2, 3, (5, True)), (9, 9, (5, True))]
)
def test_samples_that_replicas_left_out_alone_do_not_count(first: int, second: int, expected: tuple[int, bool]) -> None:
    made, told, _ = progress(2, precision="fp16", sync={"strategy": "local_sgd"}, plan={"replicas": 2})
    made.begin()
    made.report("w0", replace(report(0, loss=3.0), left_out=first))
    made.report("w1", replace(report(0), left_out=second))
    (record,) = told
    assert isinstance(record, StepRecord)
    assert (record.samples, record.skipped) == expected


def test_no_worker_can_leave_out_samples_where_all_skip_a_step_together() -> None:
    made, told, _ = progress(1)
    made.begin()
    made.report("w0", replace(report(0, loss=3.0), left_out=5))
    (record,) = told
    assert isinstance(record, StepRecord)
    assert (record.samples, record.skipped) == (5, False)


@settings(deadline=None, max_examples=50)
@given(order=st.permutations([(step, worker) for step in range(4) for worker in range(3)]), first=st.integers(0, 5))
def test_records_come_in_order_whatever_the_order_of_reports(order: list[tuple[int, int]], first: int) -> None:
    made, told, _ = progress(3, first=first)
    for step, worker in order:
        made.report(f"w{worker}", report(step + first, stage=worker, loss=float(step) if worker == 2 else None))
    assert [(record.step, record.loss) for record in told if isinstance(record, StepRecord)] == [
        (step + first, float(step)) for step in range(4)
    ]
    assert (made.count, made.last) == (4, told[-1])


def test_reports_after_a_step_that_nobody_has_any_more_are_on_record() -> None:
    made, told, _ = progress(2, steps=100)
    for name in ("w0", "w1"):
        made.report(name, report(0, loss=1.0))
    late = [report(step, loss=float(step)) for step in (9, 7, 8, 9, 12)]
    made.settle(10, late)
    assert [(record.step, record.loss) for record in told if isinstance(record, StepRecord)] == [(0, 1.0)] + [
        (step, float(step)) for step in (7, 8, 9)
    ]
    assert (made.count, made.last) == (10, told[-1])


def test_a_long_run_is_followed() -> None:
    made, told, _ = progress(1, steps=1000)
    for step in range(1000):
        made.report("w0", report(step, loss=1.0))
    made.evaluation(1000, {"loss": 1.0})
    assert (made.count, len(told)) == (1000, 1001)


@pytest.mark.parametrize("step", [10, 4])
def test_steps_that_cannot_be_are_refused(step: int) -> None:
    made, _, _ = progress(1, steps=10, first=5)
    with pytest.raises(WireError, match=f"a report of step {step} came while step 5 of 10 is open"):
        made.report("w0", report(step))


def test_whoever_is_far_ahead_waits_for_the_others() -> None:
    """A busy broker has read 64 reports of one worker and none of the other."""
    made, _, _ = progress(2, steps=100)
    for step in range(64):
        assert made.report("w0", report(step)) == frozenset()
    assert made.report("w0", report(64), patience=0.0) == {"w1"}  # it is late
    ahead = threading.Thread(target=made.report, args=("w0", report(64)))
    ahead.start()
    try:
        for step in range(65):
            made.report("w1", report(step, stage=1))
    finally:
        ahead.join()
    assert made.count == 65


def test_whoever_waits_is_let_go_when_the_attempt_is_over() -> None:
    made, _, _ = progress(2, steps=100)
    for step in range(64):
        made.report("w0", report(step))
    ahead = threading.Thread(target=made.report, args=("w0", report(64)))
    ahead.start()
    made.close()
    ahead.join()
    assert made.count == 0


def test_a_step_is_on_record_when_those_who_computed_it_reported_it() -> None:
    made, told, _ = progress(2)
    made.report("w0", report(0))
    with pytest.raises(WireError, match="w0 reported step 0 twice"):
        made.report("w0", report(0))
    with pytest.raises(WireError, match="a report of step 0 came from zoe, which has no part in the plan"):
        made.report("zoe", report(0))
    assert told == []


def test_a_report_has_as_many_losses_as_the_job_has_micro_batches() -> None:
    made, _, _ = progress(1)
    with pytest.raises(WireError, match="a report of step 0 has 40000 losses, and the job has 2 micro-batches"):
        made.report("w0", replace(report(0), losses=(1.0,) * 40_000))


def test_evaluations() -> None:
    made, told, _ = progress(1)
    made.evaluation(4, {"loss": 0.0, "correct": 1.5})
    assert told == [EvaluationRecord(step=4, elapsed=0.0, loss=0.0, perplexity=1.0, accuracy=0.5)]
    with pytest.raises(WireError, match="an evaluation must have a loss, this one has correct"):
        made.evaluation(4, {"correct": 1.0})
    made.close()
    made.evaluation(4, {"correct": 1.0})  # this was a KeyError
    made.evaluation(5, {"loss": 1.0})
    assert len(told) == 1


def test_whoever_asks_who_is_missing_never_waits_for_the_sink() -> None:
    """The check of deadlines asks under the lock of the runs, which recording a step needs: the broker stood still for good."""
    entered, free = threading.Event(), threading.Event()

    def sink(record: object) -> None:
        entered.set()
        free.wait(60)

    job = make_job({"steps": 3, "micro_batch_sizes": [2, 3]})
    made = Progress(ReportLimits(job), ["w0"], VirtualClock(), sink)
    recording = threading.Thread(target=made.report, args=("w0", report(0, loss=1.0)), name="recording")
    recording.start()
    assert entered.wait(60)
    found: list[frozenset[str]] = []
    asking = threading.Thread(target=lambda: found.append(made.missing()), name="asking", daemon=True)
    asking.start()
    asking.join(30)
    free.set()
    recording.join()
    assert found == [frozenset({"w0"})], "it answered while the sink was busy"


def test_a_report_may_name_workers_of_the_plan_only() -> None:
    made, _, _ = progress(2)
    with pytest.raises(WireError) as caught:
        made.report("w0", replace(report(0), excluded=frozenset({"w1", "x9"})))
    assert str(caught.value) == "a report of step 0 names x9, which has no part in the plan"


def test_how_far_each_worker_has_reported() -> None:
    made, _, _ = progress(2, first=2)
    assert made.reported("w0") == 2
    for step in (2, 3):
        made.report("w0", report(step))
    assert [made.reported(name) for name in ("w0", "w1")] == [4, 2]
    made.report("w1", report(2))
    assert [made.reported(name) for name in ("w0", "w1")] == [4, 3]
