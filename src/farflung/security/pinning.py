"""The first contact: fetch a broker's certificate and accept it only if it is the one that the ticket names."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket
import ssl

from farflung.errors import ConnectionLost, SecurityError
from farflung.units import Seconds

__all__ = ["fetch_server_certificate", "split_address"]

_PATIENCE = Seconds(10.0)


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` (or ``[ipv6]:port``) as a pair.

    Raises:
        SecurityError: there is no port from 1 to 65535, or no host name or IP address before it.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not _is_host(host) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SecurityError(f"{address!r} is not an address; write host:port, e.g. broker.example.org:7070")
    return host, int(port)


def _is_host(text: str) -> bool:
    if ":" not in text:
        return re.fullmatch(r"[\w.-]+", text) is not None
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def fetch_server_certificate(address: str, fingerprint: bytes, timeout: Seconds = _PATIENCE) -> bytes:
    """The certificate (PEM) that the server at ``address`` shows, if its SHA-256 is ``fingerprint`` (32 bytes).

    The answer serves as the only root of the connection that follows. Nothing is sent to the server before the check.

    Raises:
        ConnectionLost: nobody answers there, or not in TLS, within ``timeout`` seconds.
        SecurityError: the certificate is another one, or the address is malformed.
    """
    host, port = split_address(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    # No authority is known yet: the fingerprint below takes the place of a chain and a host name.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=timeout) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            shown = secure.getpeercert(binary_form=True)
    except OSError as error:  # ssl.SSLError and time-outs are OSErrors
        cause = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error))
        raise ConnectionLost(
            f"cannot reach the broker at {address}: {cause}; check that the broker runs and the port is open"
        ) from error
    if shown is None or not hmac.compare_digest(hashlib.sha256(shown).digest(), fingerprint):
        found = hashlib.sha256(shown or b"").hexdigest()[:16]
        raise SecurityError(
            f"the server at {address} is not the broker of this ticket: its certificate is {found}..., "
            f"the ticket names {fingerprint.hex()[:16]}...; ask the broker's owner for a fresh ticket"
        )
    return ssl.DER_cert_to_PEM_cert(shown).encode("ascii")
