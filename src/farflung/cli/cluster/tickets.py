"""``farflung ticket``: issue, list and revoke tickets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farflung.cli.home import known_broker, stored_ticket
from farflung.cli.options import HomeOption, JsonOption, answer, echo_json, quantity
from farflung.cli.options import address as checked_address
from farflung.clock import wall_time
from farflung.errors import InputError
from farflung.units import Seconds, counted

__all__ = ["register"]

tickets = typer.Typer(no_args_is_help=True, help="Issue, list and revoke tickets, on the machine of the broker.")


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(tickets, name="ticket")


@tickets.command("issue")
def issue(
    address: Annotated[
        str | None, typer.Option(help="Address of the broker, HOST:PORT (default: as in its own tickets).")
    ] = None,
    scope: Annotated[str, typer.Option(help="join, submit, or owner (can stop and export every run).")] = "join",
    valid: Annotated[str, typer.Option(help="Validity of the ticket.")] = "24 h",
    folder: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a new ticket."""
    from farflung.security import certificate_fingerprint
    from farflung.security.audit_log import AuditLog
    from farflung.security.authority import CertificateAuthority
    from farflung.security.ticket_book import TicketBook

    if scope not in ("join", "submit", "owner"):
        raise InputError(f"unknown scope {scope!r}: known are join, submit, owner")
    given = [checked_address(one, "--address") for one in (address or "").split()]
    validity, place = quantity(Seconds, valid, "--valid"), known_broker(folder)
    credentials = CertificateAuthority.open(place / "authority", wall_time()).server_credentials(wall_time())
    book = TicketBook(place / "tickets.sqlite")
    fingerprint = certificate_fingerprint(credentials.certificate)
    where = " ".join(given) or _known_address(place)
    ticket = book.issue(scope, addresses=where.split(), fingerprint=fingerprint, now=wall_time(), validity=validity)
    AuditLog(place, wall_time).write("ticket issued", ticket=ticket.ticket_id, scope=scope)
    known = {"id": ticket.ticket_id, "ticket": str(ticket), "scope": scope, "address": where, "valid_seconds": float(validity)}
    answer(str(ticket), known, as_json=as_json)
    if not as_json:
        typer.echo(f"id {ticket.ticket_id}; farflung ticket revoke {ticket.ticket_id} revokes it", err=True)


def _known_address(place: Path) -> str:
    """Return the addresses that the broker of this folder had when it last ran, with spaces between them.

    Raises:
        InputError: the broker has never been started.
    """
    from farflung.security.ticket_book import ADDRESS_FILE

    try:
        return (place / ADDRESS_FILE).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise InputError(
            f"{place} does not say where its broker is reached: start the broker once, or pass --address host:port"
        ) from None


@tickets.command("list")
def list_tickets(
    folder: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List all tickets with their state, and how many members joined with each."""
    from farflung.security.name_book import NameBook
    from farflung.security.ticket_book import TicketBook
    from farflung.security.tickets import describe_time

    rows, place = [], known_broker(folder)
    names, stored = NameBook(place / "names.sqlite"), stored_ticket(place)
    own = "" if stored is None else stored.ticket_id
    for record in TicketBook(place / "tickets.sqlite").list():
        members = names.names_of(record.ticket_id)
        state = "revoked" if record.revoked else "expired" if record.expires <= wall_time() else "valid"
        row = {"id": record.ticket_id, "scope": record.scope, "state": state, "expires": record.expires, "members": members}
        rows.append(row | {"own": record.ticket_id == own})
        if not as_json:
            until = describe_time(record.expires)
            use = ", used by the commands on this machine" if record.ticket_id == own else ""
            typer.echo(f"{record.ticket_id}  {record.scope:6}  {state:7}  until {until}  {counted(members, 'member')}{use}")
    if as_json:
        echo_json(rows)


@tickets.command("revoke")
def revoke(
    ticket_id: Annotated[str, typer.Argument(help="Id of the ticket, from `farflung ticket list`.")],
    folder: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a ticket. The broker removes the members that have joined with it, at once."""
    from farflung.security.audit_log import AuditLog
    from farflung.security.ticket_book import TicketBook

    place = known_broker(folder)
    TicketBook(place / "tickets.sqlite").revoke(ticket_id, wall_time())
    AuditLog(place, wall_time).write("ticket revoked", ticket=ticket_id)
    text = f"{ticket_id}: revoked; the members that joined with it are removed"
    answer(text, {"id": ticket_id, "state": "revoked"}, as_json=as_json)


@tickets.command("free")
def free(
    name: Annotated[str, typer.Argument(help="Name of a worker or client.")],
    folder: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Release a name whose owner has lost the key, so that another key can use it."""
    from farflung.security.audit_log import AuditLog
    from farflung.security.name_book import NameBook

    place = known_broker(folder)
    NameBook(place / "names.sqlite").free(name)
    AuditLog(place, wall_time).write("name released", name=name)
    text = f"{name}: released; the next member that joins with this name owns it"
    answer(text, {"name": name, "released": True}, as_json=as_json)
