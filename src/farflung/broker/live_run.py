"""One run in the memory of a broker."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import Protocol

from farflung.broker.planning.attempt_start import Start
from farflung.broker.planning.planned import Planned
from farflung.broker.progress import Progress
from farflung.broker.records.backlog import Backlog
from farflung.broker.records.latest_records import LatestRecords
from farflung.broker.records.metrics_file import MetricsFile
from farflung.broker.records.report_limits import ReportLimits
from farflung.broker.records.run_log import RunLog
from farflung.broker.records.run_store import RunStore
from farflung.broker.verification.run_verification import RunVerification
from farflung.clock import monotonic
from farflung.cluster import Topology
from farflung.graph.ir import Graph
from farflung.job import JobSpec
from farflung.messages.commands import AttemptMessage
from farflung.messages.conversions.step_reports import StepReport
from farflung.messages.submission import Bundle
from farflung.messages.watching import Note
from farflung.plan import Plan
from farflung.protocol.retained_states import RetainedState
from farflung.telemetry.attempt_record import AttemptRecord
from farflung.telemetry.records import Record, RelayedRecord, RunResult

__all__ = [
    "Attempt",
    "AttemptedRun",
    "HelpedRun",
    "LiveRun",
    "RunRecords",
    "Submission",
    "TrainingTimes",
    "WaitingWorker",
    "WorkerFacts",
    "new_run",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The current attempt of a run. The whole value is replaced when a new plan takes effect.

    ``number``: the number of its plan (0: there was no plan yet). ``planned_at``: monotonic seconds.
    """

    number: int = 0
    #: The step with which it begins.
    first_step: int = 0
    planned: Planned | None = None
    planned_at: float = 0.0
    #: What all workers receive before the attempt begins.
    preparation: AttemptMessage | None = None
    progress: Progress | None = None
    verification: RunVerification | None = None
    start: Start | None = None


@dataclass(slots=True, kw_only=True)
class TrainingTimes:
    """When a run trained, and how far it came. Times are monotonic seconds."""

    #: When its first attempt began to train, minus the time before a restart of the broker (None: none has).
    started: float | None = None
    #: The number of the last attempt that began to train.
    begun: int = 0
    #: What ended the last attempt (empty: nothing did), and when.
    lost: str = ""
    lost_at: float = 0.0
    #: One above the highest step that was ever made, including steps that are made again after a recovery.
    furthest: int = 0
    #: After a restart of the broker: the number of steps on record.
    recorded: int = 0
    #: Seconds of training before the restart.
    elapsed: float = 0.0

    def begin(self, attempt: int, now: float) -> float:
        """Attempt number ``attempt`` begins to train at ``now``. Return when the first one began."""
        self.begun = attempt
        self.started = now if self.started is None else self.started
        return self.started

    def lose(self, cause: str) -> None:
        """The attempt has ended by ``cause``. A pause that has begun before goes on."""
        if not self.lost:
            self.lost_at = monotonic()
        self.lost = cause

    def recovered(self) -> None:
        """Training goes on after what ended the last attempt."""
        self.lost = ""

    def advance(self, step: int) -> None:
        """``step`` was made."""
        self.furthest = max(self.furthest, step + 1)

    def restore(self, recorded: int) -> None:
        """``recorded`` steps are on record."""
        self.recorded = recorded
        self.furthest = max(self.furthest, recorded)

    def resume(self, attempts: int, elapsed: float, away: float, lost: str) -> None:
        """It had trained for ``elapsed`` seconds in ``attempts`` attempts when, ``away`` seconds ago, ``lost`` happened."""
        now = monotonic()
        self.begun, self.elapsed, self.started = attempts, elapsed, now - elapsed
        self.lost, self.lost_at = lost, now - away


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingWorker:
    """A worker waits for ``peers`` in plan number ``attempt``, since ``since`` (monotonic seconds)."""

    attempt: int
    peers: tuple[str, ...]
    since: float


@dataclass(slots=True)
class WorkerFacts:
    """What the workers of a run have reported (under ``RunTable.changed``)."""

    #: worker -> fingerprints of its data
    fingerprints: dict[str, Mapping[str, str]] = field(default_factory=dict)
    #: Workers that measured their device for this run.
    measured: set[str] = field(default_factory=set)
    #: worker -> what it waits for
    waits: dict[str, WaitingWorker] = field(default_factory=dict)
    #: worker -> bytes of data that it has fetched from a store
    fetched: dict[str, int] = field(default_factory=dict)
    #: worker -> states that it retains since the last loss
    retained: dict[str, list[RetainedState]] = field(default_factory=dict)
    #: worker -> step -> state -> hash of its newest copies, as it reports them. The last reports come last.
    copied: dict[str, dict[int, Mapping[str, str]]] = field(default_factory=dict)
    #: Workers that others blame for what they sent: their copies are not used.
    blamed: set[str] = field(default_factory=set)
    #: worker -> reports of steps that a dead worker may not have reported
    step_reports: dict[str, list[StepReport]] = field(default_factory=dict)
    #: States after this step are not trusted, so the next attempt begins with a checkpoint from before (None: all are trusted).
    distrusted: int | None = None
    #: The secret from which the draws of verified units come. A restarted broker has another one.
    secret: str = field(default_factory=lambda: token_hex(16))

    def retain_measured(self, names: Iterable[str]) -> None:
        """Only the workers ``names`` count as measured."""
        self.measured = set(names)

    def distrust(self, step: int) -> None:
        """Do not trust states after ``step``, nor after an earlier step that was reported before."""
        self.distrusted = step if self.distrusted is None else min(self.distrusted, step)

    def take_distrusted(self) -> int | None:
        """Return ``distrusted``; the next attempt begins with states that are trusted."""
        step, self.distrusted = self.distrusted, None
        return step

    def copy_hashes(self) -> dict[int, dict[str, str]]:
        """Return the hashes of copies: step -> state -> hash."""
        found: dict[int, dict[str, str]] = {}
        for step, hashes in chain.from_iterable(steps.items() for steps in self.copied.values()):
            found.setdefault(step, {}).update(hashes)
        return found


class RunRecords:
    """The records of one run: on disk, for watchers, and the newest ones for the status."""

    def __init__(self, store: RunStore, *, lines: int = 0) -> None:
        """``lines``: the number of records in the metrics file."""
        metrics = MetricsFile(store.folder, self._warn, lines=lines)
        self.log = RunLog(metrics.older, records=lines)
        self.latest = LatestRecords()
        #: Records wait here while the disk is full.
        self.unwritten: Backlog[Record | RelayedRecord | AttemptRecord] = Backlog(metrics.append, self._warn)

    def _warn(self, text: str) -> None:
        self.log.mark(Note(text=f"warning: {text}"))


@dataclass(slots=True, kw_only=True)
class Submission:
    """Who submitted a run (its name as a client), and what.

    ``bundle`` (large) is dropped when the run is over, and while it waits for its first plan: its file has it.
    """

    submitter: str
    bundle: Bundle | None
    #: Whether the process that submitted it has watched it.
    attended: bool = False

    def watched_by(self, name: str) -> None:
        """The client ``name`` watches the run."""
        self.attended = self.attended or name == self.submitter

    def use_bundle(self, bundle: Bundle | None) -> None:
        """Store ``bundle``, read from its file again (None: drop it)."""
        self.bundle = bundle

    @property
    def topology(self) -> Topology | None:
        """The topology that was sent along (None: there is none, or the bundle was dropped)."""
        return None if self.bundle is None else self.bundle.topology


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpedRun:
    """What the choice of servers for helpers needs of a run. ``graph``: None if the bundle was dropped."""

    run: str
    planned: Planned | None
    graph: Graph | None


class AttemptedRun(Protocol):
    """What those need of a run that watch its current attempt. ``LiveRun`` is one."""

    run: str
    job: JobSpec
    submission: Submission
    attempt: Attempt
    workers: WorkerFacts
    result: RunResult | None

    @property
    def planned(self) -> Planned | None:
        """The plan of the current attempt."""

    @property
    def progress(self) -> Progress | None:
        """The step records of the current attempt."""


@dataclass(slots=True, kw_only=True)
class LiveRun:
    """A run that is not over, or that ended recently."""

    run: str
    job: JobSpec
    store: RunStore
    records: RunRecords
    submission: Submission
    #: The plan by which it trained before the broker was restarted.
    last_plan: Plan | None = None
    attempt: Attempt = field(default_factory=Attempt)
    times: TrainingTimes = field(default_factory=TrainingTimes)
    workers: WorkerFacts = field(default_factory=WorkerFacts)
    #: The newest generated text.
    sample: str = ""
    result: RunResult | None = None
    #: Guards ``store``. Lock order: ``files`` before ``RunTable.changed``.
    files: threading.Lock = field(default_factory=threading.Lock)

    def install(self, attempt: Attempt) -> None:
        """Make ``attempt`` the current one."""
        self.attempt = attempt

    def begin_at(self, step: int) -> None:
        """The first attempt begins with ``step``."""
        self.attempt = replace(self.attempt, first_step=step)

    def end(self, result: RunResult) -> None:
        """The run is over with ``result``. Nobody needs any more what workers prepare with."""
        self.result = result
        self.submission.use_bundle(None)
        self.attempt = replace(self.attempt, preparation=None)

    def show(self, sample: str) -> None:
        """Store the newest generated text."""
        self.sample = sample

    @property
    def log(self) -> RunLog:
        """What its watchers receive."""
        return self.records.log

    @property
    def planned(self) -> Planned | None:
        """The plan of the current attempt."""
        return self.attempt.planned

    @property
    def progress(self) -> Progress | None:
        """The step records of the current attempt."""
        return self.attempt.progress

    @property
    def helped(self) -> HelpedRun:
        """The run as helpers see it."""
        bundle = self.submission.bundle
        return HelpedRun(run=self.run, planned=self.planned, graph=None if bundle is None else bundle.graph)

    @property
    def running(self) -> Plan | None:
        """The plan that ran until now; workers retain states by it (None: there was none)."""
        return self.planned.plan if self.planned is not None else self.last_plan

    def limits(self, plan: Plan | None) -> ReportLimits:
        """Return what workers may report of an attempt by ``plan`` (``None``: it is not known)."""
        bundle = self.submission.bundle
        graph = None if bundle is None else bundle.eval_graph
        outputs = () if graph is None else [name for name, _ in graph.outputs]
        return ReportLimits(self.job, None if plan is None else len(plan.stages), outputs)

    @property
    def serves(self) -> bool:
        """Whether it serves a model; otherwise it trains one."""
        bundle = self.submission.bundle
        return bundle is not None and bundle.graph.serves

    @property
    def first_source(self) -> str:
        """Where first states come from: ``weights`` (sent by the submitter), ``file`` or ``init``."""
        source = "file" if self.job.weights.source == "file" else "init"
        return "weights" if self.store.weights.exists() else source


def new_run(bundle: Bundle, root: Path, submitter: str) -> LiveRun:
    """Return a run that was just submitted; its folder is ``root``."""
    store = RunStore(root)
    submission = Submission(submitter=submitter, bundle=bundle)
    return LiveRun(run=bundle.run, job=bundle.job, store=store, records=RunRecords(store), submission=submission)
