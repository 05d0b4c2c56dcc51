"""Browsers reach a broker's dashboard through the broker."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from farflung.broker.requests.dashboard_tunnel import DASHBOARD_FILE
from farflung.client.control import ControlClient
from farflung.client.dashboard_tunnel import DashboardPort
from farflung.errors import InputError, SecurityError
from farflung.messages.calls import DashboardBytes
from farflung.messages.wire_form import encode
from farflung.worker.membership import join
from tests.support.network.quiet import PATIENCE, until
from tests.support.runs.loopback import Loopback


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Loopback]:
    with Loopback(tmp_path, 0) as found:
        yield found


def client(cluster: Loopback, scope: str = "submit", role: str = "client") -> ControlClient:
    return ControlClient(join(cluster.ticket(scope), name=f"browser-{scope}", role=role, key=cluster.key))


def announce(cluster: Loopback, url: str) -> None:
    (cluster.broker.home / DASHBOARD_FILE).write_text(json.dumps({"url": url, "secret": "00"}))


class Capitals(socketserver.BaseRequestHandler):
    """Sends what it gets in capital letters."""

    def handle(self) -> None:
        while data := self.request.recv(1 << 16):
            self.request.sendall(data.upper())


@pytest.fixture
def dashboard(cluster: Loopback) -> Iterator[None]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Capitals) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        announce(cluster, f"http://127.0.0.1:{server.server_address[1]}")
        yield
        server.shutdown()
        thread.join()


def refusal(cluster: Loopback) -> str:
    found = client(cluster)
    try:
        with pytest.raises(InputError) as caught:
            DashboardPort(found)
    finally:
        found.close()
    return str(caught.value)


@pytest.mark.usefixtures("dashboard")
def test_bytes_pass_in_both_directions_until_the_browser_ends(cluster: Loopback) -> None:
    port = DashboardPort(client(cluster))
    text = b"x" * 300_000 + b"end"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=port.serve, args=(listening,))
        serving.start()
        with socket.create_connection(listening.getsockname()) as browser:
            browser.sendall(text)
            browser.shutdown(socket.SHUT_WR)
            found = b""
            while data := browser.recv(1 << 16):
                found += data
        assert found == text.upper()
        listening.shutdown(socket.SHUT_RDWR)
        serving.join()
    port.close()


def test_a_broker_without_a_dashboard_says_so(cluster: Loopback) -> None:
    assert refusal(cluster) == "no dashboard runs at the broker: start farflung web on its machine"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    announce(cluster, f"http://127.0.0.1:{address[1]}")
    assert refusal(cluster) == ("the broker's dashboard does not answer: Connection refused; start farflung web on its machine")


def test_a_dashboard_with_an_address_of_its_own_is_opened_there(cluster: Loopback) -> None:
    announce(cluster, "https://192.0.2.7:7080")
    assert refusal(cluster) == (
        "the dashboard of this broker has an address of its own: open https://192.0.2.7:7080, and paste the ticket there"
    )


@pytest.mark.usefixtures("dashboard")
def test_a_worker_has_no_business_there(cluster: Loopback) -> None:
    worker = client(cluster, "join", "worker")
    with pytest.raises(SecurityError, match="has no right to open the dashboard: it joined as a worker; use a submit ticket"):
        DashboardPort(worker)
    worker.close()


@pytest.mark.usefixtures("dashboard")
def test_there_are_only_so_many_connections(cluster: Loopback) -> None:
    found = client(cluster)
    held = [found.dashboard() for _ in range(32)]
    streams = [iter(one) for one in held]
    for one, stream in zip(held, streams, strict=True):
        one.send(encode(DashboardBytes(sections=(b"a",))))
        assert next(stream).sections[0] == b"A"
    with pytest.raises(
        InputError, match=r"the broker carries 32 connections of ticket \S+ with its dashboard already: close some pages"
    ):
        DashboardPort(found)
    for one in held:
        one.close()
    until(lambda: _opens(found))
    found.close()


@pytest.mark.usefixtures("dashboard")
def test_a_broker_ends_while_a_browser_is_connected(cluster: Loopback) -> None:
    found = client(cluster)
    session = found.dashboard()
    session.send(encode(DashboardBytes(sections=(b"a",))))
    stream = iter(session)
    assert next(stream).sections[0] == b"A"
    ending = threading.Thread(target=cluster.broker.close)
    ending.start()
    ending.join(PATIENCE)
    ended = not ending.is_alive()
    found.close()
    assert ended


def _opens(found: ControlClient) -> bool:
    try:
        DashboardPort(found)
    except InputError:
        return False
    return True
