"""The progress of a run: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from farflung.client.control import ControlClient
from farflung.client.planned_run import PlannedRun
from farflung.clock import monotonic
from farflung.errors import TrainingError
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
from farflung.units import Bytes, Seconds, counted

__all__ = ["RunView", "say", "show_run"]

_RECENT = 10
_MAX_LINKS = 12


def say(console: Console, text: str, style: str = "") -> None:
    """Print ``text`` with its own line ends only: rich would break lines at 80 columns where the output is a file."""
    console.print(Text(text, style=style), soft_wrap=True)


class RunView:
    """The state of a run, from the broker's frames, as text and as a live picture."""

    def __init__(self, title: str = "", *, plan: bool = True, verbose: bool = False) -> None:
        """``plan``: whether to print the plan, in one line. ``verbose``: print its tables, and notes for experts."""
        self.title = title
        self.verbose = verbose
        self.steps = 0
        self.planned: PlannedRun | None = None
        self.started = False
        self.last: StepRecord | None = None
        self.result: RunResult | None = None
        self.total_bytes = 0
        self._tell_plan = plan
        #: (from, to) -> the error that was measured last
        self._errors: dict[tuple[int, int], float] = {}
        self._recent: list[float] = []
        #: What the run is busy with while no step is made, since when, and the spinner before it.
        self._phase, self._since = "waiting for workers", monotonic()
        self._spinner = Spinner("dots")
        #: Workers that are ready for the plan.
        self._ready: set[str] = set()

    def take(self, message: Message) -> str | None:
        """Learn from a message of the broker; a text is worth lines of its own."""
        match message:
            case JobInfo(steps=steps):
                self.steps = steps
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
                self._phase = f"preparing the workers: {len(self._ready)} of {len(self.planned.plan.devices)} are ready"
            case Started(seconds=took):  # by the broker's clock: it may be long ago
                first, self.started = not self.started, True
                self._begin("waiting for the first step" if first else "waiting for the next step")
                return f"the workers are ready after {Seconds(took)}; training starts" if first else None
        return None

    def _begin(self, phase: str) -> None:
        self._phase, self._since = phase, monotonic()

    def _plan_text(self, planned: PlannedRun) -> str | None:
        return printable(planned.explanation if self.verbose else planned.summary) if self._tell_plan else None

    def _record(self, line: str) -> str | None:
        record = read_record(line)
        if isinstance(record, StepRecord):
            self.last = record
            self.total_bytes += record.total_bytes
            self._errors |= {link: use.error for link, use in record.codecs.items() if use.error is not None}
            self._recent = [*self._recent[1 - _RECENT :], record.seconds]
            self._begin("" if record.step + 1 < self.steps else "finishing: last checkpoint and evaluation")
        elif isinstance(record, RecoveryRecord):
            return printable(f"the run {record}")
        elif isinstance(record, EvaluationRecord):
            extra = "" if record.perplexity is None else f", perplexity {record.perplexity:.2f}"
            extra += "" if record.accuracy is None else f", accuracy {record.accuracy:.1%}"
            return f"evaluation after step {record.step}: loss {record.loss:.4f}{extra}"
        return None

    @property
    def usual(self) -> float:
        """Median seconds of the last steps."""
        return statistics.median(self._recent) if self._recent else 0.0

    def line(self) -> str:
        """The state of the run in one line."""
        return "  ".join([*([self.title] if self.title else []), *self._pace(), *self._detail()])

    def _pace(self) -> list[str]:
        """Where the run stands and how fast it goes."""
        return [self._phase] if self.last is None else pace(self.last, self.steps, self.usual)

    def _detail(self) -> list[str]:
        """What moves, and what takes longest."""
        if self.last is None:
            return []
        last = self.last
        parts = [f"{last.tokens / self.usual:,.0f} tokens/s"] if last.tokens and self.usual > 0 else []
        parts.append(f"{Bytes(last.total_bytes)}/step")
        stage = last.slowest_stage
        if stage is not None and len(last.busy_seconds) > 1:
            parts.append(f"slowest stage {stage}{self._place(stage)}: computes {Seconds(last.busy_seconds[stage])}/step")
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

    def render(self) -> RenderableType:
        """The live picture."""
        picture = Table.grid()
        title = [(f"{self.title}  ", "bold")] if self.title else []
        if self.last is not None:
            picture.add_row(Text.assemble(*title, "  ".join(self._pace())))
            picture.add_row(Text("  ".join(self._detail()), style="dim"))
            picture.add_row(ProgressBar(total=max(self.steps, 1), completed=self.last.step + 1, width=60))
            if self.last.link_bytes:
                picture.add_row(self._links(self.last))
        if self._phase:
            waited = f"{self._phase}  {monotonic() - self._since:.0f} s"
            self._spinner.update(text=Text.assemble(*(title if self.last is None else []), waited))
            picture.add_row(self._spinner)
        return picture

    def _links(self, record: StepRecord) -> Table:
        dense = {link: record.dense_bytes.get(link, count) for link, count in record.link_bytes.items()}
        saves = any(dense[link] > 1.05 * count for link, count in record.link_bytes.items())
        table = Table(box=None, header_style="dim", pad_edge=False)
        coded = ("encode + decode", "codec's error") if record.codecs else ()
        for name in ("from", "to", "bytes/step", *(("without codec",) if saves else ()), *coded):
            table.add_column(name, justify="left" if name in ("from", "to") else "right")
        busiest = sorted(record.link_bytes, key=lambda link: -record.link_bytes[link])[:_MAX_LINKS]
        for source, target in sorted(busiest):
            count, before = record.link_bytes[source, target], dense[source, target]
            saved = f"{Bytes(before)} ({before / count:.1f} x)" if count and before > 1.05 * count else ""
            ends = [f"{stage}{self._place(stage)}" for stage in (source, target)]
            if source == target:
                ends = [f"{source}, replicas", "each other"]
            row = [*ends, str(Bytes(count)), *([saved] if saves else [])]
            table.add_row(*row, *(self._coding(record, (source, target)) if coded else []))
        if len(record.link_bytes) > _MAX_LINKS:
            table.add_row(f"and {len(record.link_bytes) - _MAX_LINKS} more")
        return table

    def _coding(self, record: StepRecord, link: tuple[int, int]) -> list[str]:
        """Seconds of a step's encoding and decoding, and the error of the values as it was measured last."""
        use, error = record.codecs.get(link), self._errors.get(link)
        seconds = "" if use is None else str(Seconds(use.encode_seconds + use.decode_seconds))
        return [seconds, "" if error is None else f"{error:.1%}"]

    def _place(self, stage: int) -> str:
        stages = self.planned.plan.stages if self.planned else ()
        return f" {stages[stage].device}" if stage < len(stages) else ""


def printable(text: str) -> str:
    """Return ``text`` without the characters that control a terminal (a model may write any byte)."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in text.expandtabs(4))


def show_run(
    client: ControlClient,
    run: str,
    *,
    console: Console | None = None,
    view: RunView | None = None,
    on_step: Callable[[StepRecord], None] = lambda record: None,
) -> RunResult:
    """Show ``run`` until it is over; Ctrl-C stops watching, not the run. A run that is over shows its end at once.

    ``on_step`` is called with each new record.

    Raises:
        TrainingError: the run failed; the text is its cause.
        ConnectionLost: the broker went away.
    """
    console = console or Console()
    view = view or RunView()
    if console.is_terminal:
        with Live(get_renderable=view.render, console=console, refresh_per_second=8, transient=True):
            for _ in _changes(client, run, view, console, on_step):
                pass
        if view.last is not None:
            say(console, view.line())
    else:
        _plain(client, run, view, console, on_step)
    result = view.result
    if result is None:
        raise TrainingError(f"{run}: the broker sends no more news of this run; see farflung status")
    if result.status == "failed":
        raise TrainingError(f"{run} failed after {counted(result.steps, 'step')}: {result.cause}")
    where = f"; checkpoint {result.checkpoint}" if result.checkpoint else ""
    say(console, f"{run}: {result.status} after {counted(result.steps, 'step')} in {Seconds(result.seconds)}{where}")
    return result


def _changes(
    client: ControlClient, run: str, view: RunView, console: Console, on_step: Callable[[StepRecord], None]
) -> Iterator[Message]:
    """Yield the broker's messages. The view has processed each of them."""
    for message in client.watch(run):
        before = view.last
        text = view.take(message)
        if text:
            say(console, text)
        if view.last is not None and view.last is not before:
            on_step(view.last)
        yield message


def _plain(client: ControlClient, run: str, view: RunView, console: Console, on_step: Callable[[StepRecord], None]) -> None:
    """Print a line for each tenth of the run, where there is no terminal."""
    shown = 0
    for message in _changes(client, run, view, console, on_step):
        if isinstance(message, RecordLine) and view.last is not None and view.steps:
            tenth = (view.last.step + 1) * 10 // view.steps
            if tenth > shown:
                shown = tenth
                say(console, view.line())
