"""Whether a member with a certificate is still welcome: asked at every call and session, and while sessions last.

A certificate is valid for days. The ticket behind it may be revoked, and the member may be kicked, at any moment. Both take
effect at once. ``audit.jsonl`` in the broker's folder records who joined, who was refused, and each call that changes something.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from farflung.broker.rate_limit import RateLimit
from farflung.clock import monotonic
from farflung.errors import InputError, SecurityError
from farflung.messages.calls import Kick, Kicked
from farflung.messages.remote_calls import serve
from farflung.security import Caller
from farflung.security.audit_log import AuditLog
from farflung.security.name_book import NameBook
from farflung.security.ticket_book import TicketBook
from farflung.transports.rpc.calls import Call
from farflung.transports.rpc.server import RpcServer

__all__ = ["AccessControl"]

#: Ends the sessions of the workers whose names it is given a test of, with a cause; returns their names.
EndSessions = Callable[[Callable[[str], bool], str], Sequence[str]]

#: Calls that the audit log records.
_RECORDED = frozenset({"kick", "member", "profile", "renew", "resume", "session", "stop", "submit", "upload"})
#: Refusals a minute that the audit log records of each member, and of all strangers together.
_REFUSALS = 60


class AccessControl:
    """Any thread may call."""

    def __init__(self, tickets: TicketBook, names: NameBook, audit: AuditLog) -> None:
        self._tickets, self._names, self.audit = tickets, names, audit
        #: The revoked tickets whose members are all known to be gone.
        self._seen: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        #: How often refusals are recorded, guarded by ``_lock``: whoever is refused must not fill the disk.
        self._refusals = RateLimit(_REFUSALS)

    def register(self, server: RpcServer, end_sessions: EndSessions, reset: Callable[[str], None]) -> None:
        """Serve the calls. ``reset`` resets the standing of a member."""
        serve(server, Kick, lambda call, request: self.kick(call, request, end_sessions, reset))

    def check(self, caller: Caller, method: str, address: str) -> None:
        """See that ``caller`` may still call ``method``; record the call if it changes something.

        Raises:
            SecurityError: it was kicked, its ticket was revoked, or its name belongs to another key.
        """
        try:
            self.recheck(caller)
        except SecurityError as error:
            self.refused(error, caller.key, name=caller.name, role=caller.role, call=method, address=address)
            raise
        if method in _RECORDED:
            ticket = self._names.ticket(caller.name)
            self.audit.write(method, name=caller.name, role=caller.role, ticket=ticket, address=address)

    def recheck(self, caller: Caller) -> None:
        """See that ``caller`` may still call, and record nothing.

        Raises:
            SecurityError: it was kicked, its ticket was revoked, or its name belongs to another key.
        """
        bound = self._names.binding(caller.name)
        if caller.key and bound.key and bound.key != caller.key:
            raise SecurityError(f"the name {caller.name!r} belongs to another key now; join again under another name")
        self.welcome(caller.key, caller.name)
        if bound.ticket and bound.ticket in self._tickets.revoked():
            raise SecurityError(
                f"the ticket {bound.ticket} that {caller.name!r} joined with was revoked; ask the broker's owner for a fresh one"
            )

    def refused(self, error: SecurityError, key: str, /, **facts: str) -> None:
        """Record that the member with ``key`` (empty: a stranger) was refused because of ``error``, but not too often."""
        with self._lock:
            rare = not self._refusals.take(key, monotonic())
        if rare:
            self.audit.write("refused", **facts, cause=str(error))

    def unwelcome(self, connected: Callable[[], Sequence[str]]) -> dict[str, str]:
        """Return which of the ``connected`` members must go, and why. To be called periodically: a removal may fail."""
        revoked = self._tickets.revoked()  # first: whoever connects later was checked against them
        if revoked == self._seen:
            return {}
        tickets = {name: self._names.ticket(name) for name in connected()}
        gone = {name: f"its ticket {ticket} was revoked" for name, ticket in tickets.items() if ticket in revoked}
        if not gone:
            self._seen = revoked
        return gone

    def kick(self, call: Call, request: Kick, end_sessions: EndSessions, reset: Callable[[str], None]) -> Kicked:
        """Bar a member's key, and end the sessions of all workers that have it; or let the key in again, with its standing reset.

        Raises:
            InputError: nobody has joined under that name, or the caller has the same key.
            SecurityError: the caller does not own the broker.
        """
        assert call.caller is not None
        if call.caller.role != "owner":
            raise SecurityError("only the broker's owner may kick a member: use a ticket of scope owner")
        name = request.name
        key, ticket, _ = self._names.binding(name)
        if request.undo:  # the name may be free again, or belong to another key, since its key was barred
            key = next((barred for barred, under in self._names.barred().items() if under == name), key)
        if not key:
            raise InputError(f"nobody has joined under the name {name!r:.80}: farflung status lists the workers")
        if request.undo:
            reset(name)
        if key == call.caller.key and not request.undo:
            raise InputError(f"{name!r} has the same key as you, so you would bar yourself: stop it on this machine instead")
        self._names.bar(name, key, barred=not request.undo)
        self.audit.write("readmitted" if request.undo else "kicked", name=name, by=call.caller.name, ticket=ticket)
        kicked = () if request.undo else end_sessions(lambda one: self._names.key(one) == key, "the broker's owner kicked it")
        return Kicked(ticket=ticket, connected=tuple(kicked))

    def welcome(self, key: str, name: str) -> None:
        """See that whoever joins as ``name`` with ``key`` was not kicked.

        Raises:
            SecurityError: it was.
        """
        barred = self._names.barred().get(key)
        if barred is not None:
            who = (
                f"{name!r} was kicked by the broker's owner"
                if name == barred
                else f"the key of {name!r} was kicked as {barred!r}"
            )
            raise SecurityError(f"{who}; ask the broker's owner to run: farflung kick {barred} --undo")
