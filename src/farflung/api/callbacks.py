"""The caller's callbacks, and how they end a training."""

from __future__ import annotations

from collections.abc import Callable

from farflung.api.reports import Reports
from farflung.job import JobSpec
from farflung.plan.model import Plan
from farflung.telemetry.activity import TrainingProgress
from farflung.telemetry.records import EvaluationRecord, RecoveryRecord, StepRecord

__all__ = ["Callbacks", "StopTraining"]


class StopTraining(Exception):
    """Raise it in ``on_step`` or ``Evaluation.on_result`` to end the training early; ``train`` returns the result so far."""


class Callbacks:
    """Passes records on to the caller's functions and keeps the first exception, with which the run shall end.

    Functions are called one at a time, on whatever thread brings the record, and no more after an exception.
    """

    def __init__(
        self,
        on_step: Callable[[StepRecord], None] | None,
        on_evaluation: Callable[[EvaluationRecord], None] | None,
        progress: TrainingProgress,
        reports: Reports | None = None,
    ) -> None:
        self._on_step, self._on_evaluation = on_step, on_evaluation
        #: Shows each step before the caller's function is called.
        self.progress = progress
        #: Experiment trackers, which get each record, and recoveries.
        self.reports = reports
        #: Steps that were reported.
        self.steps = 0
        self.error: BaseException | None = None

    @property
    def given(self) -> bool:
        """Whether the caller has a callback, which may end the run."""
        return self._on_step is not None or self._on_evaluation is not None

    def planned(self, job: JobSpec, plan: Plan) -> None:
        """The training begins by ``plan``, or continues by it."""
        if self.reports is not None:
            self.reports.begin(job, plan)

    def recovered(self, record: RecoveryRecord) -> None:
        """The run continues after a loss."""
        if self.reports is not None:
            self.reports.take(record)

    def __call__(self, record: StepRecord | EvaluationRecord) -> None:
        """Report ``record`` to the trackers and to the caller's function."""
        if self.reports is not None:
            self.reports.take(record)
        self.steps += isinstance(record, StepRecord)
        if self.error is not None:
            return
        try:
            if isinstance(record, StepRecord):
                self.progress(record)
                if self._on_step is not None:
                    self._on_step(record)
            elif self._on_evaluation is not None:
                self._on_evaluation(record)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run ends cleanly first, then ``train`` raises it
            self.error = error
