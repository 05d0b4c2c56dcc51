"""The newest step and evaluation of a run, for its status: the same before and after a restart of the broker."""

from __future__ import annotations

from dataclasses import dataclass

from farflung.telemetry.records import EvaluationRecord, Record, RecoveryRecord, StepRecord

__all__ = ["LatestRecords"]


@dataclass(slots=True)
class LatestRecords:
    """``None`` where the run has no such record, or where a recovery went back before it."""

    step: StepRecord | None = None
    evaluation: EvaluationRecord | None = None

    def take(self, record: Record) -> None:
        """Follow the run's records in their order. After a recovery, later steps and evaluations do not count."""
        if isinstance(record, StepRecord):
            self.step = record
        elif isinstance(record, EvaluationRecord):
            self.evaluation = record
        elif isinstance(record, RecoveryRecord):
            if self.step is not None and self.step.step >= record.step:
                self.step = None
            if self.evaluation is not None and self.evaluation.step >= record.step:
                self.evaluation = None
