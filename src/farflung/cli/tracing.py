"""``farflung trace``: where the time of a run went, and the trace as a file for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from farflung.cli.completion import complete_run
from farflung.cli.home import run_folder
from farflung.cli.options import write_text
from farflung.errors import InputError
from farflung.telemetry import ProcessTrace, RunFolder, TimeShares, perfetto, read_traces, time_shares
from farflung.units import Seconds, counted

__all__ = ["register"]

_WIDTH = 128


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(trace)


def trace(
    run: Annotated[str, typer.Argument(help="A run of this machine's broker, or a run's folder.", autocompletion=complete_run)],
    target: Annotated[
        Path | None, typer.Option("--perfetto", help="Write the trace as JSON, to be opened at ui.perfetto.dev.")
    ] = None,
    home: Annotated[Path | None, typer.Option("--home", help="The broker's folder.")] = None,
) -> None:
    """Show where the time of a run went: computing, sending, receiving, waiting, and how much of the transfer was hidden."""
    folder = run_folder(run, home)
    traces = read_traces(RunFolder(folder).events)
    if not traces:
        raise InputError(f"{folder} holds no trace: the run made no step, or was made by an older farflung")
    Console(width=max(Console().width, _WIDTH)).print(_table(traces, time_shares(traces)))
    for one in traces:
        if one.lost:
            typer.echo(f"{one.process}: {counted(one.lost, 'span')} lost")
    if target is not None:
        write_text(target, perfetto(traces))
        typer.echo(f"{target}: open it at https://ui.perfetto.dev")


def _table(traces: list[ProcessTrace], shares: list[TimeShares]) -> Table:
    table = Table("worker", "before", "total", "compute", "send", "receive", "wait", "hidden", "clock")
    for trace_, row in zip(traces, shares, strict=True):
        cells = [f"{Seconds(value)} {_percent(value, row.total)}" for value in (row.compute, row.send, row.receive, row.wait)]
        hidden = f"{100 * row.hidden_share:.0f}%" if row.transfer else "-"
        clock = f"{1e3 * trace_.offset.seconds:+.1f} ms ±{1e3 * trace_.offset.error:.1f}"
        table.add_row(row.process, str(Seconds(row.before)), str(Seconds(row.total)), *cells, hidden, clock)
    return table


def _percent(part: float, whole: float) -> str:
    return f"({100 * part / whole:.0f}%)" if whole > 0 else ""
