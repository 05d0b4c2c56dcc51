"""Asks a broker from which address and port it sees this machine: one small request and one line over plain TCP.

The connection leaves from the very local port that is punched later, and stays open meanwhile, so its NAT mapping does too. It
goes to a port of the control plane, which firewalls let in anyway. Nothing in it is secret but the ``token``, a random number
that the broker issued over TLS for this one observation. A thief of a token can only make one attempt fail: TLS of the link
then finds somebody else.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from contextlib import ExitStack
from dataclasses import dataclass

from farflung.errors import ConnectionLost
from farflung.transports.addresses import host_and_port

__all__ = ["CALL_BACK", "MAGIC", "NO_TOKEN", "REQUEST", "Observation", "new_token", "observe", "open_port", "plain_place"]

#: A request: ``MAGIC``, one byte of flags, a token of 16 bytes. No TLS record begins with these letters.
MAGIC = b"FARFNAT1"
REQUEST = len(MAGIC) + 1 + 16
#: The flag with which a caller wants to be called back at the address that the observer sees.
CALL_BACK = 1
NO_TOKEN = "0" * 32
_MOST_ANSWER = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """``seen``: this machine's ``host:port`` as the observer sees it. ``second``: another port of the observer.

    ``sock`` keeps the mapping; whoever asked closes it.
    """

    sock: socket.socket
    seen: str
    second: int


def new_token() -> str:
    """Return a token that nobody guesses."""
    return secrets.token_hex(16)


def open_port(family: socket.AddressFamily, port: int = 0) -> socket.socket:
    """Return a TCP socket at a local ``port`` (0: any free one) that other sockets of this process share."""
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        found.bind(("", port))
    except OSError:
        found.close()
        raise
    return found


def observe(
    place: tuple[str, int], *, port: int = 0, token: str = NO_TOKEN, call_back: bool = False, seconds: float
) -> Observation:
    """Ask the broker at ``place`` (host, port) what it sees of the local ``port`` (0: any free one).

    Raises:
        ConnectionLost: there is no answer within ``seconds`` for each part.
    """
    try:
        family, _, _, _, target = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0]
        with ExitStack() as undo:
            sock = undo.enter_context(open_port(family, port))
            sock.settimeout(seconds)
            sock.connect(target)
            sock.sendall(MAGIC + bytes([CALL_BACK if call_back else 0]) + bytes.fromhex(token))
            seen, second = _read_answer(sock)
            undo.pop_all()
            return Observation(sock=sock, seen=seen, second=second)
    except (OSError, ValueError) as error:
        raise ConnectionLost(f"{host_and_port(*place)} does not say from which address it sees this machine: {error}") from error


def _read_answer(sock: socket.socket) -> tuple[str, int]:
    answer = b""
    while not answer.endswith(b"\n"):
        piece = sock.recv(_MOST_ANSWER)
        if not piece or len(answer) > _MOST_ANSWER:
            raise ValueError("it is no broker of this version")
        answer += piece
    seen, second = answer.decode("ascii").split()
    return seen, int(second)


def plain_place(place: str) -> str:
    """Return the ``host:port`` of ``place``; an IPv4 address that a socket for IPv6 shows is written as IPv4."""
    host, _, port = place.rpartition(":")
    found = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return host_and_port(str(mapped or found), int(port))
