"""First contact over a real TLS socket on the loopback: the pinned certificate or nothing."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farflung.errors import ConnectionLost, SecurityError
from farflung.security import certificate_fingerprint, fetch_server_certificate
from farflung.security.authority import CertificateAuthority
from farflung.units import Seconds


@contextmanager
def _server(folder: Path) -> Iterator[tuple[str, bytes]]:
    """A TLS server for one handshake: (address, certificate)."""
    server = CertificateAuthority.open(folder, time.time()).server_credentials(time.time())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server-certificate.pem", folder / "server-key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            plain, _ = listener.accept()
            with context.wrap_socket(plain, server_side=True) as secure:
                secure.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", server.certificate
        thread.join()


def test_the_pinned_certificate_is_returned(tmp_path: Path) -> None:
    with _server(tmp_path) as (address, certificate):
        assert certificate_fingerprint(fetch_server_certificate(address, certificate_fingerprint(certificate))) == (
            certificate_fingerprint(certificate)
        )


def test_another_certificate_is_refused(tmp_path: Path) -> None:
    with (
        _server(tmp_path) as (address, _),
        pytest.raises(
            SecurityError, match=r"is not the broker of this ticket: its certificate is [0-9a-f]{16}\.\.\., the ticket names 0000"
        ),
    ):
        fetch_server_certificate(address, bytes(32))


def test_nobody_there() -> None:
    with socket.socket() as held:  # nobody else gets its port
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ConnectionLost, match=f"cannot reach the broker at {address}: .*refused; check that the broker runs"):
            fetch_server_certificate(address, bytes(32))


def test_a_silent_server_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConnectionLost, match="no answer; check that the broker runs and the port is open"):
            fetch_server_certificate(address, bytes(32), timeout=Seconds(0.05))


def test_a_malformed_address() -> None:
    with pytest.raises(SecurityError, match="'nowhere' is not an address; write host:port"):
        fetch_server_certificate("nowhere", bytes(32))
