"""Both ends of a pair dial each other at the same time, each from the port that the broker observed (TCP simultaneous open).

Source: RFC 5128, section 3.4. The first packet of either end opens a hole in its own NAT, through which the other end's packets
pass. The same port also listens: a NAT that is open to the peer's address lets in a connection from a port that nobody knew.
"""

from __future__ import annotations

import errno
import selectors
import socket
from collections.abc import Callable, Generator
from contextlib import ExitStack

from farflung.clock import monotonic
from farflung.security import split_address
from farflung.transports.punching.observation import open_port

__all__ = ["punch"]

#: Dials of one attempt at most, the pause after one that was refused, and how long one waits for an answer (seconds). The
#: system repeats a first packet after one and three seconds.
_MOST_DIALS, _PAUSE, _DIAL_SECONDS = 30, 0.1, 2.5
_TICK = 0.05
_BACKLOG = 4


def punch(
    port: int, address: str, seconds: float, stopped: Callable[[], bool] = lambda: False
) -> Generator[socket.socket, None, None]:
    """Yield connections between the local ``port`` and the peer at ``address``, as they are made, for ``seconds``.

    Whoever iterates owns them, and stops when one of them is good. Connections from other hosts are closed.

    Raises:
        OSError: the port can't be used.
    """
    host, peer_port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    until = monotonic() + seconds
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        server = stack.enter_context(open_port(family, port))
        server.listen(_BACKLOG)
        server.setblocking(False)
        selector.register(server, selectors.EVENT_READ)
        dials = _Dials(family, port, (host, peer_port), selector)
        stack.callback(dials.end)
        while (now := monotonic()) < until and not stopped():
            dials.begin(now)
            for key, _ in selector.select(_TICK):
                found = _accept(server, host) if key.fileobj is server else dials.finish(now)
                if found is not None:
                    found.setblocking(True)
                    yield found


def _accept(server: socket.socket, host: str) -> socket.socket | None:
    try:
        found, (caller, *_) = server.accept()
    except OSError:  # the caller is gone
        return None
    if caller == host:
        return found
    found.close()
    return None


class _Dials:
    """Dials again and again from one port, one dial at a time, until one succeeds."""

    def __init__(
        self, family: socket.AddressFamily, port: int, target: tuple[str, int], selector: selectors.BaseSelector
    ) -> None:
        self._family, self._port, self._target, self._selector = family, port, target, selector
        self._left, self._next, self._until = _MOST_DIALS, 0.0, 0.0
        self._dial: socket.socket | None = None

    def begin(self, now: float) -> None:
        """Begin a dial, unless one waits for an answer."""
        if self._dial is not None and now > self._until:
            self.end()
        if self._dial is not None or self._left == 0 or now < self._next:
            return
        self._left, self._next, self._until = self._left - 1, now + _PAUSE, now + _DIAL_SECONDS
        dial = open_port(self._family, self._port)
        dial.setblocking(False)
        if dial.connect_ex(self._target) in (0, errno.EINPROGRESS):
            self._dial = dial
            self._selector.register(dial, selectors.EVENT_WRITE)
        else:
            dial.close()

    def finish(self, now: float) -> socket.socket | None:
        """Return the connection that the dial has made (None: it was refused)."""
        dial = self._dial
        assert dial is not None
        self._selector.unregister(dial)
        self._dial = None
        if dial.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            dial.close()
            self._next = now + _PAUSE
            return None
        self._left = 0
        return dial

    def end(self) -> None:
        """End the dial that waits."""
        if self._dial is not None:
            self._selector.unregister(self._dial)
            self._dial.close()
            self._dial = None
