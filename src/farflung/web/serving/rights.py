"""What a signed-in user sees and may do.

The broker checks every action again: a user acts through a client with the user's own ticket, or with the owner's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from farflung.client.control import ControlClient
from farflung.clock import monotonic
from farflung.errors import FarflungError, SecurityError
from farflung.web.serving.sign_in import Role, Session, SignIn

__all__ = ["Rights", "SignedIn"]

#: Tickets that may be signed in at a time; and for how many seconds after a page has asked the broker is asked about them.
_MOST_TICKETS, _ATTENTION = 64, 30.0
#: Makes a client from the text of a ticket, and says whether it is an owner's ticket; raises FarflungError.
OpenTicket = Callable[[str], tuple[ControlClient, bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """A user of the dashboard. ``act`` returns the client that acts for the user now.

    ``sees_all``: the user sees the details of every run, not only of those that belong to the ticket.
    ``owns_broker``: the user may also pause, drain and resume workers, and share links.
    """

    role: Role
    act: Callable[[], ControlClient | None] = lambda: None
    sees_all: bool = False
    owns_broker: bool = False
    ticket_runs: TicketRuns | None = None

    @property
    def client(self) -> ControlClient | None:
        """The client that acts for the user. ``None``: the user only reads, or no broker answers."""
        return self.act()

    def runs(self) -> frozenset[str]:
        """The runs that belong to the user's ticket."""
        if self.ticket_runs is None:
            return frozenset()
        self.ticket_runs.used = monotonic()
        return self.ticket_runs.names


class TicketRuns:
    """The runs whose details the broker tells the owner of a ticket."""

    def __init__(self, client: ControlClient, *, owner: bool) -> None:
        self.client, self.owner = client, owner
        self.names: frozenset[str] = frozenset()
        #: When a page asked last (``time.monotonic``).
        self.used = monotonic()

    def refresh(self) -> None:
        """Ask the broker; the names stay as they are if it does not answer."""
        with suppress(FarflungError):
            answer: Mapping[str, Any] = self.client.status()
            self.names = frozenset(str(run["run"]) for run in answer["runs"] if run["folder"])


class Rights:
    """Who is signed in with which rights. Any thread may call."""

    def __init__(self, sign_ins: SignIn, owner: Callable[[], ControlClient | None], open_ticket: OpenTicket | None) -> None:
        """``owner`` returns the client with the owner's rights. ``open_ticket``: ``None`` if tickets can't sign in here."""
        self.sign_ins = sign_ins
        self._owner, self._open_ticket = owner, open_ticket
        self._lock = threading.Lock()
        #: Session id -> the ticket that signed in.
        self._tickets: dict[str, TicketRuns] = {}

    async def sign_in(self, *, token: str, ticket: str) -> Session:
        """Return a new session for a token or a ticket.

        Raises:
            FarflungError: neither is valid.
        """
        if token:
            return self.sign_ins.redeem(token)
        if self._open_ticket is None:
            raise SecurityError("this dashboard has no broker, so a ticket can't sign in: use the link that farflung web printed")
        client, owner = await asyncio.to_thread(self._open_ticket, ticket)
        found = TicketRuns(client, owner=owner)
        await asyncio.to_thread(found.refresh)
        session = self.sign_ins.begin(Role.TICKET)
        with self._lock:
            self._tickets[session.session_id] = found
            oldest = min(self._tickets, key=lambda one: self._tickets[one].used)
            crowded = self._tickets.pop(oldest) if len(self._tickets) > _MOST_TICKETS else None
        if crowded is not None:
            crowded.client.close()
        return session

    def refresh(self) -> None:
        """Ask the broker which runs belong to the tickets whose pages were opened a short time ago."""
        now = monotonic()
        with self._lock:
            found = [one for one in self._tickets.values() if now - one.used < _ATTENTION]
        for one in found:
            one.refresh()

    def of(self, session: Session) -> SignedIn | None:
        """Return the user of a session, ``None`` if a restart of the dashboard has ended the session of a ticket."""
        if session.role is Role.OWNER:
            return SignedIn(role=session.role, act=self._owner, sees_all=True, owns_broker=True)
        if session.role is Role.VIEWER:
            return SignedIn(role=session.role, sees_all=True)
        with self._lock:
            found = self._tickets.get(session.session_id)
        if found is None:
            return None
        found.used = monotonic()
        return SignedIn(
            role=session.role, act=lambda: found.client, sees_all=found.owner, owns_broker=found.owner, ticket_runs=found
        )

    def end(self, session: Session) -> None:
        """End a session: its cookie is not valid any more, and its ticket is forgotten."""
        self.sign_ins.end(session)
        with self._lock:
            found = self._tickets.pop(session.session_id, None)
        if found is not None:
            found.client.close()
