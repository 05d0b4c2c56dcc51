"""``farflung watch``: follow a run. ``follow_run`` also serves ``farflung submit``."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console

from farflung.cli.broker_connection import open_client
from farflung.cli.completion import complete_run
from farflung.cli.options import EMULATED, HomeOption, JsonOption, PlainOption, RetryOption, TicketOption, VerboseOption, quantity
from farflung.cli.runs.live_run import show_json, show_run
from farflung.cli.runs.run_view import RunView
from farflung.cli.waiting_reason import waiting_line
from farflung.client.control import ControlClient
from farflung.errors import Stopped, TrainingError
from farflung.telemetry.activity import Activity
from farflung.telemetry.terminal import terminal
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
    plain: PlainOption = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Follow a run until it ends: on a terminal a live screen, elsewhere lines. Ctrl-C stops watching, not the run."""
    patience = quantity(Seconds, retry, "--retry")
    console = terminal(plain=plain or as_json)
    client = open_client(ticket, home, reads=True, activity=Activity(console))
    client.patience = patience
    try:
        if not as_json and (line := waiting_line(client, run)):
            typer.echo(line)
        follow_run(client, run, console=None if as_json else console, verbose=verbose)
    finally:
        client.close()


def follow_run(client: ControlClient, run: str, *, console: Console | None, verbose: bool = False) -> None:
    """Show ``run`` on ``console`` until it is over (None: as lines of JSON on standard output).

    Raises:
        Stopped: the user had enough; the run goes on.
        FarflungError: the run failed; the class is that of its cause.
    """
    try:
        if console is None:
            show_json(client, run, typer.echo)
        else:
            show_run(client, run, console=console, view=RunView(verbose=verbose))
    except TrainingError as error:
        raise client.failure(run, str(error)) from error
    except KeyboardInterrupt:
        if os.environ.get(EMULATED):
            raise Stopped(f"{run} ends with the emulated cluster; checkpoint.resume continues from its checkpoint") from None
        raise Stopped(f"{run} continues without you: farflung watch {run} follows it, farflung stop {run} stops it") from None
