"""Wires between processes of one machine that can be cut: relays of TCP connections without root and without a name space.

Everything that is sent to a ``Wire`` comes out at its target. While one of its ends is silenced, nothing passes, without a word:
connections stay open and nothing arrives, as when a cable is pulled. Bytes that were under way wait, as TCP would send them
again. ``corrupt`` changes one byte on its way. Costs a copy of each byte in this process.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from farflung.thread_group import ThreadGroup

__all__ = ["Board", "Wire"]

_BLOCK = 1 << 16
#: A connection that is being made has a timeout of 10 s.
_END_SECONDS = 15.0


class Board:
    """Which processes hear and are heard; shared by the wires between them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._silent: dict[str, frozenset[str]] = {}
        self._corrupt: set[str] = set()

    def cut(self, name: str, *ways: str) -> None:
        """Nothing that ``name`` sends (``out``) or is sent to it (``in``) passes; no way named: neither."""
        with self.changed:
            self._silent[name] = frozenset(ways or ("in", "out"))

    def heal(self, name: str) -> None:
        """Let everything of ``name`` through again."""
        with self.changed:
            self._silent.pop(name, None)
            self.changed.notify_all()

    def corrupt(self, name: str) -> None:
        """Change a byte of what ``name`` sends next."""
        with self.changed:
            self._corrupt.add(name)

    def passes(self, sender: str, receiver: str) -> bool:
        """Whether something may pass (under the lock)."""
        return "out" not in self._silent.get(sender, ()) and "in" not in self._silent.get(receiver, ())

    def spoils(self, sender: str) -> bool:
        """Whether what ``sender`` sends now is to be damaged, once (under the lock)."""
        found = sender in self._corrupt
        self._corrupt.discard(sender)
        return found


class Wire:
    """Listens at ``listen`` (host and port) and joins each connection with one to ``target``.

    ``near``: who dials (or who dialled from a port of this machine); ``far``: who is at the target.
    """

    def __init__(
        self,
        board: Board,
        listen: tuple[str, int],
        target: tuple[str, int],
        *,
        near: str | Callable[[int], str] = "near",
        far: str = "far",
    ) -> None:
        self._board, self._target, self._near, self._far = board, target, near, far
        self._closed = False
        self._sockets: set[socket.socket] = set()
        self._server = socket.create_server(listen)
        self.address: tuple[str, int] = self._server.getsockname()[:2]
        self._threads = ThreadGroup()
        self._threads.spawn("wire-accept", self._accept)

    def close(self) -> None:
        """End it with all connections."""
        with self._board.changed:
            self._closed = True
            sockets = list(self._sockets)
            self._board.changed.notify_all()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # its thread closes it
        self._threads.join(_END_SECONDS)

    def _accept(self) -> None:
        while True:
            try:
                near, address = self._server.accept()
            except OSError:
                return
            self._threads.spawn("wire-join", self._join, near, int(address[1]))

    def _join(self, near: socket.socket, port: int) -> None:
        name = self._near if isinstance(self._near, str) else self._near(port)
        self._wait(name, self._far)
        self._wait(self._far, name)  # a connection is made by both sides
        try:
            far = socket.create_connection(self._target, timeout=10.0)
        except OSError:
            near.close()  # nobody listens there: refused here, too, as well as a relay can
            return
        far.settimeout(None)
        with self._board.changed:
            self._sockets |= {near, far}
            if self._closed:
                far.shutdown(socket.SHUT_RDWR)
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink, names in ((near, far, (name, self._far)), (far, near, (self._far, name))):
            self._threads.spawn("wire-carry", self._carry, source, sink, names)

    def _wait(self, sender: str, receiver: str) -> bool:
        """Wait until something may pass; whether it is to be damaged."""
        with self._board.changed:
            self._board.changed.wait_for(lambda: self._closed or self._board.passes(sender, receiver))
            return self._board.spoils(sender) if not self._closed else False

    def _carry(self, source: socket.socket, sink: socket.socket, names: tuple[str, str]) -> None:
        with suppress(OSError):  # one end is gone: the other one hears of it below, as soon as the wire lets it
            while data := source.recv(_BLOCK):
                if self._wait(*names):
                    data = data[:-1] + bytes([data[-1] ^ 0x55])
                sink.sendall(data)
        with self._board.changed:
            self._board.changed.wait_for(lambda: self._closed or self._board.passes(*names))
            self._sockets.discard(source)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()  # the other way has its own thread, which ends now and closes the other one
