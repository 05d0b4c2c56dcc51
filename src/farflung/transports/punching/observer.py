"""The broker's side of observations: answers with the address that it sees, and connects it with a member by a token."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from farflung.security import split_address
from farflung.transports.punching.observation import CALL_BACK, MAGIC, NO_TOKEN, REQUEST

__all__ = ["AddressObserver"]

#: Calls back that are under way at once; the oldest one ends for a new one.
_MOST_CALLS = 32


class AddressObserver:
    """``serve`` is called on the gates' threads, and never waits."""

    def __init__(self, seen: Callable[[str, str], None], other_port: Callable[[int], int]) -> None:
        """``seen`` gets token and ``host:port`` of each observation with a token. ``other_port``: a second port for a port."""
        self._seen, self._other_port = seen, other_port
        self._lock = threading.Lock()
        self._calls: deque[socket.socket] = deque()

    def serve(self, sock: socket.socket, place: str) -> None:
        """Answer the whole request that lies in ``sock``, whose other end is at ``place``; closes ``sock``.

        The caller keeps its end open, so its NAT keeps the mapping.

        Raises:
            OSError: the caller is gone.
            SecurityError: nobody can call back to its port 0.
        """
        with sock:
            request = sock.recv(REQUEST)
            if len(request) != REQUEST:
                return
            token = request[len(MAGIC) + 1 :].hex()
            sock.sendall(f"{place} {self._other_port(sock.getsockname()[1])}\n".encode())
        if token != NO_TOKEN:
            self._seen(token, place)
        if request[len(MAGIC)] & CALL_BACK:
            self._call_back(place)

    def close(self) -> None:
        """End the calls back."""
        with self._lock:
            while self._calls:
                self._calls.popleft().close()

    def _call_back(self, place: str) -> None:
        """Connect to the address that has just called, from another port: its owner sees whether that arrives."""
        host, port = split_address(place)
        call = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        call.setblocking(False)
        with suppress(OSError):
            call.connect((host, port))
        with self._lock:
            self._calls.append(call)
            if len(self._calls) > _MOST_CALLS:
                self._calls.popleft().close()
