"""Where a worker with addresses of both versions listens, and what it reports."""

from __future__ import annotations

import socket

import pytest

from farflung.transports import addresses
from farflung.transports.addresses import global_ipv6
from farflung.transports.tcp.sockets import open_server
from farflung.worker.links import second_address as module
from farflung.worker.links.second_address import listening_address, second_address
from farflung.worker.options import WorkerOptions


@pytest.mark.parametrize(
    ("listen", "advertise", "own_host", "ipv6", "listens", "second"),
    [
        ("0.0.0.0:0", None, "10.0.0.2", "", "0.0.0.0:0", ""),
        ("0.0.0.0:0", None, "10.0.0.2", "2600::2", "[::]:0", "[2600::2]:7100"),
        ("0.0.0.0:7100", "lab.example", "10.0.0.2", "2600::2", "[::]:7100", ""),
        ("0.0.0.0:7100", None, "[2600::2]", "2600::2", "[::]:7100", ""),  # the first address is the one with IPv6
        ("10.0.0.2:7100", None, "10.0.0.2", "2600::2", "10.0.0.2:7100", ""),
        ("", None, "10.0.0.2", "2600::2", "", ""),
    ],
)
def test_addresses(
    monkeypatch: pytest.MonkeyPatch, listen: str, advertise: str | None, own_host: str, ipv6: str, listens: str, second: str
) -> None:
    monkeypatch.setattr(module, "global_ipv6", lambda: ipv6)
    options = WorkerOptions(listen=listen, advertise=advertise)
    assert listening_address(options, own_host) == listens
    assert second_address(options, own_host, f"{own_host}:7100" if listen else "") == second


def test_a_socket_for_both_versions_accepts_both() -> None:
    with open_server("[::]:0") as server:
        port = server.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port)), server.accept()[0]:
                pass


@pytest.mark.parametrize(("own", "found"), [("2600::9", "2600::9"), ("fd00::9", ""), ("fe80::9%eth0", "")])
def test_only_an_address_that_the_internet_routes_to_counts(monkeypatch: pytest.MonkeyPatch, own: str, found: str) -> None:
    class Probe(socket.socket):
        def connect(self, place: object) -> None:
            del place

        def getsockname(self) -> tuple[str, int]:
            return own, 1

    monkeypatch.setattr(addresses.socket, "socket", Probe)
    assert global_ipv6() == found
