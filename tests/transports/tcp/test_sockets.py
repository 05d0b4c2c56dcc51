"""Send buffers: asked for only where that gives more than a buffer grows to by itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from farflung.transports.tcp import sockets as tcp_socket
from farflung.transports.tcp.sockets import _send_room, set_backlog, tune


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    _send_room.cache_clear()
    yield
    _send_room.cache_clear()


def system(monkeypatch: pytest.MonkeyPatch, most: int, grown: int) -> None:
    says = {"wmem_max": f"{most}\n", "tcp_wmem": f"4096\t16384\t{grown}\n"}
    monkeypatch.setattr(Path, "read_text", lambda path, *rest: says[path.name])


@pytest.mark.parametrize(
    ("most", "grown", "room"),
    [
        (4 << 20, 4 << 20, 4 << 20),
        (212_992, 4 << 20, 0),
        (2 << 20, 4 << 20, 0),
        (64 << 20, 64 << 20, 0),
        (64 << 20, 4 << 20, 16 << 20),
    ],
)
def test_what_is_asked_for(monkeypatch: pytest.MonkeyPatch, most: int, grown: int, room: int) -> None:
    system(monkeypatch, most, grown)
    assert _send_room() == room


def test_a_system_that_does_not_say_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path, *rest: object) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert _send_room() == 0


def test_a_connection_gets_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_socket, "_send_room", lambda: 100_000)
    with socket.socket() as connection:
        tune(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 100_000


@pytest.mark.parametrize("room", [0, 8 << 20])
def test_what_may_lie_unsent_is_bounded_from_the_beginning(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr(tcp_socket, "_send_room", lambda: room)
    with socket.socket() as connection:
        tune(connection)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 64 << 10
        set_backlog(connection, 1 << 20)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 1 << 20
