"""What a broker holds of one run in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from farflung.broker.attempt_start import Start
from farflung.broker.planning import Planned
from farflung.broker.progress import Progress
from farflung.broker.records.backlog import Backlog
from farflung.broker.records.latest_records import LatestRecords
from farflung.broker.records.run_log import RunLog
from farflung.broker.records.run_store import RunStore
from farflung.clock import MonotonicClock
from farflung.errors import DataError
from farflung.job import JobSpec
from farflung.messages.step_reports import StepReport
from farflung.messages.submission import Bundle
from farflung.plan import Plan
from farflung.protocol.holdings import Holding
from farflung.telemetry.records import Record, RelayedRecord, RunResult
from farflung.wire.frames import Frame

__all__ = ["Holds", "LiveRun", "first_source", "new_run", "older_records"]


@dataclass(slots=True)
class LiveRun:
    """What the broker holds of a run in memory. ``bundle`` (large) goes when the run is over; ``files`` guards its store."""

    run: str
    job: JobSpec
    store: RunStore
    log: RunLog
    submitter: str
    bundle: Bundle | None
    first_step: int = 0
    committed: int = 0
    planned: Planned | None = None
    #: When the plan was made.
    planned_at: float = 0.0
    #: By which it ran when the broker ended, where it was started again since.
    last_plan: Plan | None = None
    preparation: Frame | None = None
    progress: Progress | None = None
    fingerprints: dict[str, Mapping[str, str]] = field(default_factory=dict)
    sample: str = ""
    started: float | None = None
    #: The number of the plan under which it runs (0: it has none yet).
    attempt: int = 0
    #: What ended the last attempt (empty: nothing did), and when.
    lost: str = ""
    lost_at: float = 0.0
    #: Steps that were ever made, those that will be made again included.
    furthest: int = 0
    #: When the broker was started again: the steps on record, and seconds of training before that.
    recorded: int = 0
    elapsed: float = 0.0
    #: The last attempt that began to train.
    begun: int = 0
    #: Where the attempt begins.
    start: Start | None = None
    #: What workers said they hold since the last loss, and the reports of steps that only they may know of.
    held: dict[str, list[Holding]] = field(default_factory=dict)
    told: list[StepReport] = field(default_factory=list)
    #: Whether the process that submitted it has watched it.
    attended: bool = False
    measured: set[str] = field(default_factory=set)
    result: RunResult | None = None
    latest: LatestRecords = field(default_factory=LatestRecords)
    files: threading.Lock = field(default_factory=threading.Lock)
    unwritten: Backlog[Record | RelayedRecord] = field(init=False)

    @property
    def running(self) -> Plan | None:
        """The plan that ran until now, by which workers hold what they hold (None: none did)."""
        return self.planned.plan if self.planned is not None else self.last_plan

    def __post_init__(self) -> None:
        """Records wait where the disk is full."""
        self.unwritten = Backlog(
            self.store.folder.append, lambda text: self.log.mark(Frame("note", {"text": f"warning: {text}"}))
        )

    def go_on(self, attempts: int, elapsed: float, away: float, lost: str) -> None:
        """It had trained for ``elapsed`` seconds in ``attempts`` attempts when, ``away`` seconds ago, ``lost`` happened."""
        now = MonotonicClock().now()
        self.elapsed = elapsed
        self.begun, self.started, self.lost, self.lost_at = attempts, now - elapsed, lost, now - away


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """What a worker that comes back still holds of ``run``, and its last reports; of plan number ``attempt``."""

    run: str
    attempt: int
    held: list[Holding]
    told: list[StepReport]


def older_records(store: RunStore) -> Callable[[int, int], list[str]]:
    """Reads records ``first`` to ``end`` back from the run's metrics file."""

    def read(first: int, end: int) -> list[str]:
        try:
            with store.folder.metrics.open(encoding="utf-8", errors="replace") as file:
                return list(islice(file, first, end))
        except OSError as error:
            raise DataError(f"cannot read {store.folder.metrics}: {error.strerror}") from None

    return read


def new_run(bundle: Bundle, root: Path, submitter: str) -> LiveRun:
    """A run that was just handed in; its folder is ``root``."""
    store = RunStore(root)
    log = RunLog(older_records(store))
    return LiveRun(run=bundle.run, job=bundle.job, store=store, log=log, submitter=submitter, bundle=bundle)


def first_source(live: LiveRun) -> str:
    """Where first states come from: ``weights`` (sent by the submitter), ``file`` or ``init``."""
    source = "file" if live.job.weights.source == "file" else "init"
    return "weights" if live.store.weights.exists() else source
