"""What stands between the network and a gRPC server: a gate, and limits for connections that have proved nothing yet.

gRPC accepts every connection at once and keeps it until its handshake times out, so silent callers use up its descriptors and
calls. Here gRPC listens at a socket in a private folder. A connection reaches it after its first bytes (``connection_gate``), and
one thread (``tcp.relay.Forwarder``) moves the bytes, which stay encrypted.

A connection is unproven until a call of a member came over it, and for ``FrontLimits.proof`` seconds at most: by then gRPC has
ended it unless its handshake succeeded. Too many
unproven connections crowd out the oldest one of the address that has the most. An honest caller needs far less time.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from farflung.clock import monotonic
from farflung.thread_group import ThreadGroup
from farflung.transports.connection_gate import ConnectionGate, PassOn, crowded_out, group_of
from farflung.transports.descriptors import descriptor_limit
from farflung.transports.tcp.relay import Forwarder, Splice
from farflung.transports.tcp.sockets import tune

__all__ = ["HANDSHAKE_SECONDS", "FrontLimits", "RpcFront", "address_behind"]

#: How long gRPC waits for a handshake.
HANDSHAKE_SECONDS = 10.0
#: Seconds to reach the gRPC server, which is on this machine.
_INNER_SECONDS = 1.0
#: With many members, messages wait for others for at most so long, so that heartbeats wake few threads.
_GATHER_SECONDS = 0.005
#: Descriptors of one connection: two here, one in the gRPC server.
_DESCRIPTORS = 3
#: The front's sockets are called so, with a token and the caller's address; and how gRPC names such a peer.
_PREFIX = "farflung/"
_PEER = f"unix-abstract:{_PREFIX}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontLimits:
    """``unproven``: such connections at once, ``of_address``: from one address. ``life``: seconds that a connection may last."""

    unproven: int = 64
    of_address: int = 32
    proof: float = HANDSHAKE_SECONDS
    life: float = math.inf


@dataclass(frozen=True, slots=True, eq=False)
class _Caller:
    """A connection that reached gRPC, and is unproven ``until`` (monotonic seconds). gRPC names it by ``token``."""

    token: str
    group: str
    until: float
    splice: Splice


def address_behind(peer: str) -> str:
    """Return the caller's ``host:port`` where gRPC names the front's own socket as the peer."""
    return peer.rpartition("/")[2] if peer.startswith(_PEER) else peer


class RpcFront:
    """Serves the listening socket ``server`` for the gRPC server that listens at the socket ``inner``.

    ``observe`` answers connections that ask for their own address.
    """

    def __init__(
        self,
        server: socket.socket,
        inner: Path,
        *,
        tls: bool,
        limits: FrontLimits,
        log: Callable[[str], None] = lambda text: None,
        observe: PassOn | None = None,
    ) -> None:
        self._limits = limits
        self._folder = os.open(inner.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        #: A short name of the socket: the system allows about a hundred characters.
        self.inner = f"/proc/self/fd/{self._folder}/{inner.name}"
        self._gate = ConnectionGate(server, self._enter, tls=tls, log=log, observe=observe)
        # gRPC's own keepalive ends connections with callers that are gone
        self._forwarder = Forwarder(idle_seconds=math.inf, ended=self._left, gather_seconds=_GATHER_SECONDS)
        self._threads = ThreadGroup()
        self._lock = threading.Lock()
        #: The connections that reached gRPC, the oldest first; and the tokens of those over which no member has called.
        self._callers: dict[_Caller, None] = {}
        self._unproven: set[str] = set()

    def start(self) -> None:
        """Let connections in."""
        self._threads.spawn("control-gate", self._gate.run)

    def prove(self, peer: str) -> None:
        """A member has called over the connection that gRPC calls ``peer``."""
        with self._lock:
            self._unproven.discard(_token(peer))

    def refuse(self) -> None:
        """Let no connection in any more."""
        self._gate.close()

    def close(self) -> None:
        """End all connections."""
        self._gate.close()
        self._threads.join()
        self._forwarder.close()
        os.close(self._folder)

    def _enter(self, sock: socket.socket, place: str) -> None:
        group, now = group_of(place.rpartition(":")[0].strip("[]")), monotonic()
        with self._lock:
            unproven = {one: None for one in self._callers if one.token in self._unproven and now < one.until}
            most = max(8, min(self._limits.unproven, descriptor_limit() // (8 * _DESCRIPTORS)))
            leaves = crowded_out(unproven, group, most=most, of_address=min(self._limits.of_address, most // 2))
            if leaves is None and len(self._callers) * _DESCRIPTORS >= descriptor_limit() // 2:
                leaves = next(reversed(self._callers))  # members that work here stay
        if leaves is not None:
            self._forwarder.end(leaves.splice)
        inner, token = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), secrets.token_hex(6)
        try:
            inner.bind(f"\0{_PREFIX}{token}/{place}")
            inner.settimeout(_INNER_SECONDS)
            inner.connect(self.inner)
            tune(sock)
        except OSError:
            inner.close()
            raise
        with self._lock:
            splice = self._forwarder.add(("caller", "server"), (sock, inner), self._limits.life)
            self._callers[_Caller(token, group, now + self._limits.proof, splice)] = None
            self._unproven.add(token)

    def _left(self, splice: Splice) -> None:
        with self._lock:
            for one in self._callers:
                if one.splice is splice:
                    del self._callers[one]
                    self._unproven.discard(one.token)
                    return


def _token(peer: str) -> str:
    return peer.removeprefix(_PEER).partition("/")[0]
