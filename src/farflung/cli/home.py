"""The folders of farflung on this machine, and the ticket that commands use by default."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from pathlib import Path

from farflung.errors import InputError, SecurityError
from farflung.security import Ticket
from farflung.security.certificates import public_key_bytes
from farflung.security.files import make_private_folder, write_private
from farflung.security.user_home import home, own_key

__all__ = [
    "broker_folder",
    "client_name",
    "drop_ticket",
    "home",
    "keep_ticket",
    "known_broker",
    "members_folder",
    "newest_runs",
    "own_key",
    "run_folder",
    "stored_ticket",
    "ticket_file",
    "worker_log",
    "worker_name",
]


def broker_folder(chosen: Path | None) -> Path:
    """Return the folder of this machine's broker: ``chosen`` (``--home``), or ``broker`` in ``home()``.

    It is absolute, since people read it on other machines, and in other folders.
    """
    return (chosen or home() / "broker").absolute()


def known_broker(chosen: Path | None) -> Path:
    """Return ``broker_folder`` if a broker has been started with it.

    Raises:
        InputError: no broker was started with it.
    """
    place = broker_folder(chosen)
    if not (place / "authority").is_dir():
        raise InputError(
            f"{place} is no broker's folder: run this on the broker's machine, with the --home that it was started with"
        )
    return place


def members_folder() -> Path:
    """Return the folder with the owner's limits for this user's workers."""
    return home() / "members"


def worker_log(name: str) -> Path:
    """Return the log file of the worker ``name`` on this machine. The file may not exist."""
    return members_folder() / f"{name}.log"


def run_folder(run: str, broker: Path | None = None) -> Path:
    """Return the folder of a run. ``run`` is its name at this machine's broker (in the folder ``broker``), or a path.

    Raises:
        InputError: there is none.
    """
    runs = broker_folder(broker) / "runs"
    found = next((place for place in (runs / run, Path(run)) if place.is_dir()), None)
    if found is None and Path(run).is_file():
        raise InputError(f"{run!r} is a file: name a run, or the folder of one")
    if found is None:
        raise InputError(
            f"there is no run {run!r} in {runs}, and no such folder; runs there: {newest_runs(runs)}; "
            "of a broker elsewhere: run this on its machine, or copy the run's folder and name it"
        )
    return found


def newest_runs(runs: Path) -> str:
    """Return the newest runs in the folder ``runs``, with the names of their jobs, as text ("none": there are none)."""
    from farflung.telemetry.folder import newest_labels  # here: few commands need telemetry

    return newest_labels(runs)


def ticket_file(folder: Path) -> Path:
    """Return where the broker whose folder is ``folder`` keeps the owner's ticket while it runs."""
    return folder / "submit-ticket"


def stored_ticket(folder: Path) -> Ticket | None:
    """Return the ticket that ``keep_ticket`` stored in ``folder`` (``None``: there is none)."""
    try:
        return Ticket.parse(ticket_file(folder).read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError, SecurityError):
        return None


def keep_ticket(ticket: Ticket, folder: Path) -> Path:
    """Store the owner's ticket in the broker's folder, so that commands on this machine need none."""
    make_private_folder(folder)
    write_private(ticket_file(folder), str(ticket).encode())
    return ticket_file(folder)


def drop_ticket(ticket: Ticket, folder: Path) -> None:
    """Remove the stored ticket if it is ``ticket``. A broker calls this when it ends."""
    path = ticket_file(folder)
    if path.is_file() and path.read_text(encoding="ascii", errors="replace") == str(ticket):
        path.unlink()


def client_name(key: bytes, *, of_process: bool = False) -> str:
    """Return the name under which this user's commands join: one name, since a broker counts the names of a ticket.

    ``of_process``: a name of this process only, for a command to which workers connect.
    """
    return f"client-{_host()}-{os.getpid() if of_process else _digits(key)}"


def worker_name(key: bytes) -> str:
    """Return the default name of this user's worker on this machine: the same at each start, so that its limits apply again."""
    return f"{_host()}-worker-{_digits(key)}"


def _digits(key: bytes) -> str:
    """Return what tells users of equal host names apart: a name belongs to one ``key``."""
    return hashlib.sha256(public_key_bytes(key)).hexdigest()[:6]


def _host() -> str:
    return (re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-") or "host")[:40]
