"""The gate in front of a listening socket: a connection costs a thread, TLS or a call only after it has sent its first bytes.

One thread accepts connections and waits for their first bytes, without a thread or memory for each of them. A connection that
sends nothing is cut after ``GateLimits.seconds``, and earlier when too many wait: the longest waiting one of the address that has
the most. So whoever opens thousands of silent connections delays nobody who speaks, and takes a bounded number of descriptors.
"""

from __future__ import annotations

import ipaddress
import select
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from farflung.clock import monotonic
from farflung.errors import FarflungError
from farflung.transports.addresses import host_and_port
from farflung.transports.descriptors import descriptor_limit
from farflung.transports.punching.observation import MAGIC, REQUEST, plain_place
from farflung.units import counted

__all__ = ["ConnectionGate", "GateLimits", "Newcomer", "PassOn", "crowded_out", "gate_limits", "group_of"]

#: Connections that are accepted before those that have sent something get their turn.
_BATCH = 64
_TICK = 0.25
#: A silent connection costs this process nothing for so many seconds: it takes no descriptor and wakes no thread.
_DEFERRED = 30
#: Seconds between two lines about connections that were cut.
_REPORT_SECONDS = 60.0
#: The head of a TLS record, its longest body, and its type for a handshake.
_TLS_HEAD, _TLS_MOST, _TLS_HANDSHAKE = 5, 1 << 14, 22


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """``waiting``: connections that may wait at once, ``of_address``: from one address; each waits ``seconds`` at most.

    ``deferred``: seconds for which the system itself keeps a connection that has sent nothing, before the gate sees it (0: none).
    """

    waiting: int
    of_address: int
    seconds: float = 5.0
    deferred: int = 0


class Newcomer(Protocol):
    """A connection that counts toward a limit; ``group`` is its address as ``group_of`` returns it."""

    @property
    def group(self) -> str:
        """Who owns the address that it comes from."""


_Any = TypeVar("_Any", bound=Newcomer)
#: Takes a connection and the ``host:port`` that it comes from.
PassOn = Callable[[socket.socket, str], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A connection that has not sent its first bytes. ``place``: where it comes from, as ``host:port``."""

    sock: socket.socket
    place: str
    group: str
    until: float


def gate_limits() -> GateLimits:
    """Return limits that leave most of this process's descriptors to others."""
    waiting = max(16, min(512, descriptor_limit() // 8))
    return GateLimits(waiting=waiting, of_address=max(8, waiting // 2), deferred=_DEFERRED)


def group_of(host: str) -> str:
    """Return what stands for the owner of the address ``host``: the address itself, or the /64 network in IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return host
    mapped = address.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((int(address), 64), strict=False))


def crowded_out(found: Mapping[_Any, object], group: str, *, most: int, of_address: int) -> _Any | None:
    """Return which one of ``found`` (the oldest first) makes room for one more of ``group`` (``None``: there is room)."""
    counts: dict[str, int] = {}
    for one in found:
        counts[one.group] = counts.get(one.group, 0) + 1
    crowd = group if counts.get(group, 0) >= of_address else ""
    if not crowd and len(found) >= most:
        crowd = max(counts, key=lambda key: counts[key])
    return next((one for one in found if one.group == crowd), None) if crowd else None


class ConnectionGate:
    """Accepts at ``server`` on the thread that calls ``run``, until ``close``.

    ``pass_on`` receives each connection that has sent its first bytes (which are still unread), and the ``host:port`` that it
    comes from. It must not wait long. With ``tls``, the first bytes are one whole TLS record of a handshake. ``observe`` gets
    connections that ask for their own address instead (``transports.punching``).
    """

    def __init__(
        self,
        server: socket.socket,
        pass_on: PassOn,
        *,
        tls: bool,
        log: Callable[[str], None] = lambda text: None,
        limits: GateLimits | None = None,
        observe: PassOn | None = None,
    ) -> None:
        self._server, self._pass_on, self._tls, self._log = server, pass_on, tls, log
        self._fixed, self._observe = limits, observe
        self._closed = threading.Event()
        #: Only the thread of ``run`` uses these. The oldest connection comes first.
        self._waiting: dict[_Waiting, None] = {}
        self._selector = selectors.DefaultSelector()
        self._cut, self._reported = 0, monotonic()
        self._wake = socket.socketpair()
        server.setblocking(False)
        _defer(server, (limits or gate_limits()).deferred)

    def close(self) -> None:
        """Accept nothing any more, from any thread; ``run`` cuts what waits, and returns."""
        self._closed.set()
        with suppress(OSError):
            self._wake[1].send(b"!")

    def run(self) -> None:
        """Accept connections until ``close``; closes the listening socket."""
        try:
            self._selector.register(self._wake[0], selectors.EVENT_READ)
            self._selector.register(self._server, selectors.EVENT_READ)
            while not self._closed.is_set():
                self._turn()
        finally:
            for one in self._waiting:
                one.sock.close()
            self._selector.close()
            for sock in (self._server, *self._wake):
                sock.close()

    def _turn(self) -> None:
        spoke = []
        for key, _ in self._selector.select(_TICK):
            if key.fileobj is self._server:
                self._accept()
            elif isinstance(key.data, _Waiting):
                spoke.append(key.data)
        for one in spoke:
            if one in self._waiting:  # it was not cut meanwhile to make room
                self._hear(one)
        now = monotonic()
        while self._waiting and (oldest := next(iter(self._waiting))).until <= now:
            self._drop(oldest)
        if self._cut and now - self._reported > _REPORT_SECONDS:
            self._log(f"refused {counted(self._cut, 'connection')} that sent no {'handshake' if self._tls else 'request'}")
            self._cut, self._reported = 0, now

    def _accept(self) -> None:
        limits = self._fixed or gate_limits()  # the limit of this process may have changed
        for _ in range(_BATCH):
            try:
                sock, (host, port, *_) = self._server.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor is free, or the caller has gone
                self._make_room()
                return
            sock.setblocking(False)
            one = _Waiting(sock, plain_place(host_and_port(host, port)), group_of(host), monotonic() + limits.seconds)
            leaves = crowded_out(self._waiting, one.group, most=limits.waiting, of_address=limits.of_address)
            if leaves is not None:
                self._drop(leaves)
            self._waiting[one] = None
            self._selector.register(sock, selectors.EVENT_READ, one)

    def _make_room(self) -> None:
        """Free one descriptor; the system reports the lack of one even where nobody calls."""
        if not self._waiting:
            self._closed.wait(_TICK)
        elif _calls(self._server):
            self._drop(next(iter(self._waiting)))

    def _hear(self, one: _Waiting) -> None:
        try:
            missing = self._missing(one.sock)
        except BlockingIOError:
            return
        except OSError:  # the caller has ended it: it only asked whether this port answers, and that is not worth a line
            self._forget(one)
            return
        except ValueError:
            self._drop(one)
            return
        if missing:  # the system wakes this thread when all of it has come
            with suppress(OSError):
                one.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, missing)
            return
        self._selector.unregister(one.sock)
        del self._waiting[one]
        with suppress(OSError):
            one.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        try:
            (self._asked_to_observe(one.sock) or self._pass_on)(one.sock, one.place)
        except (OSError, LookupError, ValueError, FarflungError):  # what a stranger sends must not end this thread
            one.sock.close()

    def _asked_to_observe(self, sock: socket.socket) -> PassOn | None:
        return self._observe if self._observe is not None and sock.recv(len(MAGIC), socket.MSG_PEEK) == MAGIC else None

    def _missing(self, sock: socket.socket) -> int:
        """Return how many bytes must lie in ``sock`` before it is passed on (0: they do).

        Raises:
            ValueError: these are not the first bytes of a handshake.
            OSError: the caller has ended the connection.
        """
        head = sock.recv(_TLS_HEAD + _TLS_MOST if self._tls else 1, socket.MSG_PEEK)
        if not head:
            raise ConnectionAbortedError
        if not self._tls:
            return 0
        if self._observe is not None and MAGIC.startswith(head[: len(MAGIC)]):
            whole = REQUEST
        elif head[0] == _TLS_HANDSHAKE:
            whole = _TLS_HEAD + int.from_bytes(head[3:5], "big") if len(head) >= _TLS_HEAD else _TLS_HEAD
        else:
            raise ValueError
        if whole > _TLS_HEAD + _TLS_MOST or len(head) < sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT):
            raise ValueError  # longer than a record; or the system woke this thread early, so nothing more will come
        return whole if len(head) < whole else 0

    def _drop(self, one: _Waiting) -> None:
        self._forget(one)
        self._cut += 1

    def _forget(self, one: _Waiting) -> None:
        del self._waiting[one]
        self._selector.unregister(one.sock)
        one.sock.close()


def _defer(server: socket.socket, seconds: int) -> None:
    """Let the system report connections at ``server`` once they have sent something, where it can. Source: tcp(7)."""
    if seconds and hasattr(socket, "TCP_DEFER_ACCEPT"):
        with suppress(OSError):  # not a TCP socket
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, seconds)


def _calls(server: socket.socket) -> bool:
    """Return whether a caller waits at ``server``."""
    found = select.poll()
    found.register(server, select.POLLIN)
    return bool(found.poll(0))
