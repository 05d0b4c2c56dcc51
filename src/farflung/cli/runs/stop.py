"""``farflung stop``: end a run."""

from __future__ import annotations

from typing import Annotated

import typer

from farflung.cli.broker_connection import open_client
from farflung.cli.completion import complete_run
from farflung.cli.options import HomeOption, JsonOption, TicketOption, answer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(stop)


def stop(
    run: Annotated[str, typer.Argument(help="Name of the run.", autocompletion=complete_run)],
    ticket: TicketOption = None,
    now: Annotated[bool, typer.Option("--now", help="Stop immediately, without a checkpoint.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop a run after its current step, with a checkpoint."""
    client = open_client(ticket, home)
    try:
        over = client.stop(run, now=now)
    finally:
        client.close()
    text = f"{run}: stopped" if over or now else f"{run}: stopping after the current step (--now stops immediately)"
    answer(text, {"run": run, "state": "stopped" if over or now else "stopping"}, as_json=as_json)
