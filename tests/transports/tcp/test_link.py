"""Outbox over TCP when the network misbehaves (cut, frozen, corrupted, one-way): real sockets behind a bad router."""

from __future__ import annotations

import re
import socket
import ssl
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farflung.errors import ConnectionLost, FarflungError, SecurityError, TrainingError, WireError
from farflung.messages.data import ProbeBytes
from farflung.security import Credentials
from farflung.step.transfer.outbox import Outbox, OutgoingMessage
from farflung.transports import Insecure, TransportConfig, Urgency
from farflung.transports.base import EndpointEvents
from farflung.transports.tcp import endpoint as tcp_endpoint
from farflung.transports.tcp.connection import MessageKind, build_message
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.transports.tcp.sockets import KernelView, TlsContexts, dial, flow_view, kernel_view
from farflung.units import Seconds
from farflung.wire.frames import Frame
from farflung.wire.headers import pack_value
from tests.support.network.quiet import PATIENCE, until
from tests.support.network.silent_callers import client_hello

Member = Callable[..., Credentials]
#: A busy machine may not let a thread run for seconds: nobody is taken for dead in that time, and nobody is given up.
CALM = TransportConfig(connect_timeout=Seconds(PATIENCE), resume=Seconds(PATIENCE), heartbeat=Seconds(10.0), redial=Seconds(0.05))
#: For those tests that are about what is found dead.
ALERT = replace(CALM, heartbeat=Seconds(0.1))


class Router:
    """Forwards connections to ``target``, and does what bad routers do."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._pairs: list[tuple[socket.socket, socket.socket, threading.Event]] = []
        self._threads: list[threading.Thread] = []
        self.passed = 0
        self._away = False
        #: Bytes by connection, in the order of their making.
        self.carried: list[int] = []
        #: While it is clear, nothing passes.
        self.open = threading.Event()
        self.open.set()
        #: When so many bytes have passed, ``deed`` is done, once.
        self.after = 1 << 62
        self.deed: Callable[[bytearray], None] = lambda data: None
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                if self._away:
                    near.close()
                    continue
                try:
                    far = socket.create_connection(self._target)
                except OSError:  # the target is closed; the caller is not kept waiting
                    near.close()
                    continue
                frozen = threading.Event()
                self._pairs.append((near, far, frozen))
                self.carried.append(0)
                for source, sink in ((near, far), (far, near)):
                    self._start(self._pump, source, sink, frozen, len(self.carried) - 1)

    def _pump(self, source: socket.socket, sink: socket.socket, frozen: threading.Event, index: int) -> None:
        with suppress(OSError):
            while data := bytearray(source.recv(65536)):
                self.open.wait(PATIENCE)
                self.passed += len(data)
                self.carried[index] += len(data)
                if self.passed > self.after:
                    self.after = 1 << 62
                    self.deed(data)
                if not frozen.is_set():
                    sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def cut(self, data: object = None) -> None:
        for near, far, _ in self._pairs:
            for one in (near, far):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def refuse(self, away: bool) -> None:
        """Whether new connections end before a byte passes."""
        self._away = away

    def freeze(self, data: object = None) -> None:
        """What exists stays open and carries nothing any more: a machine that vanished."""
        for _, _, frozen in self._pairs:
            frozen.set()

    @staticmethod
    def corrupt(data: bytearray) -> None:
        data[len(data) // 2] ^= 0x10

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()  # no pair is made any more
        self._server.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        for near, far, _ in self._pairs:
            near.close()
            far.close()


class Pair:
    """a sends to b through a router."""

    def __init__(self, a: Any, b: Any, config: TransportConfig = CALM) -> None:
        self.got: list[Frame] = []
        self.lost: list[str] = []
        self.told = threading.Event()
        self.said: list[str] = []
        self.b = TcpEndpoint(
            b,
            lambda peer, frame: self.got.append(frame),
            listen="127.0.0.1:0",
            config=config,
            events=EndpointEvents(on_lost=self._told, log=self.said.append),
        )
        self.router = Router(self.b.address)
        self.a = TcpEndpoint(
            a,
            lambda peer, frame: None,
            listen="127.0.0.1:0",
            config=config,
            events=EndpointEvents(on_lost=self._told, log=self.said.append),
        )
        self.a.connect("b", self.router.address)

    def _told(self, peer: str, error: ConnectionLost, run: str) -> None:
        self.lost.append(f"{peer} {run}: {error}")
        self.told.set()

    def close(self) -> None:
        self.a.close()
        self.b.close()
        self.router.close()


@pytest.fixture(params=["tls", "plain"])
def pair(request: pytest.FixtureRequest, member: Member) -> Iterator[Pair]:
    """Alert, if the test's name speaks of what is dead."""
    names: tuple[Any, Any] = (member("a"), member("b")) if request.param == "tls" else (Insecure(name="a"), Insecure(name="b"))
    with closing(Pair(*names, ALERT if "dead" in request.node.name else CALM)) as made:
        yield made


def _body(size: int, seed: int = 0) -> memoryview:
    return memoryview(np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).data)


def _transfer(pair: Pair, size: int = 12_000_000) -> None:
    body = _body(size)
    pair.a.post("b", Frame("x", {"n": 1}, (body,))).result(PATIENCE)
    [frame] = pair.got
    assert bytes(frame.sections[0]) == bytes(body)


def test_a_cut_transfer_goes_on_where_it_stood(pair: Pair) -> None:
    pair.router.after, pair.router.deed = 6_000_000, pair.router.cut
    _transfer(pair)
    seen = pair.a.statistics()["b"]
    assert seen.resumed >= 1
    assert 0 <= seen.repeated < 6_000_000 + 6_000_000  # what had arrived was not sent again
    assert pair.router.passed < 2 * 12_000_000
    assert any("a connection ended" in line for line in pair.said)
    assert any("connected again after" in line for line in pair.said)
    assert pair.lost == []


def test_corruption_is_found_and_repaired(pair: Pair) -> None:
    pair.router.after, pair.router.deed = 3_000_000, pair.router.corrupt
    _transfer(pair)
    assert pair.a.statistics()["b"].resumed >= 1


def test_a_frozen_connection_is_found_dead_and_replaced(pair: Pair) -> None:
    pair.router.after, pair.router.deed = 2_000_000, pair.router.freeze
    _transfer(pair)
    assert any("no data for " in line for line in pair.said)


def test_a_peer_whose_machine_refuses_is_gone(pair: Pair) -> None:
    pair.a.send("b", Frame("x"))
    pair.router.close()
    future = pair.a.post("b", Frame("x"))
    with pytest.raises(ConnectionLost, match="refused"):
        future.result(PATIENCE)


def test_who_was_sending_and_is_gone_is_reported(member: Member) -> None:
    """b knows where a is, so it asks a's machine, which refuses."""
    with closing(Pair(member("a"), member("b"))) as pair:
        pair.b.connect("a", pair.a.address)
        pair.a.send("b", Frame("x", {"run": "first"}))
        gate = pair.a._gate
        assert gate is not None
        gate.close()
        until(lambda: gate._server.fileno() == -1)
        pair.a._addresses.clear()  # a neither listens nor dials: as good as dead
        pair.router.cut()
        assert pair.told.wait(PATIENCE)
        assert pair.lost[0].startswith("a first: ")


def test_it_is_enough_if_one_can_dial(member: Member) -> None:
    """a does not know where b is; b has dialled a, and a sends over b's connections."""
    got: list[str] = []
    a = TcpEndpoint(member("a"), lambda peer, frame: None, listen="127.0.0.1:0", config=CALM)
    b = TcpEndpoint(member("b"), lambda peer, frame: got.append(frame.kind), listen="127.0.0.1:0", config=CALM)
    with closing(a), closing(b):
        b.connect("a", a.address)
        b.send("a", Frame("hello"))
        a.send("b", Frame("answer"))
        assert got == ["answer"]
        with pytest.raises(ConnectionLost, match="address is unknown"):
            a.send("c", Frame("x"))


def test_the_urgent_overtakes_the_bulky(member: Member) -> None:
    config = TransportConfig(chunk_bytes=16 << 10)
    with closing(Pair(member("a"), member("b"), config)) as pair:
        pair.a.send("b", Frame("first"))
        pair.router.after = pair.router.passed + 1_000_000
        urgent: list[Any] = []
        pair.router.deed = lambda data: urgent.append(pair.a.post("b", Frame("verdict"), Urgency.CONTROL))
        bulk = pair.a.post("b", Frame("weights", {}, (_body(40_000_000),)), Urgency.BULK)
        bulk.result(PATIENCE)
        urgent[0].result(PATIENCE)
        assert [frame.kind for frame in pair.got] == ["first", "verdict", "weights"]


def test_several_connections_carry_one_frame(member: Member) -> None:
    config = TransportConfig(stripes=4, max_stripes=4)
    with closing(Pair(member("a"), member("b"), config)) as pair:
        first = 0
        for _ in range(3):
            _four_carry(pair, first)
            first = len(pair.router.carried)
            assert pair.a.drop("b", "as a test") == 4


def _four_carry(pair: Pair, first: int) -> None:
    """Send until four connections, none of them older than ``first``, have carried parts of frames and are all there is."""

    def carried() -> bool:
        pair.got.clear()
        _transfer(pair, 5_000_000)  # more are dialled meanwhile
        return sum(count > 100_000 for count in pair.router.carried[first:]) >= 4

    until(carried)
    until(lambda: pair.a.statistics()["b"].connections == 4)


def test_of_two_connections_that_cross_one_stays(member: Member) -> None:
    """Both sides dial at once; the surplus goes when both know why it is there, and frames go on meanwhile."""
    got: list[Frame] = []
    ends = [
        TcpEndpoint(member(name), lambda peer, frame: got.append(frame), listen="127.0.0.1:0", config=CALM) for name in ("a", "b")
    ]
    a, b = ends
    with closing(a), closing(b):
        dialled = [threading.Thread(target=one.connect, args=(other.name, other.address)) for one, other in ((a, b), (b, a))]
        for thread in dialled:
            thread.start()
        for thread in dialled:
            thread.join()
        for number in range(20):
            a.post("b", Frame("value", {"number": number})).result(PATIENCE)
        until(lambda: {one.statistics()[other].connections for one, other in ((a, "b"), (b, "a"))} == {1})
        b.post("a", Frame("value")).result(PATIENCE)
    assert len(got) == 21


def test_a_handler_s_error_reaches_the_sender_and_the_link_lives(member: Member) -> None:
    def take(peer: str, frame: Frame) -> None:
        if frame.kind == "bad":
            raise TrainingError("no such value")
        if frame.kind == "defect":
            raise KeyError("oops")

    b = TcpEndpoint(member("b"), take, listen="127.0.0.1:0", config=CALM)
    a = TcpEndpoint(member("a"), take, listen="127.0.0.1:0", config=CALM)
    with closing(a), closing(b):
        a.connect("b", b.address)
        with pytest.raises(TrainingError, match="no such value"):
            a.send("b", Frame("bad"))
        with pytest.raises(FarflungError, match="failed inside: KeyError"):
            a.send("b", Frame("defect"))
        a.send("b", Frame("good"))


def test_strangers_are_refused(member: Member) -> None:
    said: list[str] = []
    with closing(
        TcpEndpoint(
            member("b"), lambda peer, frame: None, listen="127.0.0.1:0", config=CALM, events=EndpointEvents(log=said.append)
        )
    ) as b:
        foreign = member("a", cluster="two")
        with closing(TcpEndpoint(foreign, lambda peer, frame: None, listen="127.0.0.1:0", config=CALM)) as a:
            a.connect("b", b.address)
            with pytest.raises(SecurityError, match="cannot prove that it is b of this cluster"):
                a.send("b", Frame("x"))
        with closing(TcpEndpoint(member("a"), lambda peer, frame: None, listen="127.0.0.1:0", config=CALM)) as a:
            a.connect("c", b.address)
            with pytest.raises(SecurityError, match="cannot prove that it is c of this cluster"):
                a.send("c", Frame("x"))


def test_who_greets_nobody_keeps_nobody_out(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_endpoint, "_MAX_GREETING", 2)
    with closing(TcpEndpoint(member("b"), lambda peer, frame: None, listen="127.0.0.1:0", config=CALM)) as b:
        host, _, port = b.address.rpartition(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(3)]
        with closing(TcpEndpoint(member("a"), lambda peer, frame: None, listen="127.0.0.1:0", config=CALM)) as a:
            a.connect("b", b.address)
            a.post("b", Frame("x")).result(PATIENCE)
        for one in silent:
            one.close()


def test_who_trickles_its_greeting_is_cut_off_in_the_end(member: Member) -> None:
    """Each byte would keep a socket's own timeout from running out."""
    said: list[str] = []
    with closing(
        TcpEndpoint(
            member("b"), lambda peer, frame: None, listen="127.0.0.1:0", config=CALM, events=EndpointEvents(log=said.append)
        )
    ) as b:
        host, _, port = b.address.rpartition(":")
        with socket.create_connection((host, int(port))) as caller:
            caller.settimeout(PATIENCE)
            caller.sendall(client_hello())
            until(lambda: b.greeted.count == 1)
            now = time.monotonic()
            assert b.greeted.cut_late(now + tcp_endpoint.GREETING_SECONDS - 5) == 0
            caller.sendall(b"\x14")
            assert b.greeted.cut_late(now + tcp_endpoint.GREETING_SECONDS) == 1
            with suppress(ConnectionResetError):
                while caller.recv(4096):  # the answer to the hello, then the end
                    pass
        until(lambda: bool(said))
        assert said[0].startswith("a connection was refused: ")


def test_a_look_at_the_port_is_not_worth_a_line(member: Member) -> None:
    said: list[str] = []
    with closing(
        TcpEndpoint(
            member("b"), lambda peer, frame: None, listen="127.0.0.1:0", config=CALM, events=EndpointEvents(log=said.append)
        )
    ) as b:
        dial("b", b.address, TlsContexts(member("broker", role="broker")), 10.0).close()
        until(lambda: b.greeted.count == 0)
    assert said == []


def test_only_one_dials_after_an_outage_and_that_suffices(member: Member) -> None:
    """b never learns where a is; while the network is away nobody answers, then a's next try does."""
    with closing(Pair(member("a"), member("b"))) as pair:
        pair.a.send("b", Frame("first"))
        pair.router.refuse(True)
        pair.router.cut()
        until(lambda: pair.a.statistics()["b"].connections == 0)
        back = pair.b.post("a", Frame("late"))
        pair.router.refuse(False)
        back.result(PATIENCE)
        assert pair.a.statistics()["b"].resumed == 1


def test_a_certificate_that_differs_by_case_is_somebody_else_s(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such ones were granted once; TLS itself finds nothing wrong with them."""
    monkeypatch.setattr("farflung.security.authority.subject_names", lambda *_: ["B.member.farflung", "worker.role.farflung"])
    old = member("b")
    monkeypatch.undo()
    with (
        closing(TcpEndpoint(old, lambda peer, frame: None, listen="127.0.0.1:0", config=CALM)) as b,
        closing(TcpEndpoint(member("a"), lambda peer, frame: None, listen="127.0.0.1:0", config=CALM)) as a,
    ):
        a.connect("b", b.address)
        with pytest.raises(SecurityError, match="proves a name that differs from b in capital letters"):
            a.send("b", Frame("x"))


@pytest.mark.parametrize(
    ("greeting", "text"),
    [
        (b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n", "not a greeting|damaged"),
        (build_message(MessageKind.HELLO, [pack_value({"protocol": 99})]), "version 99 of links"),
        (build_message(MessageKind.HELLO, [pack_value({"protocol": 1, "name": "a"})]), "must name its sender"),
        (build_message(MessageKind.DATA, [b"x"]), "must begin with a greeting|malformed"),
    ],
)
def test_bad_greetings_end_the_connection(greeting: bytes, text: str) -> None:
    said: list[str] = []
    with closing(
        TcpEndpoint(
            Insecure(name="b"),
            lambda peer, frame: None,
            listen="127.0.0.1:0",
            config=CALM,
            events=EndpointEvents(log=said.append),
        )
    ) as b:
        host, _, port = b.address.rpartition(":")
        with socket.create_connection((host, int(port))) as caller:
            caller.sendall(greeting)
            caller.settimeout(PATIENCE)
            with suppress(ConnectionResetError):
                assert caller.recv(100) == b""
    assert len(said) == 1
    assert re.match(f"a connection was refused: .*({text})", said[0])


def test_a_peer_that_was_started_again_has_forgotten_everything(member: Member) -> None:
    handled = threading.Event()
    a = TcpEndpoint(member("a"), lambda peer, frame: None, listen="127.0.0.1:0", config=CALM)
    b = TcpEndpoint(member("b"), lambda peer, frame: handled.wait(PATIENCE) and None, listen="127.0.0.1:0", config=CALM)
    with closing(a):
        a.connect("b", b.address)
        futures = [a.post("b", Frame("x")) for _ in range(2)]
        handled.set()
        for future in futures:
            future.result(PATIENCE)
        b.close()
        until(lambda: a.statistics()["b"].connections == 0)
        got: list[str] = []
        again = TcpEndpoint(member("b"), lambda peer, frame: got.append(frame.kind), listen=b.address, config=CALM)
        with closing(again):
            a.send("b", Frame("new"))
            assert got == ["new"]


def test_the_kernel_names_its_congestion_control(member: Member) -> None:
    with closing(Pair(member("a"), member("b"))) as pair:
        pair.a.send("b", Frame("x"))
        seen = pair.a.statistics()["b"]
        assert seen.congestion
        assert seen.connections == 1
        assert 0 < seen.round_trip < 5
    with socket.socket(socket.AF_UNIX) as other:
        assert kernel_view(other) == KernelView("", 0.0)


def test_closing_waits_for_nobody_who_does_not_answer(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that stops in its greeting, and a machine that takes connections and says nothing: both would last 100 s."""
    monkeypatch.setattr(tcp_endpoint, "GREETING_SECONDS", 100.0)
    config = TransportConfig(connect_timeout=Seconds(100.0))
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as caller:
        a = TcpEndpoint(member("a"), lambda peer, frame: None, listen="127.0.0.1:0", config=config)
        with closing(a):
            host, _, port = a.address.rpartition(":")
            caller.connect((host, int(port)))
            caller.sendall(client_hello())
            a.connect("b", f"127.0.0.1:{silent.getsockname()[1]}")
            future = a.post("b", Frame("x"))
            until(lambda: a.unfinished.count == a.greeted.count == 1)
        with pytest.raises(ConnectionLost, match="closed on this side"):
            future.result(PATIENCE)
        with pytest.raises(ConnectionAbortedError), a.unfinished.guard(caller):
            pytest.fail("nothing begins any more")


def test_breaking_off_leaves_encryption_on(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """``SSLSocket.shutdown`` goes over to plain text first, under the feet of the thread that is sending."""
    switched_off: list[int] = []
    monkeypatch.setattr(ssl.SSLSocket, "shutdown", lambda self, how: switched_off.append(how))
    with closing(Pair(member("a"), member("b"))) as pair:
        pair.a.send("b", Frame("x"))
        assert pair.a.drop("b", "as a test") == 1
        pair.got.clear()
        _transfer(pair, 1_000_000)
        assert switched_off == []


def test_memory_stays_bounded_while_the_way_to_a_peer_crawls(member: Member) -> None:
    """Alive of 60 arrays: 6 in the queue, 4 in the window, one that waits for it, one whose post waits; a few that are done."""
    count, held, most = 60, 12, 16
    posted = threading.Semaphore(0)
    beyond = threading.Event()
    alive: set[int] = set()
    peak: list[int] = []
    errors: list[BaseException] = []

    def produce() -> None:
        for number in range(count):
            array = np.full(1 << 19, number, np.uint8)
            alive.add(number)
            weakref.finalize(array, alive.discard, number)
            peak.append(len(alive))
            if number == held:
                beyond.set()
            posted.release()
            links.post("b", OutgoingMessage(make=lambda array=array: ProbeBytes(sections=(memoryview(array),))))  # type: ignore[misc]
            del array

    with closing(Pair(member("a"), member("b"))) as pair:
        pair.a.send("b", Frame("first"))
        pair.router.open.clear()
        with closing(Outbox(pair.a, ["b"], errors.append)) as links:
            producer = threading.Thread(target=produce)
            producer.start()
            for _ in range(held):
                assert posted.acquire(timeout=PATIENCE)
            assert not beyond.wait(0.3)  # the link takes nothing, so nothing more is made
            pair.router.open.set()
            producer.join(PATIENCE)
            links.flush()
            assert [int(frame.sections[0][0]) for frame in pair.got[1:]] == list(range(count))
            assert max(peak) <= most
        assert errors == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts the bytes of a connection like this")
def test_the_kernel_counts_what_a_connection_carries() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far = server.accept()[0]
        with far:
            near.sendall(bytes(10_000))
            far.recv(10_000, socket.MSG_WAITALL)
            seen, there = flow_view(near), flow_view(far)
            assert seen is not None
            assert there is not None
            assert (seen.sent, seen.unsent, there.received, there.early) == (10_000, 0, 10_000, 0)
            assert 0 <= seen.confirmed <= 10_001
    assert flow_view(near) is None
    left, right = socket.socketpair()
    with left, right:
        assert flow_view(left) is None


def test_a_link_s_own_traffic_tells_its_latency(member: Member) -> None:
    b = TcpEndpoint(member("b"), lambda peer, frame: None, listen="127.0.0.1:0", config=ALERT)
    a = TcpEndpoint(member("a"), lambda peer, frame: None, listen="127.0.0.1:0", config=ALERT)
    with closing(b), closing(a):
        a.connect("b", b.address)
        for _ in range(20):
            a.send("b", Frame("values", {}, (bytes(300_000),)))
        until(lambda: a.statistics()["b"].alpha > 0)
        assert a.statistics()["b"].alpha < 1.0


def test_a_member_that_nobody_announced_sends_no_large_frames(member: Member) -> None:
    """b knows where a is, and a was not told of b: its frame of 65 MB is refused at its head, before any memory is taken."""
    got: list[str] = []
    a = TcpEndpoint(member("a"), lambda peer, frame: got.append(frame.kind), listen="127.0.0.1:0", config=CALM)
    b = TcpEndpoint(member("b"), lambda peer, frame: None, listen="127.0.0.1:0", config=CALM)
    with closing(a), closing(b):
        b.connect("a", a.address)
        b.send("a", Frame("small"))
        with pytest.raises(WireError, match=r"oversized frame: 68157440 bytes of sections, the limit is 67108864"):
            b.send("a", Frame("large", {}, (bytes(65 << 20),)))
        a.connect("b", "")
        b.send("a", Frame("large", {}, (bytes(65 << 20),)))
        assert got == ["small", "large"]
