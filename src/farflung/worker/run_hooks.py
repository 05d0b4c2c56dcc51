"""What a training run asks of its surroundings: data, first states, checkpoints, reports."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from farflung.checkpoint import encode_shard, pack
from farflung.clock import monotonic
from farflung.engines.base import Array
from farflung.errors import ConnectionLost, DiskFull
from farflung.job import JobSpec
from farflung.messages.calls import ShardUpload
from farflung.messages.conversions.link_reports import link_items
from farflung.messages.conversions.step_reports import StepReport, message_of
from farflung.messages.reports import CopyHashed, Evaluated, Generated, Hashed, Traced
from farflung.messages.schema import UNSET, Message
from farflung.step.run_setup import Committed, Phase
from farflung.telemetry.log_line import Detail
from farflung.telemetry.trace import ClockOffset, Span, pack_spans
from farflung.transports.base import LinkStatistics
from farflung.worker.first_states import FirstStates
from farflung.worker.observer import WorkObserver
from farflung.worker.run_part import RunRequests

__all__ = ["BatchFeed", "CheckpointUpload", "NoteLine", "WorkerHooks"]

#: How long the last checkpoint waits for space on a full disk, and how often it is tried, in seconds.
_FULL_SECONDS, _FULL_AGAIN = 600.0, 2.0
#: Checkpoints to recover from take at most one in this many seconds.
_TIME_SHARE = 33.0


class BatchFeed(Protocol):
    """Where micro-batches come from."""

    def provide(self, phase: Phase, step: int, micro_batch: int, names: Sequence[str]) -> Mapping[str, Array]:
        """The arrays of placeholders ``names``."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Tokens as text."""


class NoteLine(Protocol):
    """Shows a line to people. ``detail``: for experts only."""

    def __call__(self, text: str, *, detail: bool = False) -> None:
        """Show ``text``."""


class CheckpointUpload:
    """When a run's checkpoints are due, and their upload. Only the compute thread calls."""

    def __init__(
        self,
        job: JobSpec,
        upload: Callable[[ShardUpload, Mapping[str, Array]], None],
        requests: RunRequests,
        warn: Callable[[str], None],
    ) -> None:
        """``warn`` shows a line to people."""
        self._job, self._upload, self._requests, self._warn = job, upload, requests, warn
        #: When the newest checkpoint was stored (or training began), and how long its upload took, in seconds.
        self._stored_at, self._seconds = monotonic(), 0.0

    @property
    def due(self) -> bool:
        """Whether it is time for a checkpoint to recover from: at most a 33rd of the time goes into them."""
        seconds = self._job.recover_seconds
        return seconds > 0 and monotonic() - self._stored_at >= max(seconds, _TIME_SHARE * self._seconds)

    def begin(self) -> None:
        """Training begins now."""
        self._stored_at, self._seconds = monotonic(), 0.0

    def store(self, head: ShardUpload, tensors: Mapping[str, Array]) -> bool:
        """Upload this worker's share of a checkpoint; returns whether the broker has stored it.

        If the broker's disk is full, training continues without this checkpoint. The last checkpoint is tried again, until
        somebody stops the run.

        Raises:
            DiskFull: the disk was full for too long, or the job rolls back to checkpoints by itself.
            FarflungError: the broker refuses it.
        """
        begin = monotonic()
        stored = self._store(head, tensors)
        self._stored_at = monotonic()
        self._seconds = self._stored_at - begin
        return stored

    def _store(self, head: ShardUpload, tensors: Mapping[str, Array]) -> bool:
        job, requests, until = self._job, self._requests, 0.0
        last = head.step >= job.steps
        while True:
            try:
                self._upload(head, tensors)
            except DiskFull as error:
                now = monotonic()
                if job.on_nan == "rollback" or (until and now >= until) or requests.ended_by is not None:
                    raise
                if not until:
                    then = "the worker tries again until there is space" if last else "training continues without it"
                    self._warn(f"warning: the checkpoint after step {head.step} cannot be written: {error}; {then}")
                until = until or now + _FULL_SECONDS
                if not last or requests.stopping:
                    return False
                requests.wait(_FULL_AGAIN)
            except ConnectionLost:
                if requests.ended_by is not None:
                    raise requests.ended_by from None  # the upload was broken off because of that
                raise
            else:
                return True


@dataclass(kw_only=True)
class WorkerHooks:
    """See ``RunHooks``. The compute thread calls, and any thread ``on_trace``, ``on_note`` and ``on_helper_gone``.

    ``report`` sends a message to the broker. ``note`` shows a line to people here and to all who watch the run.
    ``offset``: how far the broker's clock is from this machine's, until it is reported.
    """

    run: str
    attempt: int
    report: Callable[[Message], None]
    log: Callable[[str], None]
    note: NoteLine
    requests: RunRequests
    feed: BatchFeed
    states: FirstStates
    upload: CheckpointUpload
    links: Callable[[], Mapping[str, LinkStatistics]]
    offset: ClockOffset | None
    observer: WorkObserver

    def provide(self, phase: Phase, step: int, micro_batch: int, names: Sequence[str]) -> Mapping[str, Array]:
        """Data from this machine's files, or from the submitting process."""
        return self.feed.provide(phase, step, micro_batch, names)

    def first_states(self, names: Sequence[str]) -> Mapping[str, Array] | None:
        """See ``FirstStates``."""
        return self.states.read(names)

    def first_optimizer(self, parameters: Sequence[str]) -> Mapping[str, Array]:
        """See ``FirstStates``."""
        return self.states.optimizer(parameters)

    def stop_requested(self) -> bool:
        """Whether somebody asked for the end."""
        return self.requests.stopping

    def ends_after(self, phase: Phase, step: int) -> bool | None:
        """Never by itself: see ``stop_requested``."""
        return False

    def leave_requested(self) -> bool:
        """Whether other workers shall continue the run."""
        return self.requests.draining

    def save_requested(self) -> bool:
        """Whether a checkpoint to recover from is due."""
        return self.upload.due

    def on_step(self, report: StepReport) -> None:
        """Report the step to the broker."""
        self.report(message_of(report, self.run, self.attempt))
        self.observer.step(self.run, report)

    def on_checkpoint(self, step: int, committed: Committed, states: Mapping[str, Array], optimizer: Mapping[str, Array]) -> None:
        """Send this worker's share to the broker."""
        head = ShardUpload(
            run=self.run,
            step=step,
            committed=committed.steps,
            rested=committed.rested,
            left_out=committed.left_out or UNSET,
            attempt=self.attempt,
        )
        if self.upload.store(head, pack(states, optimizer)):
            self.states.use_checkpoint()

    def on_copy(self, step: int, device: str, states: Mapping[str, Array], optimizer: Mapping[str, Array]) -> None:
        """Report the hash of what ``device`` must send to the broker."""
        found = hashlib.sha256()
        for block in encode_shard(pack(states, optimizer)):
            found.update(block)
        self.report(Hashed(run=self.run, attempt=self.attempt, step=step, sha256=found.hexdigest(), of=device))

    def on_copied(self, step: int, hashes: Mapping[str, str]) -> None:
        """Report the hashes to the broker."""
        self.report(CopyHashed(run=self.run, attempt=self.attempt, step=step, hashes=dict(hashes)))

    def on_evaluation(self, step: int, outputs: Mapping[str, float]) -> None:
        """Report the evaluation to the broker."""
        self.report(Evaluated(run=self.run, attempt=self.attempt, step=step, outputs=dict(outputs)))

    def on_text(self, tokens: Sequence[int]) -> None:
        """Report the generated text to the broker."""
        self.report(Generated(run=self.run, attempt=self.attempt, text=self.feed.decode(tokens)))

    def on_note(self, text: str, *, detail: bool = False) -> None:
        """Show a line to people here and to all who watch the run."""
        self.note(text, detail=detail)

    def on_helper_gone(self, text: str) -> None:
        """Show a line to people here."""
        self.log(Detail(f"run {self.run}: {text}"))

    def on_trace(self, spans: Sequence[Span], lost: int) -> None:
        """Send spans to the broker, which stores them in the run's folder."""
        self.observer.spans(self.run, spans)
        names, packed = pack_spans(spans)
        offset, self.offset = self.offset, None  # reported once
        trace = Traced(
            run=self.run,
            attempt=self.attempt,
            names=tuple(names),
            spans=packed,
            lost=lost,
            clock=None if offset is None else (offset.seconds, offset.error),
            links=link_items(self.links()),
        )
        self.report(trace)
