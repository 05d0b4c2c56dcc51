"""From the workers' reports to the run's records: a step is on record once every worker has reported it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from math import exp

from farflung.clock import Clock
from farflung.errors import WireError
from farflung.job.spec import JobSpec
from farflung.messages.step_reports import StepReport
from farflung.telemetry.records import CodecUse, EvaluationRecord, StepRecord
from farflung.units import Seconds

__all__ = ["Progress"]

#: Workers are at most a step or two apart; more open steps than this are a defect, and their memory would have no bound.
_MAX_OPEN = 64


class Progress:
    """Collects step reports of ``workers`` workers and gives complete records to ``sink``, in step order (under its lock).

    ``steps`` and ``evaluations`` hold all records, unless ``keep`` is turned off; ``count`` and ``last`` are always there.
    """

    def __init__(
        self,
        job: JobSpec,
        workers: int,
        clock: Clock,
        sink: Callable[[StepRecord | EvaluationRecord], None],
        predicted_seconds: float | None = None,
        first_step: int = 0,
    ) -> None:
        self._job = job
        self._workers = workers
        self._clock = clock
        self._sink = sink
        self._predicted = predicted_seconds
        self._lock = threading.RLock()
        self._open: dict[int, list[StepReport]] = {}
        self._next = first_step
        self._closed = False
        self._begin = clock.now()
        self._last = self._begin
        self.tokens_per_sample = job.data.sequence if job.data.kind == "text" else 0
        self.keep = True
        self.count = 0
        self.last: StepRecord | None = None
        self.steps: list[StepRecord] = []
        self.evaluations: list[EvaluationRecord] = []

    def begin(self, elapsed: float = 0.0) -> None:
        """Training begins now, or goes on after ``elapsed`` seconds: times count from here."""
        self._last = self._clock.now()
        self._begin = Seconds(self._last - elapsed)

    def settle(self, end: int, told: Iterable[StepReport]) -> None:
        """The run goes on at step ``end``: what stands before it is committed, though a worker died before it had said so.

        ``told``: reports of those who live, with all losses.
        """
        with self._lock:
            for report in told:
                if self._next <= report.step < end:
                    self._open.setdefault(report.step, []).append(report)
            while not self._closed and self._next < end and self._open.get(self._next):
                self._complete()

    def close(self) -> None:
        """Hear no more: what still comes belongs to a plan that is over."""
        with self._lock:
            self._closed = True

    def report(self, report: StepReport) -> None:
        """Take one worker's report of one step.

        Raises:
            WireError: the step is over already, is none of the job's, or is far ahead of the others.
        """
        with self._lock:
            if self._closed:
                return
            if not self._next <= report.step < self._job.steps or report.step >= self._next + _MAX_OPEN:
                raise WireError(f"a report of step {report.step} came while step {self._next} of {self._job.steps} is open")
            self._open.setdefault(report.step, []).append(report)
            while len(self._open.get(self._next, ())) == self._workers:
                self._complete()

    def _complete(self) -> None:
        """The next step is on record (under the lock)."""
        record = self._merge(self._open.pop(self._next))
        self._next += 1
        self.count += 1
        self.last = record
        if self.keep:
            self.steps.append(record)
        self._sink(record)

    def evaluation(self, step: int, outputs: Mapping[str, float]) -> None:
        """Take an evaluation: mean outputs over its micro-batches (``loss``; ``correct``: right answers per micro-batch).

        Raises:
            WireError: there is no loss among them.
        """
        loss = outputs.get("loss")
        if loss is None:
            raise WireError(f"an evaluation must have a loss, this one has {', '.join(outputs) or 'nothing'}")
        correct = outputs.get("correct")
        record = EvaluationRecord(
            step=step,
            elapsed=self._clock.now() - self._begin,
            loss=loss,
            perplexity=exp(loss) if self.tokens_per_sample and loss < 700 else None,
            accuracy=None if correct is None else correct / max(self._job.micro_batch_sizes),
        )
        with self._lock:
            if self._closed:
                return
            if self.keep:
                self.evaluations.append(record)
            self._sink(record)

    def _merge(self, reports: list[StepReport]) -> StepRecord:
        now = self._clock.now()
        seconds, self._last = now - self._last, now
        leader = next((report for report in reports if report.loss is not None), reports[0])
        samples = min(leader.samples, sum(self._job.micro_batch_sizes))  # fewer where replicas rest in the step
        sent: dict[tuple[int, int], int] = {}
        dense: dict[tuple[int, int], int] = {}
        busy: dict[int, float] = {}
        codecs: dict[tuple[int, int], CodecUse] = {}
        for report in reports:
            codecs |= {pair: codecs.get(pair, CodecUse()).plus(use) for pair, use in report.codecs.items()}
            for total, part in ((sent, report.sent), (dense, report.dense)):
                for pair, count in part.items():
                    total[pair] = total.get(pair, 0) + count
            for stage, seconds_busy in report.stage_busy.items():  # of replicas the one that is busy longest
                busy[stage] = max(busy.get(stage, 0.0), seconds_busy)
        return StepRecord(
            step=leader.step,
            loss=float("nan") if leader.loss is None else leader.loss,
            seconds=seconds,
            elapsed=now - self._begin,
            samples=samples,
            tokens=samples * self.tokens_per_sample,
            learning_rate=leader.rate,
            predicted_seconds=self._predicted,
            link_bytes=sent,
            dense_bytes=dense,
            busy_seconds=busy,
            skipped=leader.skipped,
            codecs=dict(sorted(codecs.items())),
            divergence=max((report.divergence for report in reports if report.divergence is not None), default=None),
        )
