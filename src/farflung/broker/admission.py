"""Who becomes a member: tickets are exchanged for certificates, and certificates for fresh ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from farflung.broker.access_control import AccessControl
from farflung.broker.quotas import TicketQuotas
from farflung.broker.session_table import SessionTable
from farflung.clock import wall_time
from farflung.errors import SecurityError
from farflung.messages.calls import Granted, Join, Renew, Withdraw, Withdrawn
from farflung.messages.remote_calls import serve
from farflung.messages.schema import Channel
from farflung.messages.versions import PROTOCOL_VERSION, check_versions
from farflung.messages.wire_form import decode_as, encode
from farflung.security import Credentials, Ticket, certificate_fingerprint, key_fingerprint
from farflung.security.authority import CertificateAuthority
from farflung.security.name_book import NameBook
from farflung.security.ticket_book import TicketBook
from farflung.transports.rpc.calls import Call
from farflung.transports.rpc.server import RpcServer
from farflung.units import Seconds
from farflung.wire.frames import Frame

__all__ = ["Admission"]

#: How long a certificate, and the right to a name, is valid: seconds.
_VALIDITY = 7 * 86400.0
#: Scopes of the tickets that each role joins with. ``owner`` gives all rights of the broker's owner.
_SCOPES = {"worker": ("join",), "client": ("submit", "owner")}
#: Names of clients begin with this, so that no client can speak as a worker.
_CLIENT = "client-"
_MAX_NAME = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """``member_port`` returns the port for members, which new members are told."""

    authority: CertificateAuthority
    credentials: Credentials
    tickets: TicketBook
    names: NameBook
    sessions: SessionTable
    access: AccessControl
    quotas: TicketQuotas
    member_port: Callable[[], int]

    def register(self, door: RpcServer, server: RpcServer) -> None:
        """Serve the calls: at ``door`` for callers with a ticket, at ``server`` for members."""
        door.unary("join", self.join, anonymous=True)
        server.unary("renew", self.renew)
        serve(server, Withdraw, self.withdraw)

    def ticket(self, scope: str, addresses: Sequence[str], validity: Seconds) -> Ticket:
        """Return a new ticket that names ``addresses``."""
        fingerprint = certificate_fingerprint(self.credentials.certificate)
        return self.tickets.issue(scope, addresses=addresses, fingerprint=fingerprint, now=wall_time(), validity=validity)

    def join(self, call: Call, frame: Frame) -> Frame:
        """Exchange a ticket for a certificate.

        Raises:
            SecurityError: the ticket is not valid, or the name may not be used.
        """
        check_versions(frame, PROTOCOL_VERSION)  # first: a member of another version may have other fields
        asked = decode_as(frame, Channel.REQUESTS, Join)
        facts = {"name": asked.name, "role": asked.role, "ticket": asked.ticket, "address": call.address}
        try:
            granted = self._join(asked)
        except SecurityError as error:
            self.access.refused(error, "", **facts)
            raise
        self.access.audit.write("joined", **facts)
        return granted

    def _join(self, asked: Join) -> Frame:
        role = asked.role
        if role not in _SCOPES:
            raise SecurityError(f"unknown role {role!r:.40}: known are client, worker")
        known = _SCOPES[role]
        scope = known[-1] if asked.scope == known[-1] else known[0]
        now = wall_time()
        record = self.tickets.check(asked.ticket, asked.secret, scope, now)
        name = _allowed_name(asked.name, role)
        if role == "worker" and self.sessions.serves(name):
            raise SecurityError(
                f"the name {name!r} is taken by a worker that is connected; choose another with --name, or end that one first"
            )
        self.quotas.join(record.ticket_id, self.names.names_of(record.ticket_id) - bool(self.names.key(name)))
        granted = "owner" if scope == "owner" else role
        certificate = self.authority.sign(asked.request, name=name, role=granted, now=now)
        self.access.welcome(key_fingerprint(certificate), name)
        return self._grant(certificate, name, role, record.ticket_id)

    def renew(self, call: Call, frame: Frame) -> Frame:
        """Exchange a certificate for a fresh one with the same name, role and key.

        Raises:
            SecurityError: the name belongs to another key now.
        """
        check_versions(frame, PROTOCOL_VERSION)  # first: a member of another version may have other fields
        request = decode_as(frame, Channel.REQUESTS, Renew).request
        caller, now = call.caller, wall_time()
        assert caller is not None
        ticket = self.names.ticket(caller.name)
        if not caller.key or self.names.key(caller.name) != caller.key:
            raise SecurityError(f"the name {caller.name!r} is not bound to this key any more; join again with a ticket")
        certificate = self.authority.sign(request, name=caller.name, role=caller.role, now=now)
        if key_fingerprint(certificate) != caller.key:
            raise SecurityError("a certificate is renewed for its own key only; join again with a ticket")
        return self._grant(certificate, caller.name, caller.role, ticket)

    def withdraw(self, call: Call, request: Withdraw) -> Withdrawn:
        """A worker with a certificate ends before its session begins."""
        del request
        assert call.caller is not None
        self.sessions.withdraw(call.caller.name)
        return Withdrawn()

    def _grant(self, certificate: bytes, name: str, role: str, ticket: str) -> Frame:
        now = wall_time()
        self.names.bind(name, key_fingerprint(certificate), ticket, now=now, until=now + _VALIDITY)
        if role == "worker":
            self.sessions.admit(name)
        authority = self.credentials.authority
        return encode(Granted(certificate=certificate, authority=authority, port=self.member_port(), name=name))


def _allowed_name(wanted: str, role: str) -> str:
    """Return the name in the certificate of a member that wants to be called ``wanted``.

    Raises:
        SecurityError: a worker wants a name by which it could speak for the broker or for a client.
    """
    if role == "client":
        return wanted if wanted.startswith(_CLIENT) else f"{_CLIENT}{wanted}"[:_MAX_NAME].rstrip("-_")
    if wanted == "broker" or wanted.startswith(_CLIENT):
        raise SecurityError(f"a worker can't be called {wanted!r}: choose another name with --name")
    return wanted
