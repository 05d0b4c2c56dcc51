"""Where this machine keeps what belongs to farflung, and which ticket it uses when none is given."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from farflung.client.connection import Client
from farflung.errors import DiskFull, FarflungError, InputError
from farflung.security import Ticket, new_key
from farflung.security.files import make_private_folder, write_private
from farflung.security.user_home import home, own_key
from farflung.worker.membership import join

__all__ = [
    "broker_folder",
    "default_name",
    "drop_ticket",
    "home",
    "keep_ticket",
    "known_broker",
    "members_folder",
    "open_client",
    "own_key",
    "run_folder",
    "worker_log",
]

_NAME = "submit-ticket"


def broker_folder(chosen: Path | None) -> Path:
    """The folder of this machine's broker: what ``--home`` says, or ``broker`` in ``home()``."""
    return chosen or home() / "broker"


def known_broker(chosen: Path | None) -> Path:
    """``broker_folder``, if a broker has been started with it.

    Raises:
        InputError: none has.
    """
    place = broker_folder(chosen)
    if not (place / "authority").is_dir():
        raise InputError(
            f"{place} is no broker's folder: run this on the broker's machine, with the --home that it was started with"
        )
    return place


def members_folder() -> Path:
    """Where the wishes for this user's workers lie."""
    return home() / "members"


def worker_log(name: str) -> Path:
    """The log of the worker ``name`` of this machine (which may not exist)."""
    return members_folder() / f"{name}.log"


def run_folder(run: str, broker: Path | None = None) -> Path:
    """The folder of a run, given by its name at this machine's broker (whose folder is ``broker``) or by its path.

    Raises:
        InputError: there is none.
    """
    runs = broker_folder(broker) / "runs"
    found = next((place for place in (runs / run, Path(run)) if place.is_dir()), None)
    if found is None and Path(run).is_file():
        raise InputError(f"{run!r} is a file: name a run, or the folder of one")
    if found is None:
        known = ", ".join(sorted(found.name for found in runs.iterdir())[-8:]) if runs.is_dir() else ""
        raise InputError(f"there is no run {run!r} in {runs}, and no such folder; runs there: {known or 'none'}")
    return found


def keep_ticket(ticket: Ticket, folder: Path) -> Path:
    """Keep the owner's ticket in the broker's folder, so that commands on this machine need none."""
    make_private_folder(folder)
    write_private(folder / _NAME, str(ticket).encode())
    return folder / _NAME


def drop_ticket(ticket: Ticket, folder: Path) -> None:
    """Remove the kept ticket if it is still this one (the broker that it leads to has ended)."""
    path = folder / _NAME
    if path.is_file() and path.read_text(encoding="ascii", errors="replace") == str(ticket):
        path.unlink()


def default_name(role: str) -> str:
    """A member name from this machine's host name and process id."""
    host = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-") or "host"
    return f"{host[:40]}-{role}-{os.getpid()}"


def open_client(ticket: str | None, folder: Path | None = None, *, reads: bool = False) -> Client:
    """Join as a client, with the given ticket or the one that the broker whose folder is ``folder`` keeps there.

    ``reads``: the command changes nothing, so it works on a full disk without a key of this user.

    Raises:
        InputError: there is neither.
        FarflungError: the ticket is no good or the broker is not there; where a kept ticket lies is said.
    """
    if ticket is not None:
        return _join(ticket, lasting=not reads)
    path = broker_folder(folder) / _NAME
    if not path.exists() and (path.parent / "authority").is_dir():
        raise InputError(
            f"no broker runs with the folder {path.parent}: start it (farflung broker), "
            "or reach a broker elsewhere with --ticket, or name another folder with --home"
        )
    if not path.exists():
        raise InputError(
            "no ticket: pass --ticket (the broker prints a submit ticket when it starts), or run this on the broker's machine "
            f"while it runs (looked for {path}; --home names another broker's folder)"
        )
    try:
        return _join(path.read_text(encoding="ascii", errors="replace"), lasting=False)
    except FarflungError as error:
        raise type(error)(f"{error} (no --ticket was given: this is the ticket that a broker left in {path})") from error


def _join(text: str, *, lasting: bool) -> Client:
    """``lasting``: the broker has to know this user again. It does not for the owner's ticket, which stands above all keys."""
    try:
        key = own_key()
    except DiskFull:
        if lasting:
            raise
        key = new_key()
    return Client(join(Ticket.parse(text), name=default_name("client"), role="client", key=key))
