"""The NAT type of this machine, from what the two ports of a broker see of one of its ports."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from farflung.errors import ConnectionLost
from farflung.nat_types import NatType, classify
from farflung.transports.addresses import host_and_port
from farflung.transports.punching.observation import observe, open_port

__all__ = ["find_nat"]

#: For each part of an observation, and for the call back.
_SECONDS, _CALL_SECONDS = 2.0, 1.0


def find_nat(place: tuple[str, int]) -> NatType:
    """Return the type of the NAT between this machine and the broker at ``place`` (host, port). Takes at most some seconds.

    Raises:
        ConnectionLost: the broker does not answer at both of its ports.
    """
    try:
        family = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0][0]
        server = open_port(family)
        server.listen()
    except OSError as error:
        raise ConnectionLost(f"cannot find the NAT between here and {host_and_port(*place)}: {error}") from error
    with ExitStack() as stack:
        stack.enter_context(server)
        server.settimeout(_CALL_SECONDS)
        port = int(server.getsockname()[1])
        first = observe(place, port=port, call_back=True, seconds=_SECONDS)
        stack.enter_context(first.sock)
        local = host_and_port(*first.sock.getsockname()[:2])
        called = _is_called(server)
        second = observe((place[0], first.second), port=port, seconds=_SECONDS)
        stack.enter_context(second.sock)
        return classify(local, (first.seen, second.seen), called_back=called)


def _is_called(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except OSError:  # in time, or at all
        return False
    return True
