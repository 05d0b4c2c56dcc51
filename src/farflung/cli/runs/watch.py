"""``farflung watch``: follow a run. ``follow_run`` also serves ``farflung submit``."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console

from farflung.cli.broker_connection import open_client
from farflung.cli.completion import complete_run
from farflung.cli.options import EMULATED, HomeOption, RetryOption, TicketOption, VerboseOption, quantity
from farflung.cli.runs.run_view import RunView, show_run
from farflung.cli.waiting_reason import waiting_line
from farflung.client.control import ControlClient
from farflung.errors import Stopped, TrainingError
from farflung.telemetry.activity import Activity
from farflung.units import Seconds

__all__ = ["follow_run", "register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(watch)


def watch(
    run: Annotated[str, typer.Argument(help="Name of the run.", autocompletion=complete_run)],
    ticket: TicketOption = None,
    retry: RetryOption = "10 min",
    home: HomeOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Follow a run until it ends."""
    patience = quantity(Seconds, retry, "--retry")
    client = open_client(ticket, home, reads=True, activity=Activity(Console()))
    client.patience = patience
    try:
        if line := waiting_line(client, run):
            typer.echo(line)
        follow_run(client, run, verbose=verbose)
    finally:
        client.close()


def follow_run(client: ControlClient, run: str, *, verbose: bool = False) -> None:
    """Show ``run`` until it is over.

    Raises:
        Stopped: the user had enough; the run goes on.
        FarflungError: the run failed; the class is that of its cause.
    """
    try:
        show_run(client, run, view=RunView(verbose=verbose))
    except TrainingError as error:
        raise client.failure(run, str(error)) from error
    except KeyboardInterrupt:
        if os.environ.get(EMULATED):
            raise Stopped(f"{run} ends with the emulated cluster; checkpoint.resume continues from its checkpoint") from None
        raise Stopped(f"{run} continues without you: farflung watch {run} follows it, farflung stop {run} stops it") from None
