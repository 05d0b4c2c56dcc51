"""The newest step and evaluation of a run, for its status: the same before and after a restart of the broker."""

from __future__ import annotations

from dataclasses import dataclass, field

from farflung.telemetry.records import EvaluationRecord, Record, RecoveryRecord, StepRecord

__all__ = ["LatestRecords", "RecordTotals"]


@dataclass(slots=True)
class RecordTotals:
    """Counts over all records of a run. They never decrease: steps that are made again after a loss count again."""

    steps: int = 0
    skipped: int = 0
    samples: int = 0
    tokens: int = 0
    sent_bytes: int = 0
    recoveries: int = 0


@dataclass(slots=True)
class LatestRecords:
    """``None`` where the run has no such record, or where a recovery went back before it."""

    step: StepRecord | None = None
    evaluation: EvaluationRecord | None = None
    totals: RecordTotals = field(default_factory=RecordTotals)

    def take(self, record: Record) -> None:
        """Follow the run's records in their order. After a recovery, later steps and evaluations do not count."""
        if isinstance(record, StepRecord):
            self.step = record
            self._count(record)
        elif isinstance(record, EvaluationRecord):
            self.evaluation = record
        elif isinstance(record, RecoveryRecord):
            self.totals.recoveries += 1
            if self.step is not None and self.step.step >= record.step:
                self.step = None
            if self.evaluation is not None and self.evaluation.step >= record.step:
                self.evaluation = None

    def _count(self, record: StepRecord) -> None:
        totals = self.totals
        totals.steps += 1
        totals.skipped += record.skipped
        totals.samples += record.samples
        totals.tokens += record.tokens
        totals.sent_bytes += record.total_bytes
