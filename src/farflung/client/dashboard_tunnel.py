"""The near end of connections with a broker's dashboard: a port of this machine whose bytes go through the broker."""

from __future__ import annotations

import socket
from contextlib import suppress

from farflung.client.control import ControlClient
from farflung.errors import ConnectionLost, FarflungError
from farflung.messages.calls import DashboardBytes
from farflung.messages.schema import Channel
from farflung.messages.wire_form import decode_as, encode
from farflung.thread_group import ThreadGroup
from farflung.transports.rpc import RpcSession
from farflung.transports.tcp.sockets import cut

__all__ = ["DashboardPort"]

_PIECE = 64 << 10


class DashboardPort:
    """Threads: "tunnel-in" and "tunnel-out" for each connection of a browser."""

    def __init__(self, client: ControlClient) -> None:
        """See that the broker has a dashboard.

        Raises:
            FarflungError: it has none, or refuses.
        """
        self._client = client
        self._threads = ThreadGroup()
        session = client.dashboard()
        with suppress(ConnectionLost):  # it is over already: reading tells why
            session.end()
        for _ in session:
            pass

    def serve(self, listening: socket.socket) -> None:
        """Serve the connections of ``listening`` until it is closed, or a signal raises."""
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            try:
                session = self._client.dashboard()
            except FarflungError:
                connection.close()
                continue
            self._threads.spawn("tunnel-out", _send, connection, session)
            self._threads.spawn("tunnel-in", _receive, connection, session)

    def close(self) -> None:
        """End all connections with the broker, and join the threads."""
        self._client.close()
        self._threads.join()


def _send(connection: socket.socket, session: RpcSession) -> None:
    with suppress(OSError, FarflungError):
        while data := connection.recv(_PIECE):
            session.send(encode(DashboardBytes(sections=(data,))))
    with suppress(FarflungError):
        session.end()


def _receive(connection: socket.socket, session: RpcSession) -> None:
    with connection:
        with suppress(OSError, FarflungError):
            for frame in session:
                connection.sendall(decode_as(frame, Channel.ANSWERS, DashboardBytes).sections[0])
        cut(connection)
