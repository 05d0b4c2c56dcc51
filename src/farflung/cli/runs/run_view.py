"""The state of a run, from the messages that its watchers receive, and the lines that describe it."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping

from farflung.cli.runs.loss_curve import LossCurve
from farflung.client.planned_run import PlannedRun
from farflung.clock import monotonic
from farflung.foreign_text import printable
from farflung.messages.schema import Message
from farflung.messages.watching import (
    CheckpointWritten,
    GeneratedText,
    JobInfo,
    MemberReady,
    Note,
    Planned,
    Planning,
    RecordLine,
    Result,
    Started,
)
from farflung.plan.report.summary import listed
from farflung.telemetry.activity import pace
from farflung.telemetry.records import EvaluationRecord, RecoveryRecord, RunResult, StepRecord, read_record
from farflung.units import Bytes, Seconds

__all__ = ["RunView"]

#: Steps whose median is the pace; events that are stored.
_RECENT, _EVENTS = 10, 50


class RunView:
    """The state of a run, from the broker's messages. One thread calls ``take`` and ``report``; another one may read."""

    def __init__(self, title: str = "", *, plan: bool = True, verbose: bool = False) -> None:
        """``plan``: whether to print the plan, in one line. ``verbose``: print its tables, and notes for experts."""
        self.title = printable(title)
        self.job = ""
        self.verbose = verbose
        self.steps = 0
        self.planned: PlannedRun | None = None
        self.started = False
        self.last: StepRecord | None = None
        self.result: RunResult | None = None
        self.total_bytes = 0
        self._tell_plan = plan
        #: (from, to) -> the codec's error that was measured last
        self.errors: Mapping[tuple[int, int], float] = {}
        self._recent: list[float] = []
        self.curve = LossCurve()
        #: The newest lines that ``report`` got, each with the number of steps before it.
        self.events: deque[tuple[int, str]] = deque(maxlen=_EVENTS)
        self.reported = 0
        #: What the run is busy with while no step is made, and since when.
        self.phase, self.since = "waiting for workers", monotonic()
        #: Workers that are ready for the plan.
        self._ready: set[str] = set()

    def report(self, text: str) -> None:
        """Add ``text`` to the events of the run."""
        self.reported += 1
        self.events.append((0 if self.last is None else self.last.step + 1, text))

    def take(self, message: Message) -> str | None:
        """Learn from a message of the broker; a text is worth lines of its own."""
        match message:
            case JobInfo(name=name, steps=steps):
                self.steps, self.job = steps, printable(name)
            case RecordLine(line=line):
                return self._record(line)
            case CheckpointWritten(step=step):
                return f"checkpoint after step {step}"
            case GeneratedText(text=text):
                return f"generated:\n{printable(text)}"
            case Note(text=text, detail=detail):
                return None if detail and not self.verbose else printable(text)
            case Result(result=result):
                self.result = RunResult.from_json(result)
            case _:
                return self._prepared(message)
        return None

    def _prepared(self, message: Message) -> str | None:
        """Take a message about the time before the first step (of the run, or after a loss)."""
        match message:
            case Planning(members=members):
                self._begin(f"planning for {listed(list(members))}")
            case Planned():
                self.planned = PlannedRun.of(message)
                self._ready.clear()
                self._begin("preparing the workers: weights and data")
                return self._plan_text(self.planned)
            case MemberReady(name=name) if self.planned is not None:
                self._ready.add(name)
                self.phase = f"preparing the workers: {len(self._ready)} of {len(self.planned.plan.devices)} are ready"
            case Started(seconds=took):  # by the broker's clock: it may be long ago
                first, self.started = not self.started, True
                self._begin("waiting for the first step" if first else "waiting for the next step")
                return f"the workers are ready after {Seconds(took)}; training starts" if first else None
        return None

    def _begin(self, phase: str) -> None:
        self.phase, self.since = phase, monotonic()

    def _plan_text(self, planned: PlannedRun) -> str | None:
        return printable(planned.explanation if self.verbose else planned.summary) if self._tell_plan else None

    def _record(self, line: str) -> str | None:
        record = read_record(line)
        if isinstance(record, StepRecord):
            self.last = record
            self.total_bytes += record.total_bytes
            self.curve.add(record.loss)
            self.errors = {**self.errors} | {link: use.error for link, use in record.codecs.items() if use.error is not None}
            self._recent = [*self._recent[1 - _RECENT :], record.seconds]
            self._begin("" if record.step + 1 < self.steps else "finishing: last checkpoint and evaluation")
        elif isinstance(record, RecoveryRecord):
            return printable(f"the run {record}")
        elif isinstance(record, EvaluationRecord):
            extra = "" if record.perplexity is None else f", perplexity {record.perplexity:.2f}"
            extra += "" if record.accuracy is None else f", accuracy {record.accuracy:.1%}"
            extra += "".join(f", {printable(name)} {value:.4g}" for name, value in record.metrics.items() if name != "accuracy")
            return f"evaluation after step {record.step}: loss {record.loss:.4f}{extra}"
        return None

    @property
    def usual(self) -> float:
        """Median seconds of the last steps."""
        return statistics.median(self._recent) if self._recent else 0.0

    def line(self) -> str:
        """The state of the run in one line."""
        return "  ".join([*([self.title] if self.title else []), *self.pace(), *self.detail()])

    @property
    def machines(self) -> list[str]:
        """The names of the machines of the plan."""
        return list(self.planned.plan.devices) if self.planned is not None else []

    def state_of(self, machine: str) -> str:
        """Return what ``machine`` does before the first step under a plan."""
        return "ready" if machine in self._ready else "preparing"

    def pace(self) -> list[str]:
        """Where the run stands and how fast it goes."""
        return [self.phase] if self.last is None else pace(self.last, self.steps, self.usual)

    def detail(self) -> list[str]:
        """What moves, and what takes longest."""
        if self.last is None:
            return []
        last = self.last
        parts = [f"{last.tokens / self.usual:,.0f} tokens/s"] if last.tokens and self.usual > 0 else []
        parts.append(f"{Bytes(last.total_bytes)}/step")
        stage = last.slowest_stage
        if stage is not None and len(last.busy_seconds) > 1:
            parts.append(f"slowest stage {stage}{self.place(stage)}: computes {Seconds(last.busy_seconds[stage])}/step")
        if last.skipped:
            parts.append("step skipped: loss is not a number")
        if self._rests(last):
            parts.append("a replica rests in this step (by_speed)")
        if last.divergence is not None:
            parts.append(f"replicas {last.divergence:.1%} apart")
        return parts

    def _rests(self, record: StepRecord) -> bool:
        """Whether a slower pipeline takes no local step: such a step has fewer samples."""
        plan = self.planned.plan if self.planned else None
        if plan is None or plan.sync is None or not plan.sync.local_steps:
            return False
        return record.samples < sum(plan.micro_batch_sizes)

    def place(self, stage: int) -> str:
        """Return the machine of ``stage`` after a space (empty: unknown)."""
        stages = self.planned.plan.stages if self.planned else ()
        return f" {printable(stages[stage].device)}" if stage < len(stages) else ""
