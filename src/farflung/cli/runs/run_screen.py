"""The live screen of a run: progress, loss, machines, links and events, in whatever space the terminal has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from farflung.cli.runs.run_view import RunView
from farflung.clock import monotonic
from farflung.foreign_text import printable
from farflung.telemetry.records import StepRecord
from farflung.units import Bytes, Seconds, counted

__all__ = ["RunScreen"]

#: Characters of a machine's bar when it computes all the time.
_BAR = 20
#: Lines that the head and the events keep at least, and rows of links that are shown at most.
_HEAD, _EVENTS, _MAX_LINKS = 6, 4, 12


class RunScreen:
    """Draws a ``RunView``. Its texts are never read as markup, and no line is wider than the terminal."""

    def __init__(self, view: RunView, title: str = "") -> None:
        """``title``: what the first line begins with, the name of the run."""
        self._view, self._title = view, title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the parts, those that matter most first, as long as there is space."""
        width, left = options.max_width, options.height or console.height
        yield from self._head(width, ascii_only=options.ascii_only)
        left -= _HEAD
        for title, table in self._tables():
            rows = table.row_count + 2
            if rows <= left - _EVENTS:
                yield Text(f"\n{title}", style="bold")
                yield table
                left -= rows + 1
        yield from self._events(left - 2)

    def _head(self, width: int, *, ascii_only: bool) -> Iterable[Text | Table]:
        """Yield title, progress and loss: ``_HEAD`` lines at most."""
        view, last = self._view, self._view.last
        names = "  ".join(one for one in (self._title, view.title, view.job) if one)
        yield _line((names, "bold"), f"   {counted(len(view.machines), 'machine')}" if view.machines else "")
        if last is not None:
            share = (last.step + 1) / max(view.steps, 1)
            yield _line("  ".join(view.pace()), f"   {share:.0%}")
            bar = Table.grid()  # a bar alone has no line end
            bar.add_row(ProgressBar(total=max(view.steps, 1), completed=last.step + 1, width=width))
            yield bar
            label = f"loss {last.loss:.4f} "
            yield _line(label, (view.curve.bars(max(width - len(label) - 1, 1), ascii_only=ascii_only), "cyan"))
            yield _line(("  ".join(view.detail()), "dim"))
        if view.phase:
            yield _line((f"{view.phase}, {monotonic() - view.since:.0f} s", "yellow"))

    def _tables(self) -> Iterable[tuple[str, Table]]:
        """Yield the tables, the most important one first."""
        last = self._view.last
        if self._view.planned is not None:
            yield "machines", self._machines(last)
        if last is not None and last.link_bytes:
            yield "links", self._links(last)

    def _machines(self, record: StepRecord | None) -> Table:
        """What each machine of the plan computes, and for how long in the last step."""
        table = _table("machine", "stages", "<computes/step", "<share of step", "")
        view, busy = self._view, {} if record is None else record.busy_seconds
        assert view.planned is not None
        plan = view.planned.plan
        for name in plan.devices:
            stages = [stage.index for stage in plan.stages_of(name)]
            seconds = sum(busy.get(stage, 0.0) for stage in stages)
            share = min(seconds / record.seconds, 1.0) if record is not None and record.seconds > 0 else 0.0
            computed: tuple[str, str, str] = ("", "", view.state_of(name))
            if record is not None:
                computed = (str(Seconds(seconds)), f"{share:.0%}", "━" * round(_BAR * share))
            table.add_row(_line(printable(name)), _line(_numbers(stages)), *computed)
        return table

    def _links(self, record: StepRecord) -> Table:
        """The bytes that each link carried in the last step, what the codec saved, and what it cost."""
        dense = {link: record.dense_bytes.get(link, count) for link, count in record.link_bytes.items()}
        saves = any(dense[link] > 1.05 * count for link, count in record.link_bytes.items())
        coded = ("<encode + decode", "<codec's error") if record.codecs else ()
        table = _table("from", "to", "<bytes/step", *(("<without codec",) if saves else ()), *coded)
        busiest = sorted(record.link_bytes, key=lambda link: -record.link_bytes[link])[:_MAX_LINKS]
        for source, target in sorted(busiest):
            count, before = record.link_bytes[source, target], dense[source, target]
            saved = f"{Bytes(before)} ({before / count:.1f} x)" if count and before > 1.05 * count else ""
            ends = [_line(f"{stage}{self._view.place(stage)}") for stage in (source, target)]
            if source == target:
                ends = [_line(f"{source}, replicas"), _line("each other")]
            row: list[str | Text] = [*ends, str(Bytes(count)), *([saved] if saves else [])]
            table.add_row(*row, *(self._coding(record, (source, target)) if coded else []))
        if len(record.link_bytes) > _MAX_LINKS:
            table.add_row(f"and {len(record.link_bytes) - _MAX_LINKS} more")
        return table

    def _coding(self, record: StepRecord, link: tuple[int, int]) -> list[str]:
        """Seconds of a step's encoding and decoding, and the error of the values as it was measured last."""
        use, error = record.codecs.get(link), self._view.errors.get(link)
        seconds = "" if use is None else str(Seconds(use.encode_seconds + use.decode_seconds))
        return [seconds, "" if error is None else f"{error:.1%}"]

    def _events(self, rows: int) -> Iterable[Text]:
        """Yield the newest events, the newest at the end, each on one line with the number of steps before it."""
        found = [(step, text.splitlines() or [""]) for step, text in list(self._view.events)[-max(rows, 1) :]]
        if found:
            yield Text("\nevents", style="bold")
        for step, lines in found:
            more = f" (and {counted(len(lines) - 1, 'line')})" if len(lines) > 1 else ""
            yield _line((f"step {step:>6}  ", "dim"), lines[0] + more)


def _line(*parts: str | tuple[str, str]) -> Text:
    """Return one line that is cut at the width of the terminal."""
    text = Text.assemble(*parts)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _table(*columns: str) -> Table:
    """Return a table without a frame; ``<`` before a column's name aligns the column to the right."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in columns:
        table.add_column(name.removeprefix("<"), justify="right" if name.startswith("<") else "left", no_wrap=True)
    return table


def _numbers(stages: Sequence[int]) -> str:
    """Return the numbers of stages; neighbors as a range."""
    if len(stages) > 2 and stages[-1] - stages[0] == len(stages) - 1:
        return f"{stages[0]} to {stages[-1]}"
    return ", ".join(map(str, stages))
