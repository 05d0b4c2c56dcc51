"""``farflung ledger``: what each machine contributed to runs, and what that cost."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from farflung.cli.completion import complete_run
from farflung.cli.home import broker_folder, newest_runs, run_folder
from farflung.cli.options import HomeOption, to_write, write_text
from farflung.errors import InputError
from farflung.ledger import COLUMNS, RunLedger, ledger_csv, ledger_of, sum_of, totals
from farflung.ledger.words import HEAD, meanings, run_line, total_rows
from farflung.plan.report.estimate_tables import table
from farflung.simulator import PriceTable
from farflung.telemetry import RunFolder
from farflung.telemetry.activity import Activity

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(ledger)


def ledger(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Names of runs or run folders (default: all runs of the broker).", autocompletion=complete_run),
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(help="Price file (TOML) with watts, rent and price per GB (default: prices.toml of the broker)."),
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write one line per run and machine to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    home: HomeOption = None,
) -> None:
    """Show what each machine contributed to runs: samples, work, bytes, hours, energy and cost."""
    if csv is not None:
        to_write(csv)
    folders = [run_folder(run, home) for run in runs] if runs else _all_runs(broker_folder(home))
    usual = broker_folder(home) / "prices.toml"
    chosen = prices if prices is not None or not usual.is_file() else usual
    table_of_prices = None if chosen is None else PriceTable.from_toml(chosen)
    found = []
    with Activity() as activity:
        for number, folder in enumerate(folders, start=1):
            activity.phase(f"reading run {number} of {len(folders)}", silent=True)
            found.append(ledger_of(RunFolder(folder), table_of_prices))
    if csv is not None:
        write_text(csv, ledger_csv(found, COLUMNS))
    if as_json:
        typer.echo(json.dumps(_body(found), indent=1))
        return
    for one in found:
        typer.echo(run_line(one))
    typer.echo("\n" + table([HEAD, *total_rows(found)]))
    typer.echo("\n" + "\n".join(f"{title}: {meaning}" for title, meaning in meanings()))


def _all_runs(broker: Path) -> list[Path]:
    """Return the folders of all runs of a broker.

    Raises:
        InputError: there are none.
    """
    runs = broker / "runs"
    found = sorted(place for place in runs.iterdir() if (place / "job.json").is_file()) if runs.is_dir() else []
    if not found:
        raise InputError(
            f"there are no runs in {runs}: name run folders, or the broker's --home; runs there: {newest_runs(runs)}"
        )
    return found


def _body(found: list[RunLedger]) -> dict[str, object]:
    """Return the ledgers as plain values."""
    machines = totals(found)
    return {
        "columns": [asdict(column) for column in COLUMNS],
        "runs": [asdict(one) for one in found],
        "machines": [asdict(entry) | {"cost": entry.cost} for entry in machines],
        "total": asdict(sum_of(machines))
        | {"samples": sum(one.samples for one in found), "wasted": sum(one.wasted for one in found)},
    }
