"""Records of runs on their way: to the metrics file, the watchers, the log and the status."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from farflung.broker.live_run import RunRecords, Submission, TrainingTimes
from farflung.broker.notices import Notices, WatchedRun
from farflung.broker.planning.planned import Planned
from farflung.broker.progress import Progress
from farflung.broker.records.report_limits import ReportLimits
from farflung.broker.records.run_store import RunStore
from farflung.broker.run_table import RunTable
from farflung.clock import MonotonicClock
from farflung.errors import FarflungError
from farflung.messages.submission import Bundle
from farflung.plan.model import Plan
from farflung.protocol.events import Event, MemberSpoilt, RunAdvanced
from farflung.telemetry.records import Record, RelayedRecord, StepRecord
from farflung.units import Bytes

__all__ = ["RecordedRun", "RunRecorder"]


class RecordedRun(WatchedRun, Protocol):
    """What the records of a run need of it."""

    store: RunStore
    records: RunRecords
    submission: Submission
    times: TrainingTimes

    @property
    def planned(self) -> Planned | None:
        """The plan of the current attempt."""

    def limits(self, plan: Plan | None) -> ReportLimits:
        """Return what workers may report of an attempt by ``plan``."""


class RunRecorder:
    """Any thread may call. ``handle`` receives events for the machine."""

    def __init__(
        self,
        runs: RunTable,
        notices: Notices,
        handle: Callable[[Event], None],
        recorded: Callable[[str], None] = lambda run: None,
    ) -> None:
        """``recorded`` is called with a run whose records have grown, before watchers receive the record."""
        self._runs, self._notices, self._handle, self._recorded = runs, notices, handle, recorded

    def progress(self, live: RecordedRun, plan: Plan | None, predicted: float | None, first_step: int) -> Progress:
        """Return a new ``Progress`` of the workers of ``plan`` (``None``: of nobody) whose records are records of ``live``."""
        workers = () if plan is None else plan.devices
        limits = live.limits(plan)
        return Progress(limits, workers, MonotonicClock(), lambda record: self.record(live, record), predicted, first_step)

    def record(self, live: RecordedRun, record: Record) -> None:
        """Put ``record`` on record.

        Raises:
            DiskFull: too many records wait for space already.
            DataError: the metrics file cannot be written.
        """
        live.records.unwritten.put(record)
        if (bundle := live.submission.bundle) is not None and not live.store.folder.job.exists():
            _write_documents(live.store, bundle, live.planned)
        self._recorded(live.run)
        with self._runs.changed:
            live.records.latest.take(record)
        self._notices.record(live, record.to_line())
        if isinstance(record, StepRecord) and record.step >= live.times.furthest:
            live.times.advance(record.step)
            if self._runs.machine.runs[live.run].unsettled:
                self._handle(RunAdvanced(run=live.run))
            for name in record.blamed:
                self._handle(MemberSpoilt(run=live.run, name=name, step=record.step))

    def relayed(self, run: str, record: RelayedRecord) -> None:
        """Put on record what a relay carried for ``run``."""
        live = self._runs.find(run)
        if live is None:
            return  # it relayed bandwidth probes, which belong to no run
        live.records.unwritten.put(record)
        text = f"{record.relay} relayed {Bytes(record.nbytes)} from {record.source} to {record.target}"
        self._notices.operator_of(run, text, detail=True)


def _write_documents(store: RunStore, bundle: Bundle, planned: Planned | None) -> None:
    """Write the documents of a run again whose folder was deleted."""
    with suppress(FarflungError):  # a full disk: the next record tries again
        store.write_bundle(bundle)
        if planned is not None:
            store.write_plan(planned.plan, planned.cluster.to_json())
