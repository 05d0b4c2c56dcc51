"""``farflung web``: the dashboard of a broker, or of finished runs."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated

import typer

from farflung.cli.broker_connection import join_broker
from farflung.cli.completion import complete_run
from farflung.cli.home import broker_folder, run_folder
from farflung.cli.options import HomeOption, JsonOption
from farflung.errors import InputError
from farflung.security.ticket_argument import parse_ticket

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(web)


def web(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Names of runs or run folders (default: the broker of this machine).", autocompletion=complete_run),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="Address to listen at, HOST:PORT (default: 127.0.0.1:7080, else a free port).")
    ] = None,
    folder: HomeOption = None,
    ticket: Annotated[
        str | None, typer.Option("--ticket", help="Owner or submit ticket, or @FILE (default: the broker on this machine).")
    ] = None,
    owner: Annotated[int | None, typer.Option("--socket", hidden=True, help="A socket that listens; for the broker.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show runs and machines in a browser, until Ctrl-C. If the broker serves a dashboard already, print a new link to it.

    With --ticket, open the dashboard of a broker on another machine.
    """
    from farflung.extras import require_web
    from farflung.telemetry.activity import Activity
    from farflung.web.serving.start import serve_broker, serve_owned, serve_runs, serve_tunnel

    if ticket is None:
        require_web()
    elif runs:
        raise InputError("--ticket shows the dashboard of a broker, and run folders are on this machine: leave one of them out")

    activity = Activity()

    def announce(link: str, serving: bool) -> None:
        activity.end()
        if listen is not None and not serving:
            typer.echo(f"note: --listen {listen} has no effect, because a dashboard of this broker is open already", err=True)
        text = f"dashboard: {link}\nPress Ctrl-C to stop the dashboard." if serving else f"the dashboard of this broker: {link}"
        typer.echo(json.dumps({"link": link, "serving": serving}) if as_json else text)

    with activity, suppress(KeyboardInterrupt):  # the normal end
        if owner is not None:
            serve_owned(owner, broker_folder(folder))
            return
        activity.phase("starting the dashboard", silent=True)
        if ticket is not None:
            serve_tunnel(join_broker(ticket, reads=True, activity=activity), parse_ticket(ticket), listen, announce)
        elif runs:
            serve_runs([run_folder(run, folder) for run in runs], listen, announce)
        else:
            place = broker_folder(folder)
            if not (place / "authority").is_dir():
                raise InputError(f"{place} is no broker's folder: start a broker, name its --home, or name run folders to show")
            serve_broker(place, listen, announce)
