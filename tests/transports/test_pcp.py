"""Routers that speak PCP, and those that do not, or lie."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from farflung.errors import ConnectionLost
from farflung.transports.pcp import PcpRouter

Answer = Callable[[bytes], list[bytes]]


def granted(request: bytes, *, host: str = "9.9.9.9", port: int = 0, lifetime: int | None = None, result: int = 0) -> bytes:
    """The answer to ``request`` of a router that agrees (RFC 6887, figures 3 and 10)."""
    asked = struct.unpack_from("!I", request, 4)[0] if lifetime is None else lifetime
    head = struct.pack("!BBxBI16x", 2, 0x80 | request[1], result, asked)
    if request[1] == 0:
        return head
    outer = port or struct.unpack_from("!H", request, 42)[0]
    return head + request[24:42] + struct.pack("!H", outer) + b"\0" * 10 + b"\xff\xff" + socket.inet_aton(host)


@contextmanager
def routers(answer: Answer) -> Iterator[tuple[int, list[bytes]]]:
    """A router on the loopback; yields its port and what it was asked."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))

        def serve() -> None:
            while (found := sock.recvfrom(2000))[0]:
                asked.append(found[0])
                for one in answer(found[0]):
                    sock.sendto(one, found[1])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield sock.getsockname()[1], asked
        finally:
            sock.sendto(b"", sock.getsockname())
            thread.join()


def test_a_port_is_mapped_renewed_and_removed() -> None:
    with routers(lambda request: [granted(request, port=7200)]) as (port, asked):
        found = PcpRouter("127.0.0.1", port)
        assert found.outer_host() == ""
        assert found.map_port(7100, 1200) == 7200
        assert found.outer_host() == "9.9.9.9"
        assert found.map_port(7100, 1200, 7200) == 7200
        found.unmap_port(7200)
    announced, mapped, renewed, removed = asked
    assert announced == bytes([2, 0, 0, 0, 0, 0, 0, 0]) + b"\0" * 10 + b"\xff\xff\x7f\0\0\1"
    assert mapped[:8] == bytes([2, 1, 0, 0]) + struct.pack("!I", 1200)
    assert mapped[36:44] == bytes([6, 0, 0, 0]) + struct.pack("!HH", 7100, 7100), "TCP, the inner and the wanted outer port"
    assert renewed[42:44] == struct.pack("!H", 7200)
    assert removed[4:8] == struct.pack("!I", 0)
    assert mapped[24:36] == renewed[24:36] == removed[24:36] != b"\0" * 12, "one random number for one mapping"


def test_a_lost_datagram_is_sent_again() -> None:
    calls: list[bytes] = []

    def second_time(request: bytes) -> list[bytes]:
        calls.append(request)
        return [granted(request)] if len(calls) % 2 == 0 else []

    with routers(second_time) as (port, _):
        assert PcpRouter("127.0.0.1", port).map_port(7100, 60) == 7100


def test_answers_that_are_none_are_skipped() -> None:
    def noisy(request: bytes) -> list[bytes]:
        good = granted(request)
        other = good[:24] + bytes(12) + good[36:]
        return [b"\0\x80\0\1\0\0\0\0", b"x", good[:1] + b"\x01" + good[2:], *([other] if request[1] else []), good]

    with routers(noisy) as (port, _):
        assert PcpRouter("127.0.0.1", port).map_port(7100, 60) == 7100


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda request: granted(request, result=2), "it does not allow this machine to map ports"),
        (lambda request: granted(request, result=12), "another NAT stands between it and this machine"),
        (lambda request: granted(request, result=77), "error 77"),
        (lambda request: granted(request, lifetime=30), "it keeps a mapping for 30 s only, and 60 s are needed"),
        (lambda request: granted(request, host="10.0.0.1"), r"it has no public IPv4 address \(10.0.0.1\)"),
    ],
)
def test_what_is_of_no_use_is_refused(answer: Callable[[bytes], bytes], text: str) -> None:
    def maps(request: bytes) -> list[bytes]:
        return [answer(request) if request[1] else granted(request)]

    with routers(maps) as (port, asked):
        found = PcpRouter("127.0.0.1", port)
        with pytest.raises(ConnectionLost, match=rf"the router 127\.0\.0\.1 maps no port: {text}"):
            found.map_port(7100, 60)
        assert found.outer_host() == ""
        made = not text.startswith(("it does not", "another", "error"))
        assert (len(asked) == 3 and asked[-1][4:8] == bytes(4)) is made, "a mapping that is of no use is removed"


def test_a_renewal_at_another_port_is_refused() -> None:
    with routers(lambda request: [granted(request, port=7300)]) as (port, _):
        found = PcpRouter("127.0.0.1", port)
        with pytest.raises(ConnectionLost, match="its port 7200 is taken now"):
            found.map_port(7100, 60, 7200)


def test_a_router_without_pcp() -> None:
    with routers(lambda request: []) as (port, asked):
        with pytest.raises(ConnectionLost, match=r"the router 127\.0\.0\.1 offers no PCP \(no answer in 1\.75 s\)"):
            PcpRouter("127.0.0.1", port)
        assert len(asked) == 3
    with pytest.raises(ConnectionLost, match=r"the router 127\.0\.0\.1 offers no PCP: Connection refused"):
        PcpRouter("127.0.0.1", port)
