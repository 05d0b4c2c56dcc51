"""A member asks a broker from which address it is seen: over the ports of the control plane, and nothing else is answered."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

import pytest

from farflung.errors import ConnectionLost
from farflung.nat_types import NatType
from farflung.transports import Insecure
from farflung.transports.connection_gate import ConnectionGate
from farflung.transports.punching import nat_probe
from farflung.transports.punching.nat_probe import find_nat
from farflung.transports.punching.observation import MAGIC, NO_TOKEN, new_token, observe, open_port, plain_place
from farflung.transports.punching.observer import AddressObserver
from farflung.transports.rpc import RpcClient
from farflung.transports.rpc.server import RpcHost, RpcServer
from farflung.wire.frames import Frame
from tests.support.network.quiet import PATIENCE, until


@dataclass
class Observing:
    place: tuple[str, int]
    seen: list[tuple[str, str]] = field(default_factory=list)
    passed: list[socket.socket] = field(default_factory=list)


@contextmanager
def observing(host: str = "127.0.0.1", second: int = 1) -> Iterator[Observing]:
    """A gate that calls ``second`` its other port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.create_server((host, 0), family=family)
    made = Observing((host, server.getsockname()[1]))
    observer = AddressObserver(lambda token, place: made.seen.append((token, place)), lambda port: second)
    gate = ConnectionGate(server, lambda sock, place: made.passed.append(sock), tls=True, observe=observer.serve)
    thread = threading.Thread(target=gate.run)
    thread.start()
    try:
        yield made
    finally:
        gate.close()
        thread.join()
        observer.close()
        for sock in made.passed:
            sock.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_broker_sees_the_port_that_is_asked_for_and_knows_whose_it_is(host: str) -> None:
    token = new_token()
    with observing(host) as made, open_port(socket.AF_INET6 if ":" in host else socket.AF_INET) as own:
        port = own.getsockname()[1]
        found = observe(made.place, port=port, token=token, seconds=PATIENCE)
        with found.sock:
            place = f"[::1]:{port}" if ":" in host else f"127.0.0.1:{port}"
            assert (found.seen, found.second) == (place, 1)
            until(lambda: made.seen)
            assert made.seen == [(token, place)]
        with observe(made.place, seconds=PATIENCE).sock:
            pass
    assert made.seen == [(token, place)], "an observation without a token is nobody's"


def test_a_machine_without_nat_is_called_back() -> None:
    with observing() as other, observing(second=other.place[1]) as made:
        assert find_nat(made.place) is NatType.NONE


def test_a_request_in_pieces_is_answered_and_others_are_not() -> None:
    request = MAGIC + bytes([0]) + bytes.fromhex(NO_TOKEN)
    with observing() as made:
        with socket.create_connection(made.place, PATIENCE) as caller:
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in request:
                caller.sendall(bytes([byte]))
            assert caller.recv(100).startswith(b"127.0.0.1:")
        with socket.create_connection(made.place, PATIENCE) as caller:
            caller.sendall(b"FARFxxxx" + request[8:])
            with suppress(ConnectionResetError):
                assert caller.recv(100) == b""
    assert made.passed == []


def test_the_control_plane_answers_observations_and_calls_at_the_same_port() -> None:
    observer = AddressObserver(lambda token, place: None, lambda port: port)
    server = RpcServer(Insecure(name="broker"), host=RpcHost(observe=observer.serve))
    server.unary("echo", lambda call, frame: frame)
    port = int(server.listen("127.0.0.1:0").rpartition(":")[2])
    server.start()
    client = RpcClient(f"127.0.0.1:{port}", Insecure(name="a"))
    try:
        with observe(("127.0.0.1", port), seconds=PATIENCE).sock:
            assert client.call("echo", Frame("hello"), timeout=PATIENCE).kind == "hello"
    finally:
        client.close()
        server.close()
        observer.close()


class Elsewhere(socket.socket):
    """Says that its callers come from ``source``: a test cannot send from there."""

    source: tuple[str, int]

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        found, _ = super().accept()
        return found, self.source


@pytest.mark.parametrize(
    ("source", "place"), [(("192.0.2.7", 0), "192.0.2.7:0"), (("::ffff:0:a00:1", 4001), "[::ffff:0:a00:1]:4001")]
)
def test_a_caller_from_a_strange_address_ends_no_gate(source: tuple[str, int], place: str) -> None:
    seen: list[tuple[str, str]] = []
    observer = AddressObserver(lambda token, place: seen.append((token, place)), lambda port: port)
    plain = socket.create_server(("127.0.0.1", 0))
    address = ("127.0.0.1", plain.getsockname()[1])
    server = Elsewhere(fileno=plain.detach())
    server.source = source
    gate = ConnectionGate(server, lambda sock, place: None, tls=True, observe=observer.serve)
    thread = threading.Thread(target=gate.run)
    thread.start()
    try:
        for _ in range(2):
            found = observe(address, token="01" * 16, call_back=source[1] == 0, seconds=PATIENCE)
            with found.sock:
                assert found.seen == place
    finally:
        gate.close()
        thread.join()
        observer.close()
    assert seen == [("01" * 16, place)] * 2


class Deaf(socket.socket):
    """Its callers are gone before it accepts them."""

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        raise ConnectionAbortedError


def test_a_call_back_that_breaks_off_did_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nat_probe, "open_port", lambda family: Deaf(fileno=open_port(family).detach()))
    with observing() as other, observing(second=other.place[1]) as made:
        assert find_nat(made.place) is NatType.PORT_RESTRICTED


@pytest.mark.parametrize("answer", [b"", b"who knows", b"x" * 1000])
def test_whoever_is_no_broker_gives_one_clear_error(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with closing(server.accept()[0]) as caller:
                caller.recv(25)
                caller.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:\d+ does not say from which address it sees this machine"):
            observe(("127.0.0.1", server.getsockname()[1]), seconds=PATIENCE)
        thread.join()


def test_an_address_of_an_ipv4_caller_is_written_as_ipv4() -> None:
    assert plain_place("[::ffff:203.0.113.9]:77") == plain_place("203.0.113.9:77") == "203.0.113.9:77"
    assert plain_place("[2001:db8::1]:77") == "[2001:db8::1]:77"
