"""The whole way of a new machine: ticket, pinned first contact, signed certificate, then frames between members."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from farflung.errors import SecurityError
from farflung.security import Credentials, Ticket, certificate_fingerprint, fetch_server_certificate, make_request, new_key
from farflung.security.authority import CertificateAuthority
from farflung.security.ticket_book import TicketBook
from farflung.transports import Pinned
from farflung.transports.rpc import RpcClient
from farflung.transports.rpc.calls import Call
from farflung.transports.rpc.server import RpcServer
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.wire.frames import Frame

ROLES = {"join": "worker", "submit": "submitter"}


class Broker:
    """Admits who brings a good ticket."""

    def __init__(self, folder: Path) -> None:
        self.authority = CertificateAuthority.open(folder, time.time())
        self.book = TicketBook(folder / "tickets.sqlite")
        self.credentials = self.authority.server_credentials(time.time())
        self.server = RpcServer(self.credentials)
        self.server.unary("join", self.join, anonymous=True)
        self.server.unary("whoami", lambda call, frame: Frame("you", {"name": call.caller.name if call.caller else None}))
        self.join_address = self.server.listen("127.0.0.1:0", anonymous=True)
        self.member_address = self.server.listen("127.0.0.1:0")
        self.server.start()

    def join(self, call: Call, frame: Frame) -> Frame:
        asked = frame.header
        record = self.book.check(asked["ticket"], asked["secret"], asked["scope"], time.time())
        signed = self.authority.sign(asked["request"], name=asked["name"], role=ROLES[record.scope], now=time.time())
        answer = {"certificate": signed, "authority": self.authority.certificate, "address": self.member_address}
        return Frame("welcome", answer)

    def ticket(self, scope: str = "join") -> Ticket:
        fingerprint = certificate_fingerprint(self.credentials.certificate)
        return self.book.issue(scope, addresses=[self.join_address], fingerprint=fingerprint, now=time.time())

    def close(self) -> None:
        self.server.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with closing(Broker(tmp_path / "broker")) as made:
        yield made


def _join(line: str, name: str, scope: str = "join") -> tuple[Credentials, str]:
    """A new machine's side: its credentials and the broker's address for members."""
    ticket = Ticket.parse(line)
    ticket.require_current(time.time())
    pinned = Pinned(certificate=fetch_server_certificate(ticket.addresses[0], ticket.fingerprint))
    key = new_key()
    asked = {
        "ticket": ticket.ticket_id,
        "secret": ticket.secret,
        "scope": scope,
        "name": name,
        "request": make_request(name, key),
    }
    with closing(RpcClient(ticket.addresses[0], pinned)) as client:
        answer = client.call("join", Frame("join", asked)).header
    return Credentials(name=name, key=key, certificate=answer["certificate"], authority=answer["authority"]), answer["address"]


def test_a_ticket_makes_a_member(broker: Broker) -> None:
    line = str(broker.ticket())
    first, address = _join(line, "worker-1")
    second, _ = _join(line, "worker-2")
    with closing(RpcClient(address, first)) as client:
        assert client.call("whoami", Frame("who")).header["name"] == "worker-1"
    got: list[tuple[str, str]] = []
    with (
        closing(TcpEndpoint(first, lambda peer, frame: None, listen="127.0.0.1:0")) as a,
        closing(TcpEndpoint(second, lambda peer, frame: got.append((peer, frame.kind)), listen="127.0.0.1:0")) as b,
    ):
        a.connect("worker-2", b.address)
        a.send("worker-2", Frame("activation", {}, (bytes(100),)))
    assert got == [("worker-1", "activation")]


def test_refusals_arrive_in_clear_words(broker: Broker) -> None:
    revoked = broker.ticket()
    broker.book.revoke(revoked.ticket_id, time.time())
    with pytest.raises(SecurityError, match="was revoked at"):
        _join(str(revoked), "w")
    with pytest.raises(SecurityError, match="is for 'submit', not for 'join'"):
        _join(str(broker.ticket("submit")), "w")
    with pytest.raises(SecurityError, match="member name 'no name' must be 1 to 63 letters"):
        _join(str(broker.ticket()), "no name")


def test_tickets_outlive_the_broker(broker: Broker, tmp_path: Path) -> None:
    ticket = broker.ticket()
    broker.close()
    with closing(Broker(tmp_path / "broker")) as again:
        moved = Ticket(
            scope=ticket.scope,
            addresses=(again.join_address,),
            fingerprint=ticket.fingerprint,
            ticket_id=ticket.ticket_id,
            secret=ticket.secret,
            expires=ticket.expires,
        )
        credentials, address = _join(str(moved), "worker-1")
        with closing(RpcClient(address, credentials)) as client:
            assert client.call("whoami", Frame("who")).header["name"] == "worker-1"
