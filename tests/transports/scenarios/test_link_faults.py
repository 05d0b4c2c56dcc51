"""A link's deadlines and what it does with nonsense: connections over socket pairs, a host that does nothing, virtual times."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from farflung.errors import FarflungError
from farflung.thread_group import ThreadGroup
from farflung.transports import TransportConfig
from farflung.transports.base import Arrival, Urgency
from farflung.transports.tcp.adaptation import Cap
from farflung.transports.tcp.byte_counts import Others
from farflung.transports.tcp.connection import Connection, MessageKind, build_message
from farflung.transports.tcp.link import TcpLink
from farflung.wire.frames import Frame
from farflung.wire.headers import pack_value

HOUR = 3600.0
STATE = {"states": [[0, 0]] * len(Urgency), "errors": [], "time": 0.0, "echo": None, "beat": 0.5, "wants": 1, "arrived": 0}


class Host:
    """Knows no addresses."""

    def __init__(self) -> None:
        self.config = TransportConfig()
        self.cap = Cap()
        self.threads = ThreadGroup()
        self.said: list[str] = []

    def frame(self, peer: str, frame: Frame) -> None:
        """Nothing."""

    def arrival(self, arrival: Arrival) -> None:
        """Nothing."""

    def dial_link(self, link: TcpLink) -> bool:
        return False

    def can_dial(self, link: TcpLink) -> bool:
        return False

    def link_over(self, link: TcpLink, error: FarflungError, *, told: bool) -> None:
        """Nothing."""

    def others(self, link: TcpLink) -> Others:
        return Others(0, 0, 0)

    def log(self, text: str) -> None:
        self.said.append(text)


class Bench:
    """A link whose other ends are plain sockets."""

    def __init__(self) -> None:
        self.host = Host()
        self.link = TcpLink("b", self.host)
        self.far: list[socket.socket] = []

    def connect(self) -> Connection:
        near, far = socket.socketpair()
        far.settimeout(30.0)
        self.far.append(far)
        connection = Connection(near, self.link, dialed=False)
        self.link.add(connection)
        return connection

    def close(self) -> None:
        for far in self.far:
            far.close()
        self.link.close()
        self.host.threads.join(30.0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with closing(Bench()) as made:
        yield made


def _state(**changes: object) -> bytes:
    return build_message(MessageKind.STATE, [pack_value(STATE | changes)])


def _dead_after(bench: Bench, seconds: float) -> bool:
    """Whether a new connection that nothing comes over is broken off after so long (deadlines set back, no waiting)."""
    connection = bench.connect()
    now = time.monotonic()
    connection.deadlines.heard(now - seconds)
    bench.link.tick(now, 0.0)
    dead = connection.closing
    connection.break_off("next")
    connection.join(30.0)
    return dead


def test_part_of_a_message_is_a_sign_of_life(bench: Bench) -> None:
    near, far = socket.socketpair()
    near.setblocking(False)
    connection = Connection(near, bench.link, dialed=True)
    connection.deadlines.heard(-HOUR)
    far.send(_state()[:25])
    before = time.monotonic()
    assert not connection._read()
    assert connection.deadlines.heard_at >= before
    connection.discard()
    far.close()


def test_a_way_slower_than_thought_gets_more_time_with_each_connection(bench: Bench) -> None:
    assert not _dead_after(bench, 1.5)
    assert _dead_after(bench, 2.5)
    assert not _dead_after(bench, 3.5)
    assert _dead_after(bench, 4.5)
    assert not _dead_after(bench, 7.5)
    bench.link._got_through()
    assert _dead_after(bench, 2.5)


def test_a_state_about_no_frame_ends_the_connection_with_an_error(bench: Bench) -> None:
    connection = bench.connect()
    bench.far[0].sendall(_state(errors=[[[], 0, "WireError", "x"]]))
    connection.join(30.0)
    assert bench.link.connections == []
    assert "a link's state has an error of no frame" in bench.host.said[-1]


def test_a_defect_here_ends_the_connection_and_the_link_hears_of_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise TypeError("no such thing")

    monkeypatch.setattr(bench.link, "_take_state", fail)
    connection = bench.connect()
    bench.far[0].sendall(_state())
    connection.join(30.0)
    assert bench.link.connections == []
    assert "what came failed inside: TypeError: no such thing" in bench.host.said[-1]


def test_a_chunk_that_comes_after_the_end_is_dropped(bench: Bench) -> None:
    connection = bench.connect()
    bench.link.over = FarflungError("it is over")
    bench.link.arrived(connection, MessageKind.DATA, (0, 0), memoryview(bytes(16)))
    assert bench.link._unreadable is None
    bench.link.over = None


def test_a_defect_while_dialling_ends_the_link(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(link: TcpLink) -> bool:
        raise UnicodeError("a host of no name")

    monkeypatch.setattr(bench.host, "dial_link", fail)
    bench.link.dialer.running = True
    bench.link.dialer.run()
    assert not bench.link.dialer.running
    assert str(bench.link.over) == "dialling b failed inside: UnicodeError: a host of no name"


def test_whatever_ends_the_dialling_thread_the_next_one_may_dial(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(link: TcpLink) -> bool:
        raise SystemExit

    monkeypatch.setattr(bench.host, "dial_link", end)
    bench.link.dialer.running = True
    with pytest.raises(SystemExit):
        bench.link.dialer.run()
    assert not bench.link.dialer.running


def _waits(bench: Bench, since: float, seconds: float) -> bool:
    """Whether a link that somebody needs is still waited for after so long."""
    bench.link.peer_sent = True
    bench.link.alone_since = since
    bench.link.tick(since + seconds, 0.0)
    return bench.link.over is None


def test_who_can_not_be_dialled_is_waited_for_as_long_as_a_broken_link(bench: Bench) -> None:
    assert _waits(bench, 100.0, 19.0)
    assert not _waits(bench, 100.0, 21.0)
    assert "cannot reach b" in str(bench.link.over)


def test_who_can_be_dialled_and_never_answered_is_given_up_sooner(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.host, "can_dial", lambda link: True)
    assert _waits(bench, 100.0, 9.0)
    assert not _waits(bench, 100.0, 11.0)


def test_time_in_which_this_process_slept_counts_for_no_link(bench: Bench) -> None:
    connection = bench.connect()
    now = time.monotonic()
    connection.deadlines.heard(now - 1.0)
    bench.link.tick(now + HOUR, HOUR)  # a closed laptop
    assert not connection.closing
    connection.break_off("next")
    connection.join(30.0)
    bench.link.peer_sent = True
    alone = bench.link.alone_since
    assert alone is not None
    bench.link.tick(alone + HOUR, HOUR)
    assert bench.link.over is None
    assert bench.link.alone_since == alone + HOUR


def test_a_set_clock_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = bench.connect()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    bench.link.tick(connection.deadlines.heard_at + 1.0, 0.0)
    assert not connection.closing


@pytest.mark.parametrize(
    "points", [None, [[0.0, 1, True]], [[0.0, 1, 0, 0]], [["x", 1, True, True]], [[0.0, 1, True, True]] * 65]
)
def test_points_of_no_curve_end_the_connection(bench: Bench, points: object) -> None:
    connection = bench.connect()
    bench.far[0].sendall(_state(curve=[0, 0, points]))
    connection.join(30.0)
    assert bench.link.connections == []
    assert "a link's state has" in bench.host.said[-1] or "at most 64 points" in bench.host.said[-1]
