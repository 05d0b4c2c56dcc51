"""What no honest worker reports of steps and evaluations is refused before anybody stores it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from farflung.broker.records.report_limits import ReportLimits
from farflung.errors import WireError
from farflung.job.load import make_job
from farflung.messages.conversions.step_reports import StepReport
from farflung.plan.verification import Audit, Transfer, TransferKind, Unit
from farflung.telemetry.records import CodecUse

JOB = make_job({"steps": 10, "micro_batch_sizes": [2, 3]})
REPORT = StepReport(step=0, seconds=1.0, busy=0.5, wait=0.5, sent={(0, 1): 10}, dense={(0, 1): 20}, stage_busy={1: 0.5})
FAR = {Transfer(0, 7, 0, TransferKind.VALUES): b"x" * 16}


@pytest.mark.parametrize(
    "strange",
    [
        {"sent": {(0, 7): 1}},
        {"dense": {(7, 0): 1}},
        {"codecs": {(7, 7): CodecUse()}},
        {"stage_busy": {7: 1.0}},
        {"helped": {(7, "w9"): (1, 1.0)}},
        {"gave": FAR},
        {"took": FAR},
        {"audits": (Audit(unit=Unit(0, 0, 0), took=FAR, gave={}),)},
        {"audits": (Audit(unit=Unit(0, 0, 0), took={}, gave=FAR),)},
    ],
)
def test_a_report_names_stages_of_the_plan_only(strange: dict[str, Any]) -> None:
    """100,000 invented pairs in each of 64 open steps took gigabytes of the broker's memory."""
    ReportLimits(JOB, stages=2).check_step(REPORT)
    ReportLimits(JOB, stages=8).check_step(replace(REPORT, **strange))
    ReportLimits(JOB).check_step(replace(REPORT, **strange))
    with pytest.raises(WireError, match=r"^a report of step 0 names stage 7, and the plan has 2$"):
        ReportLimits(JOB, stages=2).check_step(replace(REPORT, **strange))


def test_an_evaluation_has_the_outputs_of_the_job() -> None:
    limits = ReportLimits(JOB, outputs=("loss", "correct"))
    limits.check_evaluation(2, {"loss": 1.0, "correct": 2.0}, latest=4)
    with pytest.raises(WireError, match=r"^an evaluation has 'invented', which the job does not evaluate$"):
        limits.check_evaluation(2, {"loss": 1.0, "invented": 2.0}, latest=4)
    with pytest.raises(WireError, match=r"^an evaluation has 'loss', which"):
        ReportLimits(JOB, outputs=()).check_evaluation(2, {"loss": 1.0}, latest=4)


def test_a_step_is_evaluated_twice_at_most_and_in_order() -> None:
    """Each one is a line of the metrics file, which grew without a limit."""
    limits = ReportLimits(JOB)
    for step in (0, 2, 2, 4):
        limits.check_evaluation(step, {"loss": 1.0}, latest=8)
    limits.check_evaluation(4, {"loss": 1.0}, latest=8)
    for step in (4, 2, 9):
        with pytest.raises(
            WireError, match=f"^an evaluation of step {step} came after that of step 4; at most step 8 is reached$"
        ):
            limits.check_evaluation(step, {"loss": 1.0}, latest=8)
