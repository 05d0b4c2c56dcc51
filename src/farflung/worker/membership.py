"""Becoming a member: a ticket is exchanged for a certificate, once; then every connection proves the member's name.

A certificate on disk lets its owner return without a ticket, after a reboot or an upgrade, from another address. The broker
exchanges it for a fresh one while it is valid, unless the ticket that it came from was revoked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from farflung.clock import wall_time
from farflung.errors import ConnectionLost, DiskFull, FarflungError, SecurityError
from farflung.messages.calls import Granted, Join, Renew, Withdraw, Withdrawn
from farflung.messages.remote_calls import ask
from farflung.messages.versions import PROTOCOL_VERSION
from farflung.security import Credentials, Ticket, fetch_server_certificate, make_request, new_key, split_address
from farflung.security.files import write_private
from farflung.transports import Pinned
from farflung.transports.addresses import host_and_port, own_host
from farflung.transports.rpc import RpcClient
from farflung.units import Seconds
from farflung.version import __version__

__all__ = ["Membership", "join"]

_BROKER = "broker"
#: Seconds for an answer to a goodbye.
_WITHDRAWING = 3.0
#: Seconds in which a broker must answer: the only one, and one of several.
_ALONE, _ONE_OF_MANY = Seconds(10.0), Seconds(2.5)


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The result of joining: ``name`` as in the certificate; ``own_host``: the address by which this machine reaches the broker.

    The certificate is valid for seven days. A member that stays longer joins again for new connections.
    """

    name: str
    credentials: Credentials
    client: RpcClient
    own_host: str
    #: Joins again, perhaps at another address of the ticket (None: the ticket has one address).
    again: Callable[[], Membership] | None = None

    def withdraw(self) -> None:
        """Tell the broker not to wait for this member's session; without the message it stops waiting after a while."""
        with suppress(FarflungError):
            ask(self.client, Withdraw(), Withdrawn, timeout=_WITHDRAWING)


def join(ticket: Ticket, *, name: str, role: str, key: bytes | None = None, kept: Path | None = None) -> Membership:
    """Exchange ``ticket`` for a certificate as ``role`` ("worker" or "client") and connect as a member.

    ``key``: the member's private key (PEM; None: a fresh one). Names and runs belong to keys. ``kept``: a folder for the
    certificate; a certificate that is there is used if the ticket is not valid any more.

    Raises:
        SecurityError: the ticket is wrong, expired or revoked, or the server is not the ticket's broker.
        VersionError: broker and member speak different versions.
        ConnectionLost: no address of the ticket answers.
    """
    who = (name, role, key or new_key())
    try:
        ticket.require_current(wall_time())
        found = _join_somewhere(ticket, who)
    except SecurityError:
        again = None if kept is None else _renew(kept, ticket, who)
        if again is None:
            raise
        found = again
    if kept is not None:
        with suppress(DiskFull):  # the certificate is only needed to return without a ticket
            found.credentials.save(kept)
            write_private(kept / _BROKER, f"{found.client.address} {ticket.fingerprint.hex()}".encode())
    if len(ticket.addresses) == 1:
        return found
    return replace(found, again=partial(join, ticket, name=name, role=role, key=who[2], kept=kept))


def _join_somewhere(ticket: Ticket, who: tuple[str, str, bytes]) -> Membership:
    failure: ConnectionLost | None = None
    for address in ticket.addresses:
        try:
            certificate = fetch_server_certificate(address, ticket.fingerprint, _patience(ticket))
            return _join_at(address, certificate, ticket, who)
        except ConnectionLost as error:
            failure = error
    assert failure is not None  # a ticket has at least one address
    raise failure


def _renew(kept: Path, ticket: Ticket, who: tuple[str, str, bytes]) -> Membership | None:
    """Return with the certificate in ``kept`` (None: there is none for this broker, name and key, or it has expired).

    Raises:
        SecurityError: the broker refuses.
        ConnectionLost: the broker does not answer.
    """
    name, _, key = who
    try:
        address, fingerprint = (kept / _BROKER).read_text(encoding="ascii").split()
        credentials = Credentials.load(kept)
    except (OSError, ValueError, SecurityError):
        return None
    same = fingerprint == ticket.fingerprint.hex() and credentials.name == name and credentials.key == key
    if not same or credentials.expires() <= wall_time():
        return None
    failure: ConnectionLost | None = None
    for place in dict.fromkeys([address, *(_members_address(door) for door in ticket.addresses)]):
        old = RpcClient(place, credentials)
        try:
            request = Renew(request=make_request(name, key), protocol=PROTOCOL_VERSION, version=__version__)
            return _member(place, ask(old, request, Granted, timeout=float(_patience(ticket))), key)
        except ConnectionLost as error:
            failure = failure or error
        finally:
            old.close()
    assert failure is not None  # one address was tried
    raise failure


def _patience(ticket: Ticket) -> Seconds:
    """Return how long one broker may take to answer: less if another one may have taken over."""
    return _ALONE if len(ticket.addresses) == 1 else _ONE_OF_MANY


def _members_address(door: str) -> str:
    """Return the port for members of a broker with the address ``door``, unless that port was taken."""
    host, port = split_address(door)
    return host_and_port(host, min(port + 1, 65535))


def _join_at(address: str, pinned: bytes, ticket: Ticket, who: tuple[str, str, bytes]) -> Membership:
    name, role, key = who
    door = RpcClient(address, Pinned(certificate=pinned))
    request = Join(
        ticket=ticket.ticket_id,
        secret=ticket.secret,
        scope=ticket.scope,
        name=name,
        role=role,
        request=make_request(name, key),
        protocol=PROTOCOL_VERSION,
        version=__version__,
    )
    try:
        answer = ask(door, request, Granted)
    finally:
        door.close()
    return _member(address, answer, key)


def _member(address: str, answer: Granted, key: bytes) -> Membership:
    """What the broker at ``address`` granted."""
    credentials = Credentials(name=answer.name, key=key, certificate=answer.certificate, authority=answer.authority)
    host, port = split_address(address)
    client = RpcClient(host_and_port(host, answer.port), credentials)
    try:
        own = own_host(host, port)
    except OSError as error:
        client.close()
        raise ConnectionLost(f"cannot reach the broker at {address}: {error.strerror or error}") from error
    return Membership(name=answer.name, credentials=credentials, client=client, own_host=own)
