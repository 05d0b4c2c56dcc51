"""Callers that connect and then do as little as they can."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

__all__ = ["client_hello", "silent_callers"]


def client_hello() -> bytes:
    """The first record of a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


@contextmanager
def silent_callers(address: str, count: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """``count`` connections to ``address`` that have sent ``first`` and send nothing more."""
    host, _, port = address.rpartition(":")
    with ExitStack() as ending:
        found = [ending.enter_context(socket.socket()) for _ in range(count)]
        for caller in found:
            caller.settimeout(60.0)
            caller.connect((host, int(port)))
            if first:
                with suppress(OSError):  # it was cut already
                    caller.sendall(first)
        yield found
