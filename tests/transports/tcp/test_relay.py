"""Members that cannot dial each other exchange frames through a third one, which can neither read nor change them."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from farflung.errors import ConnectionLost, WireError
from farflung.security import Credentials
from farflung.transports import Insecure, TransportConfig
from farflung.transports.base import EndpointEvents
from farflung.transports.tcp import relay as tcp_relay
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.transports.tcp.relay import Desk, Forwarder, Way
from farflung.transports.tcp.relay_calls import RelayRequest
from farflung.units import Seconds
from farflung.wire.frames import Frame
from tests.support.network.quiet import PATIENCE, until

Member = Callable[..., Credentials]
CONFIG = TransportConfig(
    connect_timeout=Seconds(PATIENCE), resume=Seconds(PATIENCE), heartbeat=Seconds(10.0), redial=Seconds(0.05)
)


class Trio:
    """a and b don't listen; ``relays`` do, and may relay for them."""

    def __init__(
        self, member: Member | None, relays: str = "r", *, allowed: bool = True, config: TransportConfig = CONFIG
    ) -> None:
        self.config = config
        self.got: dict[str, list[Frame]] = {}
        self.said: list[str] = []
        self.lost: list[str] = []
        self.ends = {name: self.make(member, name, "" if name in "ab" else "127.0.0.1:0") for name in "ab" + relays}
        for relay in relays:
            if allowed:
                self.ends[relay].relay_for("run", [("b", "a")])
            for name in "ab":
                self.ends[name].connect(relay, self.ends[relay].address)
        for name, other in ("ab", "ba"):
            self.ends[name].connect(other, "")
            self.ends[name].relay_through(other, list(relays))

    def make(self, member: Member | None, name: str, listen: str) -> TcpEndpoint:
        who: Any = Insecure(name=name) if member is None else member(name)
        got = self.got[name] = []
        return TcpEndpoint(
            who,
            lambda peer, frame: got.append(frame),
            listen=listen,
            config=self.config,
            events=EndpointEvents(
                on_lost=lambda *told: self.lost.append(str(told)), log=lambda line: self.said.append(f"{name}: {line}")
            ),
        )

    def __getitem__(self, name: str) -> TcpEndpoint:
        return self.ends[name]

    def close(self) -> None:
        for end in self.ends.values():
            end.close()


def _gives_up(end: TcpEndpoint, peer: str, text: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """``end`` can't reach ``peer`` because of ``text``, and says so when its patience is at its end.

    ``meanwhile``: done again and again while it tries.
    """
    future = end.post(peer, Frame("x"))
    link = end.link_to(peer, incoming=False)
    until(lambda: meanwhile() or re.search(text, str(link.dialer.failure)))
    assert link.over is None, "it tries again for as long as its patience lasts"
    with link.changed:
        assert link.alone_since is not None
        link.alone_since -= 2 * PATIENCE
    with pytest.raises(ConnectionLost, match=text):
        future.result(PATIENCE)


def _body(size: int) -> memoryview:
    return memoryview(np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8).data)


@contextmanager
def overheard(monkeypatch: pytest.MonkeyPatch) -> Iterator[bytearray]:
    """What lies in a relay's memory while it moves bytes."""
    seen, move = bytearray(), tcp_relay.Way.move

    def listen(way: tcp_relay.Way) -> None:
        move(way)
        seen.extend(way.piece[: way.end])

    monkeypatch.setattr(tcp_relay.Way, "move", listen)
    yield seen
    monkeypatch.undo()


@pytest.mark.parametrize("secure", [True, False])
def test_frames_go_through_a_relay_both_ways(member: Member, monkeypatch: pytest.MonkeyPatch, secure: bool) -> None:
    secret = b"nobody but b shall read this " * 40
    with overheard(monkeypatch) as seen, closing(Trio(member if secure else None)) as trio:
        trio["a"].send("b", Frame("x", {}, (secret,)))
        trio["b"].send("a", Frame("y", {}, (_body(3_000_000),)))
        assert bytes(trio.got["b"][0].sections[0]) == secret
        assert bytes(trio.got["a"][0].sections[0]) == bytes(_body(3_000_000))
        assert {name: trio[name].statistics()[other].relay for name, other in ("ab", "ba")} == {"a": "r", "b": "r"}
        carried = trio["r"].relayed()
        assert carried["b", "a"] > 3_000_000
        assert carried["a", "b"] > len(secret)
        assert (secret[:200] in bytes(seen)) == (not secure)
        assert any("goes through r" in line for line in trio.said)


def test_a_relay_serves_those_only_that_it_was_told_of(member: Member) -> None:
    told = r"the relay r says: this relay was told of no run in which a and b need it"
    with closing(Trio(member, allowed=False)) as trio:
        _gives_up(trio["a"], "b", told)
    with closing(Trio(member, allowed=False)) as trio:
        trio["r"].relay_for("run", [("a", "b")])
        trio["a"].send("b", Frame("x"))
        trio["r"].relay_for("run", [])
        assert trio["r"].relaying.desk._allowed == {}
        c = trio.ends["c"] = trio.make(member, "c", "")
        c.connect("r", trio["r"].address)
        c.connect("b", "")
        c.relay_through("b", ["r"])
        _gives_up(c, "b", r"told of no run in which c and b")


def test_when_a_relay_dies_another_takes_its_place_and_the_transfer_goes_on(member: Member) -> None:
    with closing(Trio(member, "rs")) as trio:
        trio["a"].send("b", Frame("first"))
        first = trio["a"].statistics()["b"].relay
        future = trio["a"].post("b", Frame("x", {}, (_body(20_000_000),)))
        trio.ends.pop(first).close()
        future.result(PATIENCE)
        assert bytes(trio.got["b"][1].sections[0]) == bytes(_body(20_000_000))
        assert {first, trio["a"].statistics()["b"].relay} == {"r", "s"}
        assert any("a connection ended" in line for line in trio.said)
        assert trio.lost == []


def test_the_death_of_the_last_relay_is_told_clearly(member: Member) -> None:
    with closing(Trio(member)) as trio:
        trio["a"].send("b", Frame("first"))
        trio.ends.pop("r").close()
        future = trio["a"].post("b", Frame("x"))
        with pytest.raises(ConnectionLost, match=r"cannot reach b through a relay: cannot reach r at .*refused"):
            future.result(PATIENCE)


def test_a_relay_that_connects_with_somebody_else_is_found_out(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Trio(member)) as trio:
        c = trio.ends["c"] = trio.make(member, "c", "")
        c.connect("r", trio["r"].address)
        c.relay_through("a", ["r"])
        c.send("r", Frame("hello"))
        desk, park, call = trio["r"].relaying.desk, Desk.park, trio["r"].call
        monkeypatch.setattr(desk, "park", lambda sock, caller, target, until: park(desk, sock, caller, "c", until))
        monkeypatch.setattr(trio["r"], "call", lambda peer, frame: call("c", frame))
        _gives_up(trio["a"], "b", r"cannot reach b through r: .* cannot prove that it is b of this cluster")
        assert trio.got["c"] == []


def test_who_is_called_by_a_relay_that_it_does_not_know_does_not_come(member: Member) -> None:
    with closing(Trio(member)) as trio:
        trio["b"].relay_through("a", [])
        trio["b"].send("r", Frame("hello"))
        desk = trio["r"].relaying.desk
        _gives_up(trio["a"], "b", "cannot reach b", lambda: desk.tick(time.monotonic() + 2 * PATIENCE))
        assert trio.got["b"] == []


def test_an_end_without_a_link_to_the_relay_is_named(member: Member) -> None:
    with closing(Trio(member)) as trio:
        trio.ends.pop("b").close()
        _gives_up(trio["a"], "b", r"the relay r has no connection with b now")


# -- the relay's parts ----------------------------------------------------------------------------------------------------


@pytest.fixture
def ends() -> Iterator[tuple[Forwarder, socket.socket, socket.socket]]:
    """A forwarder that joins two connections, and their far ends."""
    with ExitStack() as stack:
        near, a = socket.socketpair()
        far, b = socket.socketpair()
        forwarder = stack.enter_context(closing(Forwarder()))
        for one in (a, b):
            stack.enter_context(one).settimeout(PATIENCE)
        forwarder.add(("a", "b"), (near, far))
        yield forwarder, a, b


def test_a_slow_way_out_holds_the_way_in_back(ends: tuple[Forwarder, socket.socket, socket.socket]) -> None:
    forwarder, a, b = ends
    a.setblocking(False)
    sent, pause = 0, threading.Event()
    for _ in range(40):  # nobody reads at b: what the sockets' own buffers and one piece hold is all that goes
        try:
            while True:
                sent += a.send(bytes(1 << 16))
        except BlockingIOError:
            pause.wait(0.005)
    assert sent < 2_000_000
    assert sum(len(way.piece) for splice in forwarder.splices for way in splice.ways) == 2 * tcp_relay.PIECE
    got = 0
    while got < sent:
        got += len(b.recv(1 << 16))
    assert got == sent


def test_the_end_of_one_direction_leaves_the_other(ends: tuple[Forwarder, socket.socket, socket.socket]) -> None:
    forwarder, a, b = ends
    a.sendall(b"last words")
    a.shutdown(socket.SHUT_WR)
    got = b""
    while more := b.recv(100):
        got += more
    assert got == b"last words"
    b.sendall(b"answer")
    assert a.recv(100) == b"answer"
    b.close()
    assert a.recv(100) == b""
    # the forwarder counts a piece after it has passed it on, and the end behind it may be seen first
    until(lambda: dict(forwarder.carried()) == {("a", "b"): 10, ("b", "a"): 6})


class _Breaks:
    """A socket that takes so many pieces and then breaks."""

    def __init__(self, sock: socket.socket, pieces: int) -> None:
        self.sock, self.left = sock, pieces

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)

    def send(self, piece: memoryview) -> int:
        self.left -= 1
        if self.left < 0:
            raise BrokenPipeError
        return self.sock.send(piece[:1000])


def test_what_went_before_a_break_is_counted() -> None:
    near, a = socket.socketpair()
    far, b = socket.socketpair()
    with a, b, closing(Forwarder()) as forwarder:
        a.sendall(bytes(5000))
        forwarder.add(("a", "b"), (near, _Breaks(far, 3)))  # type: ignore[arg-type]
        a.settimeout(PATIENCE)
        with suppress(ConnectionResetError):  # closed with bytes that nobody read
            assert a.recv(1) == b""
        until(lambda: dict(forwarder.carried()) == {("a", "b"): 3000})


def test_connections_whose_ends_are_gone_without_a_word_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_relay, "_TICK", 0.01)
    near, a = socket.socketpair()
    far, b = socket.socketpair()
    with a, b, closing(Forwarder(idle_seconds=0.05)) as forwarder:
        forwarder.add(("a", "b"), (near, far))
        a.settimeout(PATIENCE)
        assert a.recv(1) == b""
        assert b.recv(1) == b""


def test_a_forwarder_that_was_closed_takes_nothing_more() -> None:
    near, a = socket.socketpair()
    far, b = socket.socketpair()
    with a, b:
        forwarder = Forwarder()
        forwarder.close()
        forwarder.add(("a", "b"), (near, far))
        assert a.recv(1) == b""
        assert forwarder.count() == 0


def test_a_desk_has_quotas_and_lets_the_late_go(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Desk()) as desk:
        desk.allow("run", [("b", "a")])
        desk.check("a", "b")
        desk.check("b", "a")
        with pytest.raises(ConnectionLost, match=r"told of no run in which a and c"):
            desk.check("a", "c")
        near, far = socket.socketpair()
        far.settimeout(PATIENCE)
        with far:
            token = desk.park(near, "a", "b", 100.0)
            with pytest.raises(ConnectionLost, match="nobody waits for c here"):
                desk.claim(token, "c")
            desk.tick(99.0)
            monkeypatch.setattr(tcp_relay, "_MAX_WAITING", 1)
            with pytest.raises(ConnectionLost, match="carries as many connections as it may"):
                desk.check("a", "b")
            desk.tick(101.0)
            assert far.recv(1) == b""
            with pytest.raises(ConnectionLost, match="nobody waits for b here"):
                desk.claim(token, "b")
            desk.check("a", "b")


def test_an_end_of_permission_ends_the_connections(ends: tuple[Forwarder, socket.socket, socket.socket]) -> None:
    forwarder, a, b = ends
    forwarder.cut([("a", "c")])
    a.sendall(b"x")
    assert b.recv(1) == b"x"
    forwarder.cut([("a", "b")])
    assert b.recv(1) == b""


def test_a_malformed_request_is_refused() -> None:
    assert RelayRequest.read({"to": "b", "token": ""}) == RelayRequest("b", "")
    for value in ({}, {"to": 1, "token": ""}, {"to": "b" * 200, "token": ""}, {"to": "b", "token": None}):
        with pytest.raises(WireError, match="must say whom it is for"):
            RelayRequest.read(value)


def test_with_many_connections_messages_are_gathered_and_arrive_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty messages that come apart wake the thread a few times only. A larger transfer arrives whole, too."""
    monkeypatch.setattr(tcp_relay, "_MANY", 1)
    moves, move = 0, Way.move

    def counted(way: Way) -> None:
        nonlocal moves
        moves += 1
        move(way)

    monkeypatch.setattr(Way, "move", counted)
    with closing(Forwarder(gather_seconds=0.05)) as forwarder:
        (near, one), (far, two) = socket.socketpair(), socket.socketpair()
        with near, far:
            far.settimeout(PATIENCE)
            forwarder.add(("a", "b"), (one, two))
            begin = time.monotonic()
            for _ in range(30):
                near.sendall(b"x")
                time.sleep(0.002)
            got = b""
            while len(got) < 30:
                got += far.recv(64)
            assert moves < 10 + (time.monotonic() - begin) / 0.05, "few more than there were pauses to gather"
            sender = threading.Thread(target=near.sendall, args=(bytes(3 << 20),))
            sender.start()
            size = 0
            while size < 3 << 20:
                size += len(far.recv(1 << 20))
            sender.join()
            until(lambda: forwarder.carried() == {("a", "b"): 30 + (3 << 20)})  # of a connection that is open
    assert forwarder.carried() == {("a", "b"): 30 + (3 << 20)}
