"""A wire between processes of one machine that can be cut: a relay of TCP connections without root and without a name space.

Everything that is sent to a ``Wire`` comes out at its target. ``cut`` stops both ways or one, without a word: connections stay
open and nothing arrives, as when a cable is pulled; ``corrupt`` changes one byte on its way. Bytes that were under way when the
wire was cut wait, as TCP would send them again. Costs a copy of each byte in this process.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

__all__ = ["Wire"]

_BLOCK = 1 << 16


class Wire:
    """Listens at ``listen`` (host and port) and joins each connection with one to ``target``."""

    def __init__(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self._target = target
        self._lock = threading.Condition()
        #: Ways that are cut: ``there`` (to the target) and ``back``.
        self._cut: frozenset[str] = frozenset()
        self._corrupt = False
        self._closed = False
        self._sockets: set[socket.socket] = set()
        self._server = socket.create_server(listen)
        self.address: tuple[str, int] = self._server.getsockname()[:2]
        threading.Thread(target=self._accept, name="wire", daemon=True).start()

    def cut(self, *ways: str) -> None:
        """Let nothing through ``there``, ``back`` (nothing named: both), until ``heal``."""
        with self._lock:
            self._cut = frozenset(ways or ("there", "back"))

    def heal(self) -> None:
        """Let everything through again."""
        with self._lock:
            self._cut = frozenset()
            self._lock.notify_all()

    def corrupt(self) -> None:
        """Change a byte of what comes through next."""
        with self._lock:
            self._corrupt = True

    def close(self) -> None:
        """End it with all connections."""
        with self._lock:
            self._closed = True
            sockets = list(self._sockets)
            self._lock.notify_all()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        for one in (self._server, *sockets):
            with suppress(OSError):
                one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(near,), name="wire", daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        with self._lock:
            self._lock.wait_for(lambda: self._closed or not self._cut)  # a connection can't be made while the wire is cut
        try:
            far = socket.create_connection(self._target, timeout=10.0)
        except OSError:
            near.close()  # nobody listens there: refused here, too, as well as a relay can
            return
        far.settimeout(None)
        with self._lock:
            self._sockets |= {near, far}
            closed = self._closed
        if closed:
            near.close()
            far.close()
            return
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink, way in ((near, far, "there"), (far, near, "back")):
            threading.Thread(target=self._carry, args=(source, sink, way), name="wire", daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            while data := source.recv(_BLOCK):
                sink.sendall(self._through(data, way))
        except OSError:
            pass  # one end is gone: the other one hears of it below, as soon as the wire lets it
        with self._lock:
            self._lock.wait_for(lambda: self._closed or way not in self._cut)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()  # the other way has its own thread, which ends now and closes the other one
        with self._lock:
            self._sockets.discard(source)

    def _through(self, data: bytes, way: str) -> bytes:
        with self._lock:
            self._lock.wait_for(lambda: self._closed or way not in self._cut)
            if not self._corrupt:
                return data
            self._corrupt = False
        return data[:-1] + bytes([data[-1] ^ 0x55])
