"""Orders that make a process fail at a named point, and wires that can be cut."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from farflung.chaos.saboteur import ORDERS, Order, Saboteur
from farflung.chaos.wires import Board, Wire
from farflung.clock import shift_wall_time, wall_time
from farflung.errors import InputError
from farflung.telemetry import FAULT_POINTS


def test_an_order_is_obeyed_once_at_its_point(tmp_path: Path) -> None:
    file, sent = tmp_path / "order", list[int]()
    saboteur = Saboteur(file, sent.append)
    saboteur("worker.before_update", {})
    Order(do="kill", point="worker.before_update").give(file)
    saboteur("worker.before_forward", {})
    assert sent == []
    saboteur("worker.before_update", {})
    saboteur("worker.before_update", {})
    Order(do="stop").give(file)
    saboteur("checkpoint.before_shard", {})
    assert sent == [signal.SIGKILL, signal.SIGSTOP]
    assert not file.exists()


def test_a_disk_is_full_for_a_while(tmp_path: Path) -> None:
    now = [0.0]
    saboteur = Saboteur(tmp_path / "order", now=lambda: now[0])
    Order(do="full_disk", seconds=5.0).give(tmp_path / "order")
    saboteur("worker.before_update", {})
    with pytest.raises(OSError, match="No space left on device"):
        saboteur("disk.before_write", {})
    now[0] = 5.0
    saboteur("disk.before_write", {})


def test_a_clock_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    Order(do="clock_jump", seconds=-300.0).give(tmp_path / "order")
    Saboteur(tmp_path / "order")("worker.before_update", {})
    try:
        assert wall_time() == 700.0
    finally:
        shift_wall_time(300.0)
    assert wall_time() == 1000.0


def test_unknown_orders_name_the_known() -> None:
    with pytest.raises(InputError, match=f"unknown fault 'melt': known are {', '.join(ORDERS)}"):
        Order(do="melt")
    with pytest.raises(InputError, match=r"unknown moment 'lunch': known are worker\.before_forward, "):
        Order(do="kill", point="lunch")
    assert Order(do="kill", point=next(iter(FAULT_POINTS)))


@pytest.fixture
def echo() -> Iterator[tuple[Board, socket.socket]]:
    """The board of a wire to a server that sends back what it gets, and a connection through it."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                one, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(one,), daemon=True).start()

    def answer(one: socket.socket) -> None:
        with one, suppress(OSError):
            while data := one.recv(1000):
                one.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    board = Board()
    wire = Wire(board, ("127.0.0.1", 0), server.getsockname(), near=lambda port: "near")
    caller = socket.create_connection(wire.address)
    caller.settimeout(60)
    yield board, caller
    caller.close()
    wire.close()
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def say(caller: socket.socket, text: bytes) -> bytes:
    caller.sendall(text)
    return caller.recv(1000)


def test_a_wire_carries_and_corrupts_one_byte(echo: tuple[Board, socket.socket]) -> None:
    board, caller = echo
    assert say(caller, b"hello") == b"hello"
    board.corrupt("far")
    assert say(caller, b"hello") == b"hell" + bytes([ord("o") ^ 0x55])
    assert say(caller, b"hello") == b"hello"


@pytest.mark.parametrize("cut", [("near",), ("near", "out"), ("near", "in"), ("far", "in"), ("far", "out")])
def test_a_cut_wire_is_silent_until_it_is_healed(echo: tuple[Board, socket.socket], cut: tuple[str, ...]) -> None:
    board, caller = echo
    assert say(caller, b"before") == b"before"
    board.cut(*cut)
    caller.sendall(b"after")
    caller.setblocking(False)
    with pytest.raises(BlockingIOError):
        caller.recv(1000)
    caller.settimeout(60)
    board.heal(cut[0])
    assert caller.recv(1000) == b"after", "nothing was lost, as over TCP"


def test_an_end_is_passed_on_and_nobody_there_is_an_end() -> None:
    with socket.socket() as held:  # it does not listen, and nobody else gets its port
        held.bind(("127.0.0.1", 0))
        wire = Wire(Board(), ("127.0.0.1", 0), held.getsockname())
        with socket.create_connection(wire.address) as caller:
            caller.settimeout(60)
            assert caller.recv(10) == b""
        wire.close()
