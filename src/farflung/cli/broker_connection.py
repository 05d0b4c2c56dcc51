"""How a command reaches the broker: with the ticket that it was given, or with the one that this machine's broker left."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from farflung.cli.home import broker_folder, client_name, own_key, ticket_file
from farflung.client.control import ControlClient
from farflung.errors import DiskFull, FarflungError, InputError
from farflung.security import Ticket, new_key
from farflung.security.ticket_argument import parse_ticket
from farflung.worker.membership import Membership, join

if TYPE_CHECKING:
    from farflung.telemetry.activity import Activity

__all__ = ["join_broker", "open_client"]


def open_client(
    ticket: str | None, folder: Path | None = None, *, reads: bool = False, activity: Activity | None = None
) -> ControlClient:
    """Return a client of the broker; see ``join_broker``."""
    return ControlClient(join_broker(ticket, folder, reads=reads, activity=activity))


def join_broker(
    ticket: str | None,
    folder: Path | None = None,
    *,
    reads: bool = False,
    serves: bool = False,
    activity: Activity | None = None,
) -> Membership:
    """Join as a client, with ``ticket`` or the one in ``folder``, the folder of this machine's broker.

    ``reads``: the command changes nothing, so it works on a full disk without a key of this user.
    ``serves``: workers connect to this process, so it has a name of its own.
    ``activity`` shows that the connection is being made (default: standard error does, if it is a terminal).

    Raises:
        InputError: there is no ticket.
        FarflungError: the broker refuses the ticket or does not answer. The text names the file of a ticket that was found.
    """
    with activity or _activity() as shown:
        if shown is not None:
            shown.phase("connecting to the broker", silent=True)
        if ticket is not None:
            return _join(parse_ticket(ticket), lasting=not reads, serves=serves)
        return _join_with_file(ticket_file(broker_folder(folder)), serves=serves)


def _activity() -> AbstractContextManager[Activity | None]:
    if not sys.stderr.isatty():
        return nullcontext()
    from farflung.telemetry.activity import Activity  # here: what draws takes as long to load as the rest of a short command

    return Activity()


def _join_with_file(path: Path, *, serves: bool) -> Membership:
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
        return _join(Ticket.parse(path.read_text(encoding="ascii", errors="replace")), lasting=False, serves=serves)
    except FarflungError as error:
        raise type(error)(f"{error} (no --ticket was given: this is the ticket that a broker left in {path})") from error


def _join(ticket: Ticket, *, lasting: bool, serves: bool) -> Membership:
    """``lasting``: the broker must recognize this user later. It need not with the owner's ticket, which overrides all keys."""
    try:
        key = own_key()
    except DiskFull:
        if lasting:
            raise
        key = new_key()
    return join(ticket, name=client_name(key, of_process=serves), role="client", key=key)
