"""The gate: silent connections are cut and keep nobody out; whoever speaks passes."""

from __future__ import annotations

import errno
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

import pytest

from farflung.errors import SecurityError
from farflung.transports import connection_gate
from farflung.transports.connection_gate import ConnectionGate, GateLimits, PassOn, crowded_out, group_of
from farflung.transports.punching.observation import MAGIC, REQUEST
from farflung.transports.tcp.sockets import open_server
from tests.support.network.quiet import until
from tests.support.network.silent_callers import client_hello, silent_callers

PATIENCE = 60.0
LASTING = GateLimits(waiting=32, of_address=16, seconds=3600.0)


@dataclass(eq=False)
class Passed:
    address: str
    socks: list[socket.socket]
    waiting: dict[object, None]
    log: list[str]


@contextmanager
def gate(limits: GateLimits = LASTING, *, tls: bool = True, observe: PassOn | None = None) -> Iterator[Passed]:
    server = open_server("127.0.0.1:0")
    found: list[socket.socket] = []
    log: list[str] = []
    made = ConnectionGate(server, lambda sock, place: found.append(sock), tls=tls, log=log.append, limits=limits, observe=observe)
    address = f"127.0.0.1:{server.getsockname()[1]}"
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield Passed(address, found, made._waiting, log)  # type: ignore[arg-type]
    finally:
        made.close()
        thread.join()
        for sock in found:
            sock.close()


def _ended(sock: socket.socket) -> bool:
    sock.settimeout(PATIENCE)
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_the_longest_waiting_connection_of_an_address_makes_room() -> None:
    with gate() as passed, silent_callers(passed.address, 100) as callers:
        assert all(_ended(caller) for caller in callers[: 100 - LASTING.of_address])
        until(lambda: len(passed.waiting) == LASTING.of_address)
        with silent_callers(passed.address, 1, client_hello()):
            until(lambda: len(passed.socks) == 1)


def test_silence_has_an_end() -> None:
    with gate(GateLimits(waiting=32, of_address=16, seconds=0.05)) as passed, silent_callers(passed.address, 3) as callers:
        assert all(_ended(caller) for caller in callers)
        assert passed.socks == []


def test_a_caller_that_only_asks_whether_the_port_answers_is_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """farflung does so itself when it joins."""
    monkeypatch.setattr(connection_gate, "_REPORT_SECONDS", 0.0)
    with gate() as passed:
        with silent_callers(passed.address, 3):
            until(lambda: len(passed.waiting) == 3)
        with silent_callers(passed.address, 1, b"GET / HTTP/1.1") as (caller,):
            assert _ended(caller)
        until(lambda: passed.log)
        assert passed.log == ["refused 1 connection that sent no handshake"]


def test_a_hello_may_come_in_pieces_and_stays_unread() -> None:
    hello = client_hello()
    with gate() as passed, silent_callers(passed.address, 1) as (caller,):
        for piece in (hello[:2], hello[2:7], hello[7:-1]):
            caller.sendall(piece)
        with silent_callers(passed.address, 1, hello):  # so that the gate has seen the pieces
            until(lambda: len(passed.socks) == 1)
        caller.sendall(hello[-1:])
        until(lambda: len(passed.socks) == 2)
        assert passed.socks[1].recv(1 << 15) == hello


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\xff\xff", b"\x17\x03\x03\x00\x01x"])
def test_what_is_no_hello_is_cut_at_once(first: bytes) -> None:
    with gate() as passed, silent_callers(passed.address, 1, first) as (caller,):
        assert _ended(caller)
        assert passed.socks == []


def test_a_hello_that_breaks_off_is_cut() -> None:
    with gate() as passed, silent_callers(passed.address, 1, client_hello()[:40]) as (caller,):
        caller.shutdown(socket.SHUT_WR)
        assert _ended(caller)


def _observed(sock: socket.socket, place: str) -> None:
    sock.close()


@pytest.mark.parametrize("first", [MAGIC[:3], MAGIC, MAGIC + b"\0"])
def test_a_request_for_an_observation_that_breaks_off_is_cut(first: bytes) -> None:
    with gate(observe=_observed) as passed, silent_callers(passed.address, 1, first) as (caller,):
        caller.shutdown(socket.SHUT_WR)
        assert _ended(caller)
    assert passed.socks == []


@pytest.mark.parametrize("error", [SecurityError("port 0"), ValueError("no address"), KeyError("a"), ConnectionResetError()])
def test_a_caller_with_whom_something_fails_keeps_nobody_else_out(error: Exception) -> None:
    def observe(sock: socket.socket, place: str) -> None:
        raise error

    request = MAGIC + bytes(REQUEST - len(MAGIC))
    with gate(observe=observe) as passed, silent_callers(passed.address, 1, request) as (caller,):
        assert _ended(caller)
        with silent_callers(passed.address, 1, client_hello()):
            until(lambda: len(passed.socks) == 1)


def _took_one(taken: list[socket.socket]) -> bool:
    try:
        taken.append(socket.socket())
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        return False
    return True


def test_without_free_descriptors_those_who_wait_make_room() -> None:
    """All descriptors of the process are taken: the silent connection is cut for the one that speaks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with gate() as passed, silent_callers(passed.address, 1) as (caller,), closing(socket.socket()) as second:
        until(lambda: len(passed.waiting) == 1)
        taken: list[socket.socket] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(64, second.fileno() + 8), hard))
        try:
            while _took_one(taken):
                pass
            host, _, port = passed.address.rpartition(":")
            second.connect((host, int(port)))
            second.sendall(client_hello())
            assert _ended(caller)
            until(lambda: len(passed.socks) == 1)
        finally:
            for sock in taken:
                sock.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@dataclass(frozen=True, eq=False)
class _One:
    group: str


def test_who_makes_room() -> None:
    crowd, single = [_One("crowd") for _ in range(3)], _One("single")
    found = dict.fromkeys([single, *crowd])
    assert crowded_out(found, "single", most=10, of_address=3) is None
    assert crowded_out(found, "crowd", most=10, of_address=3) is crowd[0]
    assert crowded_out(found, "new", most=4, of_address=3) is crowd[0]


def test_an_owner_of_a_network_counts_once() -> None:
    assert group_of("192.0.2.7") == group_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert group_of("2001:db8::1") == group_of("2001:db8::2:0:0:1") != group_of("2001:db8:0:1::1")
    assert group_of("fe80::1%eth0") == group_of("fe80::2")
    with suppress(ValueError):
        assert group_of("no address") == "no address"
