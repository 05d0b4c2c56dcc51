"""``farflung pause``, ``resume``, ``drain``, ``leave``, ``limit``: what a machine's owner wants of the worker on it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from farflung.cli.broker_connection import open_client
from farflung.cli.completion import complete_worker
from farflung.cli.home import broker_folder, members_folder, ticket_file
from farflung.cli.options import HomeOption, JsonOption, answer, quantity
from farflung.errors import InputError
from farflung.units import Bytes, BytesPerSecond

if TYPE_CHECKING:
    from farflung.messages.schema import Parting

__all__ = ["register"]

NameArgument = Annotated[
    str | None, typer.Argument(help="The worker's name (default: the one that runs here).", autocompletion=complete_worker)
]
TicketOption = Annotated[
    str | None, typer.Option("--ticket", help="For a worker on another machine: an owner's ticket, or yours (also @FILE).")
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    for command in (pause, resume, drain, leave, limit):
        app.command()(command)


def pause(name: NameArgument = None, ticket: TicketOption = None, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Pause a worker until `farflung resume`. Its run continues without it after the current step."""
    found = _wish("pause", name, ticket, home, paused=True)
    answer(
        f"{found}: paused; a run that it works on moves to others; farflung resume ends the pause",
        {"worker": found, "paused": True},
        as_json=as_json,
    )


def resume(name: NameArgument = None, ticket: TicketOption = None, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Let a paused worker take part again."""
    found = _wish("resume", name, ticket, home, paused=False)
    answer(f"{found}: no longer paused", {"worker": found, "paused": False}, as_json=as_json)


def drain(name: NameArgument = None, ticket: TicketOption = None, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Let a worker finish its run, take no other run, and leave."""
    found = _wish("drain", name, ticket, home, parting="drain")
    answer(
        f"{found}: leaves after the run that it works on, at once if there is none",
        {"worker": found, "parting": "drain"},
        as_json=as_json,
    )


def leave(name: NameArgument = None, ticket: TicketOption = None, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Let a worker leave. Its run continues without it after the current step."""
    found = _wish("leave", name, ticket, home, parting="leave")
    answer(
        f"{found}: leaves, after the current step if it works on a run", {"worker": found, "parting": "leave"}, as_json=as_json
    )


def limit(
    name: NameArgument = None,
    hours: Annotated[str | None, typer.Option(help='Working hours, e.g. "22:00-07:00" ("" removes the limit).')] = None,
    memory: Annotated[str | None, typer.Option(help='Memory for training, e.g. "4 GB".')] = None,
    bandwidth: Annotated[
        str | None, typer.Option(help='Limit of the upload rate, e.g. "20 Mbit/s" ("" removes the limit).')
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Limit what a worker on this machine may use. The limits survive a restart of the worker."""
    from farflung.worker.owner_limits import OwnerLimitsFile, known_workers

    changes: dict[str, object] = {} if hours is None else {"hours": hours}
    if memory is not None:
        changes["memory"] = float(quantity(Bytes, memory, "--memory")) if memory else None
    if bandwidth is not None:
        changes["bandwidth"] = float(quantity(BytesPerSecond, bandwidth, "--bandwidth")) if bandwidth else None
    chosen, here = name or _only("limit"), [one.name for one in known_workers(members_folder())]
    limits = OwnerLimitsFile(members_folder(), chosen).change(**changes)
    if chosen not in here:
        known = f" (known here: {', '.join(here)})" if here else ""
        typer.echo(f"no worker {chosen!r} has joined from this machine yet{known}: the limits hold when one does", err=True)
    answer(f"{chosen}: {limits}", {"worker": chosen, **asdict(limits)}, as_json=as_json)


def _wish(command: str, name: str | None, ticket: str | None, home: Path | None, **changes: bool | str) -> str:
    """Change the limits of a worker, on this machine or through the broker. Return the worker's name.

    Raises:
        InputError: there is no worker of that name.
    """
    from farflung.worker.owner_limits import OwnerLimitsFile

    if ticket is None:
        chosen = name or _only(command)
        limits = OwnerLimitsFile(members_folder(), chosen)
        if limits.runs or (limits.path.exists() and "paused" in changes and home is None):
            limits.change(**changes)
            return chosen
        if name is not None and home is None and not ticket_file(broker_folder(None)).exists():
            raise InputError(_not_here(command, chosen))
    if name is None:
        raise InputError(f"name the worker: farflung {command} NAME --ticket TICKET (farflung status lists the workers)")
    client = open_client(ticket, home)
    try:
        paused, parting = cast("bool | None", changes.get("paused")), cast("Parting | None", changes.get("parting"))
        client.wish(name, paused=paused, parting=parting)
    finally:
        client.close()
    return name


def _not_here(command: str, name: str) -> str:
    """Return why the worker ``name`` is not found on this machine, where no broker runs."""
    from farflung.worker.owner_limits import known_workers

    here = known_workers(members_folder())
    running = ", ".join(one.name for one in here if one.runs)
    known = f"known here: {', '.join(one.name for one in here)}" if here else "none has joined from here"
    there = f"running here: {running}" if running else f"none runs here ({known})"
    return f"no worker {name!r} runs on this machine; {there}; of another machine: farflung {command} NAME --ticket TICKET"


def _only(command: str) -> str:
    """Return the name of the worker that runs on this machine.

    Raises:
        InputError: there is none, or more than one.
    """
    from farflung.worker.owner_limits import known_workers

    running = [one.name for one in known_workers(members_folder()) if one.runs]
    if not running and command == "limit":
        raise InputError("you run no worker on this machine: name the one that will join from here, farflung limit NAME")
    if not running:
        raise InputError(
            f"you run no worker on this machine: name a worker of another machine, farflung {command} NAME "
            "(farflung status lists them)"
        )
    if len(running) > 1:
        raise InputError(
            f"{len(running)} workers run on this machine ({', '.join(running)}): name one, e.g. farflung {command} {running[0]}"
        )
    return running[0]
