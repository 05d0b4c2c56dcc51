"""Starting a dashboard: for a broker, by the broker, or for folders of runs."""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from farflung.client.control import ControlClient
from farflung.client.dashboard_tunnel import DashboardPort
from farflung.clock import wall_time
from farflung.errors import DiskFull, InputError, SecurityError
from farflung.security import Ticket, certificate_fingerprint, new_key
from farflung.security.authority import CertificateAuthority
from farflung.security.files import read_private, write_private
from farflung.security.ticket_book import TicketBook
from farflung.transports.addresses import is_loopback, reachable_host
from farflung.units import Seconds
from farflung.web.serving.certificates import host_certificate
from farflung.web.serving.links import Dashboard, listen, running_dashboard
from farflung.web.serving.rights import Rights
from farflung.web.serving.sign_in import SignIn
from farflung.web.sources.broker_poll import BrokerPoll
from farflung.web.sources.sources import Sources
from farflung.worker.membership import Membership, join

__all__ = ["open_own_client", "serve_broker", "serve_owned", "serve_runs", "serve_tunnel"]

#: Receives the link with which a browser signs in, and whether this process serves the dashboard (otherwise the broker does).
Announce = Callable[[str, bool], None]

#: Seconds for which the dashboard's own ticket is valid; it makes a new one for each connection.
_TICKET_SECONDS = Seconds(60.0)


def serve_owned(descriptor: int, home: Path) -> None:
    """Serve the broker in ``home`` at an open socket, for the broker, until the broker ends.

    The first line of standard input is the secret of the links.
    """
    secret = bytes.fromhex(os.read(sys.stdin.fileno(), 65).decode("ascii"))
    listening = socket.socket(fileno=descriptor)
    _serve_home(listening, home, secret, owned=True)
    logging.shutdown()
    os._exit(0)  # the interpreter's own end takes seconds: it waits for threads and takes all libraries apart


def serve_broker(home: Path, address: str | None, announce: Announce) -> None:
    """Serve the broker in ``home``, which may have ended; if it has a dashboard already, announce a new link to that.

    Raises:
        InputError: the address can't be listened at.
    """
    found = running_dashboard(home)
    if found is not None:
        announce(found.link(), False)
        return
    listening = listen(address)
    dashboard = Dashboard.at(listening)
    dashboard.save(home)
    announce(dashboard.link(), True)
    try:
        _serve_home(listening, home, dashboard.secret, owned=False)
    finally:
        dashboard.remove(home)


def serve_runs(folders: Sequence[Path], address: str | None, announce: Announce) -> None:
    """Serve folders of runs, without a broker.

    Raises:
        InputError: a folder is no run's, or the address can't be listened at, or other machines could reach it.
    """
    from farflung.web.serving.server import Serving, serve

    for folder in folders:
        if not (folder / "job.json").is_file():
            raise InputError(f"{folder} has no job.json, so it is no run's folder: name a folder below runs/ of a broker")
    listening = _listen_here(address, "run folders are")
    dashboard = Dashboard.at(listening)
    announce(dashboard.link(), True)
    rights = Rights(SignIn(dashboard.secret, secrets.token_bytes(32)), lambda: None, None)
    serve(Serving(listening=listening, sources=Sources(folders=folders), rights=rights))


def serve_tunnel(membership: Membership, ticket: Ticket, address: str | None, announce: Announce) -> None:
    """Serve the dashboard of a broker on another machine at ``address`` of this one, until a signal arrives.

    Raises:
        InputError: the broker has no dashboard, the address can't be listened at, or other machines could reach it.
    """
    listening = _listen_here(address, "the dashboard of another machine is")
    with listening, closing(DashboardPort(ControlClient(membership))) as port:
        announce(f"{Dashboard.at(listening).url}/sign-in#{ticket}", True)
        port.serve(listening)


def _listen_here(address: str | None, what: str) -> socket.socket:
    listening = listen(address)
    if not is_loopback(listening.getsockname()[0]):
        listening.close()
        raise InputError(f"--listen {address}: {what} served to this machine only; use 127.0.0.1 and an ssh tunnel")
    return listening


def _serve_home(listening: socket.socket, home: Path, secret: bytes, *, owned: bool) -> None:
    from farflung.web.serving.server import Serving, serve

    own = listening.getsockname()[0]
    host, tls = reachable_host("[::]" if own == "::" else own), not is_loopback(own)

    key = new_key()

    def ticket_client(text: str) -> tuple[ControlClient, bool]:
        name, ticket = f"dashboard-{os.getpid()}-{secrets.token_hex(4)}", _of_this_broker(home, Ticket.parse(text))
        return ControlClient(join(ticket, name=name, role="client")), ticket.scope == "owner"

    poll = BrokerPoll(lambda: open_own_client(home, key), home / "links.json")
    rights = Rights(SignIn(secret, _cookie_key(home)), lambda: poll.client, ticket_client)
    certificate = host_certificate(home, host) if tls else None
    serving = Serving(
        listening=listening,
        sources=Sources(poll=poll, runs=home / "runs"),
        rights=rights,
        certificate=certificate,
        owned=owned,
    )
    try:
        serve(serving)
    finally:
        poll.close()


def open_own_client(home: Path, key: bytes) -> ControlClient:
    """Return a client with the owner's rights of the broker in ``home``. The client's ticket works for this connection only.

    Raises:
        FarflungError: the broker does not answer.
    """
    address, fingerprint = _broker(home)
    book = TicketBook(home / "tickets.sqlite")
    ticket = book.issue("owner", addresses=[address], fingerprint=fingerprint, now=wall_time(), validity=_TICKET_SECONDS)
    try:
        return ControlClient(join(ticket, name=f"dashboard-{os.getpid()}", role="client", key=key))
    finally:
        book.forget(ticket.ticket_id)


def _of_this_broker(home: Path, ticket: Ticket) -> Ticket:
    """Return ``ticket`` with the address of the broker in ``home``. Another broker could claim that all runs belong to a ticket.

    Raises:
        SecurityError: it is a ticket of another broker.
    """
    address, fingerprint = _broker(home)
    if not hmac.compare_digest(ticket.fingerprint, fingerprint):
        raise SecurityError("this ticket is of another broker: paste one that this broker has issued")
    return replace(ticket, addresses=(address,))


def _broker(home: Path) -> tuple[str, bytes]:
    """Return the address of the broker in ``home``, and the fingerprint of its certificate."""
    now = wall_time()
    credentials = CertificateAuthority.open(home / "authority", now).server_credentials(now)
    return (home / "address").read_text(encoding="ascii").strip(), certificate_fingerprint(credentials.certificate)


def _cookie_key(home: Path) -> bytes:
    """Return the key that signs cookies; it stays with the broker's folder."""
    path = home / "dashboard-key"
    if path.exists():
        return read_private(path)
    key = secrets.token_bytes(32)
    with suppress(DiskFull):  # then people sign in again after a restart
        write_private(path, key)
    return key
