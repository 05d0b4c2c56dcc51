"""Connections of clients with this machine's dashboard, through the broker: ``farflung web --ticket`` on other machines."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from farflung.broker.requests.permission import client_of
from farflung.errors import ConnectionLost, FarflungError, InputError
from farflung.messages.calls import DashboardBytes
from farflung.messages.schema import Channel
from farflung.messages.wire_form import decode_as, encode
from farflung.thread_group import ThreadGroup
from farflung.transports.rpc.calls import Call
from farflung.transports.rpc.server import RpcServer
from farflung.transports.tcp.sockets import cut
from farflung.wire.frames import Frame

__all__ = ["DASHBOARD_FILE", "DashboardTunnel"]

#: In the broker's folder: a JSON object with the ``url`` of the dashboard that runs.
DASHBOARD_FILE = "dashboard.json"
#: Connections at a time, of all clients and of those of one ticket; seconds to reach the dashboard; bytes of a message.
_MOST, _MOST_OF_TICKET, _SECONDS, _PIECE = 64, 32, 5.0, 64 << 10


class DashboardTunnel:
    """Serves the call ``dashboard``, one for each connection. The dashboard asks for a sign-in itself.

    Threads: "dashboard-*" for the bytes of a client; those of the dashboard move on the thread of the call.
    """

    def __init__(self, home: Path, ticket_of: Callable[[str], str]) -> None:
        """``home``: the broker's folder. ``ticket_of`` returns the ticket of a member's name."""
        self._home, self._ticket_of = home, ticket_of
        self._lock = threading.Lock()
        #: Connections by ticket.
        self._open: Counter[str] = Counter()
        self._threads = ThreadGroup()

    def register(self, server: RpcServer) -> None:
        """Serve the call."""
        server.session("dashboard", self.serve)

    def close(self) -> None:
        """Join the threads, after the server was closed."""
        self._threads.join()

    def serve(self, call: Call, frames: Iterator[Frame]) -> Iterator[Frame]:
        """Move bytes both ways until one side ends.

        Raises:
            InputError: no dashboard runs, only its own address reaches it, or there are too many connections.
            SecurityError: the caller is no client.
        """
        name = client_of(call, "open the dashboard").name
        with self._place(self._ticket_of(name)), self._connect() as connection:
            call.on_end(lambda: cut(connection))
            self._threads.spawn(f"dashboard-{name}", _send, frames, connection)
            with suppress(OSError):
                while data := connection.recv(_PIECE):
                    yield encode(DashboardBytes(sections=(data,)))
            cut(connection)

    @contextmanager
    def _place(self, ticket: str) -> Iterator[None]:
        """Count a connection of ``ticket``.

        Raises:
            InputError: there are too many.
        """
        with self._lock:
            for count, most, whose in (
                (self._open.total(), _MOST, ""),
                (self._open[ticket], _MOST_OF_TICKET, f" of ticket {ticket}"),
            ):
                if count >= most:
                    raise InputError(f"the broker carries {most} connections{whose} with its dashboard already: close some pages")
            self._open[ticket] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[ticket] -= 1

    def _connect(self) -> socket.socket:
        try:
            url = str(json.loads((self._home / DASHBOARD_FILE).read_text(encoding="utf-8"))["url"])
        except (OSError, ValueError, KeyError, TypeError):
            raise InputError("no dashboard runs at the broker: start farflung web on its machine") from None
        if not url.startswith("http://"):
            raise InputError(f"the dashboard of this broker has an address of its own: open {url}, and paste the ticket there")
        host, _, port = url.partition("://")[2].rpartition(":")
        try:
            found = socket.create_connection((host.strip("[]"), int(port)), _SECONDS)
        except OSError as error:
            cause = error.strerror or error
            raise InputError(f"the broker's dashboard does not answer: {cause}; start farflung web on its machine") from None
        found.settimeout(None)
        return found


def _send(frames: Iterator[Frame], connection: socket.socket) -> None:
    """Pass the client's bytes on. If the client breaks off, so does the connection."""
    try:
        for frame in frames:
            connection.sendall(decode_as(frame, Channel.UPLOADS, DashboardBytes).sections[0])
        connection.shutdown(socket.SHUT_WR)
    except (OSError, FarflungError, ConnectionLost):
        cut(connection)
