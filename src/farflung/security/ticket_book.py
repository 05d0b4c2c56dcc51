"""The broker's book of tickets, an SQLite file in its state folder. It keeps hashes: who steals it can't join with it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farflung.errors import InputError, SecurityError
from farflung.security.book import Book
from farflung.security.certificates import check_name
from farflung.security.tickets import Ticket, describe_time
from farflung.units import Seconds

__all__ = ["ADDRESS_FILE", "TicketBook", "TicketRecord"]

#: The file beside the book with the addresses that new tickets name. The broker writes it.
ADDRESS_FILE = "address"

_DAY = Seconds(86400.0)
_SCHEMA = """CREATE TABLE IF NOT EXISTS tickets (
    ticket_id TEXT PRIMARY KEY, scope TEXT NOT NULL, secret_hash BLOB NOT NULL,
    issued REAL NOT NULL, expires REAL NOT NULL, revoked REAL)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketRecord:
    """What the book knows of one ticket; times are Unix seconds, ``revoked`` is None while it is good."""

    ticket_id: str
    scope: str
    issued: float
    expires: float
    revoked: float | None


class TicketBook:
    """Issues, checks, lists and revokes tickets. Safe for several threads and processes; each call is one transaction."""

    def __init__(self, path: Path) -> None:
        """Open or begin the book at ``path`` (mode 0600).

        Raises:
            SecurityError: it can't be made, is readable by others, or is no book of tickets.
        """
        self._book = Book(path, "tickets", _SCHEMA)
        #: The state of the file, and the revoked tickets at that time; replaced as a whole.
        self._revoked: tuple[tuple[int, int, int], frozenset[str]] = ((0, 0, 0), frozenset())

    def issue(self, scope: str, *, addresses: Sequence[str], fingerprint: bytes, now: float, validity: Seconds = _DAY) -> Ticket:
        """A new ticket for ``scope``, good from ``now`` (Unix seconds) for ``validity`` seconds.

        Raises:
            InputError: the validity is too short.
            SecurityError: the scope, an address or the fingerprint is not usable.
        """
        check_name(scope, "ticket scope")
        if not validity >= 1.0:
            raise InputError(f"a ticket must be valid for at least one second, got {float(validity)}")
        ticket = Ticket(
            scope=scope,
            addresses=tuple(addresses),
            fingerprint=fingerprint,
            ticket_id=f"t{secrets.token_hex(4)}",
            secret=secrets.token_bytes(16),
            expires=float(int(now + validity)),
        )
        with self._book.transaction() as book:
            row = (ticket.ticket_id, scope, _hash(ticket.secret), now, ticket.expires)
            book.execute("INSERT INTO tickets VALUES (?, ?, ?, ?, ?, NULL)", row)
        return ticket

    def check(self, ticket_id: str, secret: bytes, scope: str, now: float) -> TicketRecord:
        """The record of a good ticket. Only who knows the secret learns why a ticket is refused.

        Raises:
            SecurityError: the ticket is unknown, its secret is wrong, it was revoked, has expired, or is for another scope.
        """
        with self._book.transaction() as book:
            row = book.execute("SELECT * FROM tickets WHERE ticket_id = ?", (ticket_id,)).fetchone()
        # A hash is compared for unknown tickets too, so that time tells nothing.
        known = hmac.compare_digest(row["secret_hash"] if row else bytes(32), _hash(secret))
        if row is None or not known:
            raise SecurityError("this broker does not know the ticket; ask the broker's owner for a fresh one")
        record = _record(row)
        if record.revoked is not None:
            raise SecurityError(
                f"ticket {ticket_id} was revoked at {describe_time(record.revoked)}; ask the broker's owner for a fresh one"
            )
        if now >= record.expires:
            raise SecurityError(
                f"ticket {ticket_id} expired at {describe_time(record.expires)}; ask the broker's owner for a fresh one"
            )
        if record.scope != scope:
            raise SecurityError(
                f"ticket {ticket_id} is for {record.scope!r}, not for {scope!r}; ask the broker's owner for another one"
            )
        return record

    def revoked(self) -> frozenset[str]:
        """The ids of all revoked tickets. It is asked at every call, so the file is only read when it has changed."""
        stamp = self._book.stamp()
        if stamp != self._revoked[0]:
            with self._book.transaction() as book:
                rows = book.execute("SELECT ticket_id FROM tickets WHERE revoked IS NOT NULL").fetchall()
            self._revoked = (stamp, frozenset(str(row[0]) for row in rows))
        return self._revoked[1]

    def revoke(self, ticket_id: str, now: float) -> TicketRecord:
        """Make a ticket useless from now on, for members who joined with it, too; a second call changes nothing.

        Raises:
            InputError: no ticket has that id; the text lists the known ones.
        """
        with self._book.transaction() as book:
            book.execute("UPDATE tickets SET revoked = ? WHERE ticket_id = ? AND revoked IS NULL", (now, ticket_id))
            row = book.execute("SELECT * FROM tickets WHERE ticket_id = ?", (ticket_id,)).fetchone()
        if row is None:
            known = ", ".join(record.ticket_id for record in self.list()) or "none"
            raise InputError(f"no ticket has the id {ticket_id!r}; known are {known}")
        return _record(row)

    def forget(self, ticket_id: str) -> None:
        """Remove a ticket that nobody can use any more, as its secret is gone. Members who joined with it stay."""
        with self._book.transaction() as book:
            book.execute("DELETE FROM tickets WHERE ticket_id = ?", (ticket_id,))

    def list(self) -> tuple[TicketRecord, ...]:
        """All tickets, the oldest first."""
        with self._book.transaction() as book:
            rows = book.execute("SELECT * FROM tickets ORDER BY issued, rowid").fetchall()
        return tuple(_record(row) for row in rows)


def _hash(secret: bytes) -> bytes:
    # The secret is 16 random bytes: a plain hash can't be searched, so no slow one is needed.
    return hashlib.sha256(b"farflung ticket\x00" + secret).digest()


def _record(row: sqlite3.Row) -> TicketRecord:
    return TicketRecord(
        ticket_id=row["ticket_id"], scope=row["scope"], issued=row["issued"], expires=row["expires"], revoked=row["revoked"]
    )
