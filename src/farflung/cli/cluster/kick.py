"""``farflung kick``: the broker's owner bars a member."""

from __future__ import annotations

from typing import Annotated

import typer

from farflung.cli.broker_connection import open_client
from farflung.cli.completion import complete_worker
from farflung.cli.options import HomeOption, JsonOption, echo_json

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(kick)


def kick(
    name: Annotated[str, typer.Argument(help="Name of the worker or client.", autocompletion=complete_worker)],
    undo: Annotated[bool, typer.Option("--undo", help="Let the member join again, and out of quarantine.")] = False,
    ticket: Annotated[str | None, typer.Option("--ticket", help="An owner's ticket, from another machine (also @FILE).")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a member from the broker, and let its key join no more. A run that it works on continues without it."""
    client = open_client(ticket, home)
    try:
        found = client.kick(name, undo=undo)
    finally:
        client.close()
    if as_json:
        echo_json({"name": name, "barred": not undo, "removed": list(found.connected), "ticket": found.ticket})
        return
    if undo:
        typer.echo(f"{name}: may join again, and runs are planned for it")
        return
    typer.echo(f"{name}: its key can't join any more; removed workers: {', '.join(found.connected) or 'none'}")
    if found.ticket:
        typer.echo(f"Its owner may still have ticket {found.ticket}: farflung ticket revoke {found.ticket} ends that")
