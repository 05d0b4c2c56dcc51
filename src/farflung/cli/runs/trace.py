"""``farflung trace``: where the time of a run went, and the trace as a file for Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from farflung.cli.completion import complete_run
from farflung.cli.home import run_folder
from farflung.cli.options import HomeOption, JsonOption, echo_json, to_write, write_text
from farflung.errors import InputError
from farflung.telemetry import ProcessTrace, RunFolder, TimeShares, perfetto, read_traces, time_shares
from farflung.telemetry.activity import Activity
from farflung.telemetry.terminal import print_table
from farflung.units import Seconds, counted

__all__ = ["register"]

_LEGEND = (
    "before: ahead of the first step. total = compute + transfer only + wait only + other. "
    "send, receive: also while the worker computes.\n"
    "hidden: share of send and receive while the worker computes. clock: offset to the broker's clock, ± largest error."
)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(trace)


def trace(
    run: Annotated[str, typer.Argument(help="Name of a run, or a run folder.", autocompletion=complete_run)],
    target: Annotated[Path | None, typer.Option("--perfetto", help="Write a trace file for ui.perfetto.dev.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where the time of a run went: computing, transfers, waiting, and the share of hidden transfers."""
    if target is not None:
        to_write(target)
    folder = run_folder(run, home)
    with Activity() as activity:
        activity.phase("reading the trace", silent=True)
        traces = read_traces(RunFolder(folder).events)
        if not traces:
            raise InputError(f"{folder} has no trace: the run made no step, or farflung was older")
        shares = time_shares(traces)
    if as_json:
        echo_json([{**asdict(row), "lost_spans": one.lost} for one, row in zip(traces, shares, strict=True)])
    else:
        _show(traces, shares)
    if target is not None:
        with Activity() as activity:
            activity.phase(f"writing {target}", silent=True)
            write_text(target, perfetto(traces))
        typer.echo(f"{target}: open it at https://ui.perfetto.dev", err=as_json)


def _show(traces: list[ProcessTrace], shares: list[TimeShares]) -> None:
    print_table(_table(traces, shares))
    typer.echo(_LEGEND)
    for one in traces:
        if one.lost:
            typer.echo(f"{one.process}: {counted(one.lost, 'span')} lost")


def _table(traces: list[ProcessTrace], shares: list[TimeShares]) -> Table:
    table = Table(
        "worker", "before", "total", "compute", "transfer only", "wait only", "other", "send", "receive", "hidden", "clock"
    )
    for trace_, row in zip(traces, shares, strict=True):
        parts = (row.compute, row.exposed, row.idle, row.other)
        cells = [f"{Seconds(value)} ({share}%)" for value, share in zip(parts, whole_percents(parts), strict=True)]
        hidden = f"{100 * row.hidden_share:.0f}%" if row.transfer else "-"
        clock = f"{1e3 * trace_.offset.seconds:+.1f} ms ±{1e3 * trace_.offset.error:.1f}"
        times = [str(Seconds(value)) for value in (row.before, row.total)]
        table.add_row(row.process, *times, *cells, str(Seconds(row.send)), str(Seconds(row.receive)), hidden, clock)
    return table


def whole_percents(parts: Sequence[float]) -> list[int]:
    """Return the parts in whole percent of their sum, rounded so that they add up to 100 (all 0: nothing to share)."""
    total = sum(parts)
    if total <= 0:
        return [0] * len(parts)
    exact = [100 * part / total for part in parts]
    found = [int(share) for share in exact]
    for index in sorted(range(len(parts)), key=lambda i: found[i] - exact[i])[: 100 - sum(found)]:
        found[index] += 1
    return found
