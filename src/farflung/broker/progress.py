"""From the workers' reports to the run's records: a step is on record once every worker of the plan has reported it.

A worker whose reports are far ahead of the others' waits in ``report``, so that reports take bounded memory: its session is read
no further, and the transport holds it back. A busy broker reads the sessions at different paces; that is no error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from math import exp

from farflung.broker.excluded_members import blamed_members, excluded_members
from farflung.broker.records.report_limits import ReportLimits
from farflung.clock import Clock, monotonic
from farflung.errors import WireError
from farflung.job.spec import JobSpec
from farflung.messages.conversions.step_reports import StepReport
from farflung.sync import get_strategy
from farflung.telemetry.records import CodecUse, EvaluationRecord, StepRecord
from farflung.units import Seconds

__all__ = ["Progress", "RecordList"]

#: Steps that may be open at once. Whoever is further ahead waits.
_MAX_OPEN = 64
#: How long it waits for the reports of others, in seconds.
_PATIENCE = 120.0

Pair = tuple[int, int]


class RecordList:
    """A sink that collects records in memory."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.evaluations: list[EvaluationRecord] = []

    def __call__(self, record: StepRecord | EvaluationRecord) -> None:
        """Append ``record``."""
        if isinstance(record, StepRecord):
            self.steps.append(record)
        else:
            self.evaluations.append(record)


class _Times:
    """When training began, and when the last step ended, by ``clock``. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin = self._ended = clock.now()

    def begin(self, elapsed: float) -> None:
        """Training begins or continues now, after ``elapsed`` seconds."""
        self._ended = self._clock.now()
        self._begin = Seconds(self._ended - elapsed)

    def elapsed(self) -> Seconds:
        """Return the time since training began."""
        return Seconds(self._clock.now() - self._begin)

    def step(self) -> tuple[Seconds, Seconds]:
        """A step ends now. Return its time, and the time since training began."""
        now = self._clock.now()
        seconds, self._ended = Seconds(now - self._ended), now
        return seconds, Seconds(now - self._begin)


class Progress:
    """Merges the step reports of ``workers`` (their names) into records. Any thread may call.

    ``sink`` receives the records in the order of steps, under the lock of this object.
    """

    def __init__(
        self,
        limits: ReportLimits,
        workers: Collection[str],
        clock: Clock,
        sink: Callable[[StepRecord | EvaluationRecord], None],
        predicted_seconds: float | None = None,
        first_step: int = 0,
    ) -> None:
        """``limits``: what reports may have, and the job."""
        self._job, self._limits = limits.job, limits
        self._workers, self._sink, self._predicted = frozenset(workers), sink, predicted_seconds
        #: Reentrant: ``sink`` may end the run, which calls ``close``.
        self._lock = threading.Condition(threading.RLock())
        #: step -> the reports that came, by worker
        self._open: dict[int, dict[str, StepReport]] = {}
        self._first = self._next = first_step
        self._closed = False
        self._times = _Times(clock)
        self._last: StepRecord | None = None

    @property
    def count(self) -> int:
        """The number of steps before the open one; all of them are committed."""
        return self._next - self._first

    @property
    def last(self) -> StepRecord | None:
        """The record of the last step."""
        return self._last

    def begin(self, elapsed: float = 0.0) -> None:
        """Training begins now, or continues after ``elapsed`` seconds; times count from here."""
        self._times.begin(elapsed)

    def settle(self, end: int, reports: Iterable[StepReport]) -> None:
        """The run continues at step ``end``: all steps before it are committed, although a dead worker did not report them.

        ``reports``: the reports of the remaining workers, with all losses. A step that nobody reports any more has no record.
        """
        with self._lock:
            for number, report in enumerate(reports):
                if self._next <= report.step < end:
                    self._open.setdefault(report.step, {})[f"report {number}"] = report
            for step in sorted(step for step in self._open if step < end):
                if self._closed:  # ``sink`` has ended the run
                    return
                self._next = step
                self._complete()

    def close(self) -> None:
        """Ignore later reports: they belong to a plan that is over."""
        with self._lock:
            self._closed = True
            self._workers = frozenset()  # whoever waits in ``report`` is let go
            self._lock.notify_all()

    def report(self, name: str, report: StepReport, patience: float = _PATIENCE) -> frozenset[str]:
        """Take the report of one step from the worker ``name``; waits while the step is far ahead of what others reported.

        Return the workers that have not reported the open step within ``patience`` seconds (none: all did, or all goes on).

        Raises:
            WireError: the step is over already, is none of the job's, was reported before, or the worker has no part in the plan.
        """
        with self._lock:
            if self._closed:
                return frozenset()
            self._check(name, report)
            until = monotonic() + patience
            while self._workers and report.step >= self._next + _MAX_OPEN:
                if (left := until - monotonic()) <= 0:
                    return self.missing()
                self._lock.wait(left)
            if not self._workers:
                return frozenset()
            self._open.setdefault(report.step, {})[name] = report
            while self._workers and self._workers <= self._open.get(self._next, {}).keys():
                self._complete()
            return frozenset()

    def reported(self, name: str) -> int:
        """Return the number of steps that the worker ``name`` has reported, those before this attempt included."""
        with self._lock:
            return max((step + 1 for step, reports in self._open.items() if name in reports), default=self._next)

    def missing(self) -> frozenset[str]:
        """Return the workers that have not reported the open step.

        Without the lock: whoever asks may hold a lock that ``sink`` waits for.
        """
        return self._workers - frozenset(self._open.get(self._next, {}))

    def _check(self, name: str, report: StepReport) -> None:
        if not self._next <= report.step < self._job.steps:
            raise WireError(f"a report of step {report.step} came while step {self._next} of {self._job.steps} is open")
        if name not in self._workers:
            raise WireError(f"a report of step {report.step} came from {name}, which has no part in the plan")
        if name in self._open.get(report.step, {}):
            raise WireError(f"{name} reported step {report.step} twice")
        if strangers := (report.excluded | report.spoilers) - self._workers:
            raise WireError(f"a report of step {report.step} names {min(strangers):.60}, which has no part in the plan")
        self._limits.check_step(report)

    def evaluation(self, step: int, outputs: Mapping[str, float]) -> None:
        """Take an evaluation: mean outputs over its micro-batches (``loss``, ``correct``: right answers of one, metrics).

        Raises:
            WireError: see ``ReportLimits.check_evaluation``.
        """
        with self._lock:
            if self._closed:
                return
            self._limits.check_evaluation(step, outputs, min(self._next + _MAX_OPEN, self._job.steps))
        loss, correct = outputs["loss"], outputs.get("correct")
        record = EvaluationRecord(
            step=step,
            elapsed=self._times.elapsed(),
            loss=loss,
            perplexity=exp(loss) if self._tokens_per_sample and loss < 700 else None,
            accuracy=outputs.get("accuracy") if correct is None else correct / max(self._job.micro_batch_sizes),
            metrics={name: value for name, value in outputs.items() if name not in ("loss", "correct")},
        )
        with self._lock:
            if not self._closed:
                self._sink(record)

    @property
    def _tokens_per_sample(self) -> int:
        return self._job.data.sequence if self._job.data.tokenized else 0

    def _complete(self) -> None:
        """Put the next step on record (under the lock)."""
        self._last = self._merge(self._open.pop(self._next))
        self._next += 1
        self._lock.notify_all()
        self._sink(self._last)

    def _merge(self, by_worker: Mapping[str, StepReport]) -> StepRecord:
        reports, (seconds, elapsed) = list(by_worker.values()), self._times.step()
        excluded = excluded_members(by_worker, _faulty(self._job))
        leader = next((report for report in reports if report.loss is not None), reports[0])
        samples = min(leader.samples, sum(self._job.micro_batch_sizes))  # fewer where replicas rest in the step
        alone = self._job.precision == "fp16" and self._job.sync.strategy != "exact"  # else nobody leaves out a step alone
        left_out = min(sum(report.left_out for report in reports), samples) if alone else 0
        skipped = leader.skipped or 0 < left_out == samples  # by all replicas
        samples -= 0 if skipped else left_out
        sent: dict[Pair, int] = {}
        dense: dict[Pair, int] = {}
        busy: dict[int, float] = {}
        codecs: dict[Pair, CodecUse] = {}
        helped: dict[tuple[int, str], tuple[int, float]] = {}
        for report in reports:
            for key, (count, spent) in report.helped.items():  # a helper may serve several servers of a stage
                before = helped.get(key, (0, 0.0))
                helped[key] = min(before[0] + count, samples), min(before[1] + spent, seconds)
            codecs |= {pair: codecs.get(pair, CodecUse()).plus(use) for pair, use in report.codecs.items()}
            for total, part in ((sent, report.sent), (dense, report.dense)):
                for pair, count in part.items():
                    total[pair] = total.get(pair, 0) + count
            for stage, seconds_busy in report.stage_busy.items():  # of the replicas of a stage, the busiest one
                busy[stage] = max(busy.get(stage, 0.0), seconds_busy)
        return StepRecord(
            step=leader.step,
            loss=float("nan") if leader.loss is None else leader.loss,
            seconds=seconds,
            elapsed=elapsed,
            samples=samples,
            tokens=samples * self._tokens_per_sample,
            learning_rate=leader.rate,
            predicted_seconds=self._predicted,
            link_bytes=sent,
            dense_bytes=dense,
            busy_seconds=busy,
            skipped=skipped,
            codecs=dict(sorted(codecs.items())),
            grad_norm=leader.grad_norm,
            helped=dict(sorted(helped.items())),
            divergence=max((report.divergence for report in reports if report.divergence is not None), default=None),
            excluded=excluded,
            blamed=blamed_members(by_worker, excluded),
        )


def _faulty(job: JobSpec) -> int:
    """Return how many faulty replicas the job's strategy tolerates."""
    sync = job.sync
    return 0 if sync.strategy == "exact" else get_strategy(sync.strategy, **sync.settings).traits.faulty
