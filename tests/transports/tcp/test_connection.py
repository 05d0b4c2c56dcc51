"""A connection uses all of its send buffer. At its end, the last message arrives although the other side still sends."""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from farflung.errors import FarflungError
from farflung.thread_group import ThreadGroup
from farflung.transports import Insecure, TransportConfig
from farflung.transports.base import EndpointEvents, Urgency
from farflung.transports.tcp import connection, link
from farflung.transports.tcp.connection import Connection, MessageKind, build_message
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.transports.tcp.relay_calls import PROTOCOL
from farflung.transports.tcp.sockets import set_backlog
from farflung.units import Seconds
from farflung.wire.frames import Frame, encode_frame
from farflung.wire.headers import pack_value, unpack_value
from tests.support.network.quiet import PATIENCE, until

#: On a busy machine, nobody is taken for dead.
CALM = TransportConfig(resume=Seconds(PATIENCE), heartbeat=Seconds(10.0))


def test_who_still_sends_learns_why_its_frame_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusing side closes last: unread bytes would reset the connection, and the reset can overtake the reason."""
    monkeypatch.setattr(connection, "LINGER_SECONDS", PATIENCE)
    monkeypatch.setattr(link, "_GOODBYE_SECONDS", 0.0)
    causes: list[str] = []
    events = EndpointEvents(on_lost=lambda peer, error, run: causes.append(str(error)))
    a = TcpEndpoint(Insecure(name="a"), lambda peer, frame: None, listen="127.0.0.1:0", config=CALM, events=events)
    with closing(a), _greeted(a, "first") as b:
        b.sendall(build_message(MessageKind.DATA, [bytes([0xFF]) * 100]))  # not the head of a frame
        assert MessageKind.FATAL in _kinds_until_the_end(b)
        b.sendall(bytes(32 << 20))
        assert causes == []
        with _greeted(a, "second") as again:
            assert MessageKind.HELLO in _kinds_until_the_end(again, MessageKind.HELLO)
        assert len(causes) == 1
        assert "it sent what can't be read" in causes[0]


@pytest.mark.parametrize("slow", [False, True])
def test_one_state_says_that_a_frame_has_come_and_was_handled_unless_its_handler_is_slow(
    monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    monkeypatch.setattr(connection, "_STATE_SECONDS", 0.0 if slow else PATIENCE)
    began, gate = threading.Event(), threading.Event()

    def handle(peer: str, frame: Frame) -> None:
        began.set()
        gate.wait(PATIENCE)

    a = TcpEndpoint(Insecure(name="a"), handle, listen="127.0.0.1:0", config=CALM)
    with closing(a), _greeted(a, "first") as b:
        b.sendall(build_message(MessageKind.STATE, [pack_value(EMPTY)]))
        assert MessageKind.STATE in _kinds_until_the_end(b, MessageKind.STATE)  # the first state, before anything has come
        b.sendall(build_message(MessageKind.DATA, encode_frame(Frame("probe", {}), checksum=False), lane=1))
        assert began.wait(PATIENCE)
        states = _states(b)
        if slow:
            assert next(states) == [1, 0]
        gate.set()
        assert next(states) == [1, 1]


#: The state of a peer that has got nothing.
EMPTY = {
    "states": [[0, 0]] * len(Urgency),
    "errors": [],
    "time": 0.0,
    "echo": None,
    "beat": 10.0,
    "wants": 1,
    "arrived": 0,
    "curve": [],
}


def _states(sock: socket.socket) -> Iterator[list[int]]:
    """Give what comes in states of lane 1, once a chunk has come: the next chunk, and how many frames were handled."""
    while head := sock.recv(20, socket.MSG_WAITALL):
        body = sock.recv(int.from_bytes(head[4:8], "little"), socket.MSG_WAITALL)
        if head[0] == MessageKind.STATE and (found := unpack_value(body, 8)["states"][1]) != [0, 0]:
            yield found


class Endless:
    """A link that always has something to send."""

    def __init__(self) -> None:
        self.threads = ThreadGroup()

    def waits(self, connection: Connection) -> bool:
        return True

    def next_message(self, connection: Connection) -> bytes:
        return bytes(64 << 10)

    def arrived(self, connection: Connection, kind: int, place: tuple[int, int], body: memoryview) -> None:
        raise AssertionError("nothing is sent to it")

    def pause(self) -> float:
        return 0.0

    def comes(self, connection: Connection) -> None:
        pass

    def gives(self, connection: Connection) -> None:
        pass

    def looks(self, connection: Connection) -> bool:
        return False

    def ended(self, connection: Connection, why: str, error: FarflungError | None) -> None:
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell how full a buffer is")
def test_all_of_the_send_buffer_is_used() -> None:
    """Linux reports room only when a third of the buffer is free."""
    source = Endless()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        set_backlog(sock, 64 << 20)
        made = Connection(sock, source, dialed=True)
        made.start()
        until(lambda: _share_in_use(sock) > 0.9)  # nobody reads
        made.break_off("the test is over")
        made.join()


def _share_in_use(sock: socket.socket) -> float:
    """Return which share of the send buffer is in use; see ``SO_MEMINFO``."""
    info = struct.unpack("6I", sock.getsockopt(socket.SOL_SOCKET, 55, 24))
    return info[5] / info[3]


def _greeted(endpoint: TcpEndpoint, name: str) -> socket.socket:
    """Dial ``endpoint`` as b, whose link is ``name``."""
    host, _, port = endpoint.address.rpartition(":")
    sock = socket.create_connection((host, int(port)), PATIENCE)
    hello = {"protocol": PROTOCOL, "name": "b", "link": name, "to": endpoint.name}
    sock.sendall(build_message(MessageKind.HELLO, [pack_value(hello)]))
    return sock


def _kinds_until_the_end(sock: socket.socket, last: MessageKind | None = None) -> list[int]:
    """Return the kinds of the messages that come until the other side ends its direction, or until ``last``."""
    kinds: list[int] = []
    while head := sock.recv(20, socket.MSG_WAITALL):
        sock.recv(int.from_bytes(head[4:8], "little"), socket.MSG_WAITALL)
        kinds.append(head[0])
        if head[0] == last:
            break
    return kinds
