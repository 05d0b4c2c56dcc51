"""Sockets as links want them: dialled or accepted, under TLS with certificates on both sides, tuned as far as the system lets us.

Congestion control matters more than anything else on a lossy long way (at 0.5 % loss, 100 Mbit/s and 50 ms BBR keeps 0.88 of
the rate and cubic 0.04), so BBR is asked for on each socket. ``TCP_NOTSENT_LOWAT`` keeps what the kernel holds but has not sent
short, so that an urgent chunk does not wait behind megabytes.

What is sent and not confirmed stays in the send buffer. So the buffer bounds what a connection carries per round trip, and all of
it must be used (``is_crowded``).
"""

from __future__ import annotations

import errno
import fcntl
import functools
import math
import os
import socket
import ssl
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farflung.clock import monotonic
from farflung.errors import ConnectionLost, InputError, SecurityError
from farflung.security import Caller, Credentials, read_caller, split_address, tls_name
from farflung.transports.base import lost
from farflung.transports.config import Insecure
from farflung.transports.tcp.bbr_pause import BbrView

__all__ = [
    "FlowView",
    "KernelView",
    "TlsContexts",
    "Unfinished",
    "bbr_view",
    "caller_of",
    "cut",
    "dial",
    "flow_view",
    "is_crowded",
    "kernel_view",
    "open_server",
    "secure",
    "set_backlog",
    "takes_more",
    "tune",
    "unconfirmed",
]

_WAITING_CALLERS = 4096
#: The most that a send buffer is asked for: bytes.
_MOST_ROOM = 16 << 20
#: What may lie unsent in the kernel until a link knows its rate: bytes.
_FIRST_BACKLOG = 64 << 10
_NOTSENT_LOWAT = 25
_CC_INFO = 26
_MEMINFO = 55
#: The request for the bytes of a socket that were never sent (linux/sockios.h).
_SIOCOUTQNSD = 0x894B
#: BBR's window over the bandwidth-delay product, in 1/256: only PROBE_RTT has 1.
_PROBE_RTT_GAIN = 256
#: A handshake may take so many times what each of its parts may.
_HANDSHAKES = 3


class TlsContexts:
    """Both sides of TLS 1.3 for one member; the key never touches a disk."""

    def __init__(self, credentials: Credentials) -> None:
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (self.server, self.client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_verify_locations(cadata=credentials.authority.decode("ascii"))
            context.verify_mode = ssl.CERT_REQUIRED
            context.sslsocket_class = _Wrapped
            _load_pair(context, credentials.certificate, credentials.key)
        self.server.num_tickets = 0  # sessions are never taken up again: links are few and long


class _Wrapped(ssl.SSLSocket):
    """Closes itself where the other side is gone before there is TLS: ``wrap_socket`` then leaves an open socket to nobody."""

    def getpeername(self) -> Any:
        """As of any socket.

        Raises:
            ConnectionResetError: nobody is there any more.
        """
        try:
            return super().getpeername()
        except OSError as error:
            if self.version() is None:  # ``wrap_socket`` asks
                self.close()
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from error


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """``ssl`` reads a key from a file only: it gets one that lives in memory."""
    file = os.memfd_create("member", os.MFD_CLOEXEC)
    try:
        os.write(file, certificate + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)


def open_server(address: str) -> socket.socket:
    """A listening socket at ``host:port`` (port 0: any free one). The host ``[::]`` stands for all addresses of both versions.

    Raises:
        InputError: it can't be listened at.
    """
    host, _, port = address.rpartition(":")
    try:
        plain = host.removeprefix("[").removesuffix("]")
        family = socket.AF_INET6 if ":" in plain else socket.AF_INET
        both = plain == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((plain, int(port)), family=family, backlog=_WAITING_CALLERS, dualstack_ipv6=both)
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"cannot listen at {address}: is the port taken, or the address not this machine's? --listen names another ({error})"
        ) from error


def cut(connection: socket.socket) -> None:
    """End both directions at once, from any thread.

    Not by ``SSLSocket.shutdown``: that switches encryption off before it ends the connection, and what the socket's own thread
    reads or writes at that moment would be taken for plain text.
    """
    with suppress(OSError):  # it is over already
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class Unfinished:
    """Connections that are being dialled or greeted: ``stop`` ends them at once instead of at their timeouts."""

    def __init__(self) -> None:
        #: Guards both fields below: a connection is cut only while it is guarded, so no other file has its number by then.
        self._lock = threading.Lock()
        self._stopped = False
        #: connection -> until when it may last (monotonic seconds)
        self._found: dict[socket.socket, float] = {}

    @contextmanager
    def guard(self, connection: socket.socket, seconds: float = math.inf) -> Iterator[None]:
        """While this lasts, ``connection`` belongs to the calling thread; ``stop`` cuts it, and ``cut_late`` after ``seconds``:
        a socket's timeout begins anew with each byte, so a peer that trickles would never meet it.

        Raises:
            ConnectionAbortedError: ``stop`` came first.
        """
        with self._lock:
            if self._stopped:
                raise ConnectionAbortedError("this side was closed")
            self._found[connection] = monotonic() + seconds
        try:
            yield
        finally:
            with self._lock:
                del self._found[connection]

    @property
    def count(self) -> int:
        """How many connections are guarded now."""
        with self._lock:
            return len(self._found)

    def cut_oldest(self) -> None:
        """Cut the one that has lasted longest, if there is any."""
        with self._lock:
            for connection in self._found:
                cut(connection)
                return

    def cut_late(self, now: float) -> int:
        """Cut those whose time is over at ``now``; how many there were."""
        with self._lock:
            late = [connection for connection, until in self._found.items() if now > until]
            for connection in late:
                cut(connection)
            return len(late)

    def stop(self) -> None:
        """Cut what there is, and let nothing more begin."""
        with self._lock:
            self._stopped = True
            for connection in self._found:
                cut(connection)


def dial(
    peer: str,
    address: str,
    security: TlsContexts | Insecure,
    timeout: float,
    unfinished: Unfinished | None = None,
    answer: float = math.inf,
) -> socket.socket:
    """A connection to the member ``peer`` at ``address``, which has proved its name (over TLS).

    ``timeout``: seconds for each part. ``answer``: for the first packet's answer, if that is less: a system that heard none asks
    again after 1, 3, 7 seconds, so after an outage a fresh try is answered sooner.

    Raises:
        ConnectionLost: nobody answers there in time, or ``unfinished`` was stopped.
        SecurityError: somebody else does.
    """
    host, port = split_address(address)
    unfinished = unfinished or Unfinished()
    found: socket.socket | None = None
    try:
        found = _connect(host, port, min(timeout, answer), unfinished)
        found.settimeout(timeout)
        tune(found)
    except OSError as error:
        _close(found)
        cause = "no answer in time" if isinstance(error, TimeoutError) else (error.strerror or str(error))
        raise lost(peer, address, cause) from error
    return secure(found, peer, address, security, unfinished)


def secure(
    plain: socket.socket, peer: str, address: str, security: TlsContexts | Insecure, unfinished: Unfinished
) -> socket.socket:
    """TLS over ``plain`` (its timeout holds for each part of the handshake) with the member ``peer``, who proves its name.

    Raises:
        ConnectionLost: it says nothing in time, or breaks off.
        SecurityError: somebody else is there.
    """
    found = plain
    expected = tls_name(peer) if isinstance(security, TlsContexts) else ""
    try:
        if isinstance(security, TlsContexts):
            found = security.client.wrap_socket(plain, server_hostname=expected, do_handshake_on_connect=False)
            with unfinished.guard(found, _HANDSHAKES * (plain.gettimeout() or math.inf)):
                found.do_handshake()
            if expected.encode() not in _shown_names(found):  # TLS compares without regard to case
                _close(found)
                raise SecurityError(
                    f"the server at {address} proves a name that differs from {peer} in capital letters; "
                    "join again with a fresh ticket"
                )
        return found
    except ssl.SSLError as error:
        _close(found)
        if isinstance(error, ssl.SSLCertVerificationError) or "WRONG_VERSION" in str(error):
            raise SecurityError(
                f"the server at {address} cannot prove that it is {peer} of this cluster ({error.reason or error}); "
                "check the address, or join again with a fresh ticket"
            ) from error
        raise lost(peer, address, f"TLS failed: {error.reason or error}") from error
    except OSError as error:
        _close(found)
        cause = "no answer in time" if isinstance(error, TimeoutError) else (error.strerror or str(error))
        raise lost(peer, address, cause) from error


def _connect(host: str, port: int, timeout: float, unfinished: Unfinished) -> socket.socket:
    """``socket.create_connection``, but what waits for an answer can be cut."""
    failure: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        found = socket.socket(family, kind, protocol)
        try:
            found.settimeout(timeout)
            with unfinished.guard(found):
                found.connect(place)
        except OSError as error:
            found.close()
            failure = error
        else:
            return found
    raise failure


def _close(found: socket.socket | None) -> None:
    if found is not None:
        found.close()


def caller_of(connection: socket.socket) -> Caller:
    """The member at the other end of an accepted TLS connection.

    Raises:
        SecurityError: the certificate names nobody.
    """
    assert isinstance(connection, ssl.SSLSocket)
    caller = read_caller(_shown_names(connection))
    if caller is None:
        raise SecurityError("only members of the cluster may send here; join with a ticket first")
    return caller


def _shown_names(connection: ssl.SSLSocket) -> list[bytes]:
    shown = connection.getpeercert() or {}
    entries: Any = shown.get("subjectAltName", ())
    return [value.encode() for kind, value in entries if kind == "DNS"]


def tune(connection: socket.socket) -> None:
    """No delay for small messages; BBR where the system has it; as much room for what is under way as the system gives, but no
    more than ``_FIRST_BACKLOG`` of what is not: a buffer that was asked for has no such bound of its own."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if room := _send_room():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
    set_backlog(connection, _FIRST_BACKLOG)
    if hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):  # not there, or not allowed to us: what is in force is told by ``kernel_view``
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")


@functools.cache
def _send_room() -> int:
    """What to ask for as a send buffer, in bytes, where that gives more than the buffer's own growth would (0: it does not).

    The system doubles what is asked for, up to ``net.core.wmem_max``, and lets a buffer that nobody asked for grow to the last
    number of ``net.ipv4.tcp_wmem``. A connection can't have more under way than its buffer holds.
    """
    with suppress(OSError, ValueError):
        most = int(Path("/proc/sys/net/core/wmem_max").read_text("ascii"))
        grown = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text("ascii").split()[2])
        most = min(most, _MOST_ROOM)
        return most if 2 * most > grown else 0
    return 0


def set_backlog(connection: socket.socket, nbytes: int) -> None:
    """At most about ``nbytes`` that are not sent yet may lie in the kernel."""
    with suppress(OSError):  # systems without it only answer urgent messages later
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_NOTSENT_LOWAT", _NOTSENT_LOWAT), nbytes)


@dataclass(frozen=True, slots=True)
class KernelView:
    """What the system says of a connection: congestion control, smoothed round trip in seconds."""

    congestion: str
    round_trip: float


def kernel_view(connection: socket.socket) -> KernelView:
    """``TCP_CONGESTION`` and ``TCP_INFO`` (empty and 0 where the system has none)."""
    name, round_trip = "", 0.0
    if hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):
            name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode("ascii", "replace")
    if hasattr(socket, "TCP_INFO"):
        with suppress(OSError, struct.error):
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
            # struct tcp_info: 8 bytes of flags, then u32 fields; tcpi_rtt is the 16th
            round_trip = struct.unpack_from("16I", info, 8)[15] / 1e6
    return KernelView(name, round_trip)


def bbr_view(connection: socket.socket) -> BbrView | None:
    """``TCP_CC_INFO`` of a connection under BBR (None where the system does not say)."""
    try:
        low, high, trip, _, gain = struct.unpack("5I", connection.getsockopt(socket.IPPROTO_TCP, _CC_INFO, 20))
    except (OSError, struct.error):
        return None
    return BbrView(rate=(high << 32) | low, round_trip=trip, probing=gain == _PROBE_RTT_GAIN)


@dataclass(frozen=True, slots=True)
class FlowView:
    """What the system counts of a connection's stream, in bytes: ``sent`` at least once, ``confirmed`` of these, ``unsent`` ones
    that it holds; ``received`` in order. ``early``: packets that came out of order."""

    sent: int
    confirmed: int
    unsent: int
    received: int
    early: int


def flow_view(connection: socket.socket) -> FlowView | None:
    """``TCP_INFO``, read at one moment (None where the system does not count all that)."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 228)
        # struct tcp_info (linux/tcp.h): tcpi_bytes_acked is at byte 120, tcpi_bytes_received at 128, tcpi_notsent_bytes at 144,
        # tcpi_bytes_sent at 200, tcpi_bytes_retrans at 208, tcpi_rcv_ooopack at 224
        confirmed, received, unsent, sent, again, early = struct.unpack("<120x 2Q 8x I 52x 2Q 8x I", info)
    except (OSError, struct.error):
        return None
    return FlowView(sent - again, confirmed, unsent, received, early)


def unconfirmed(connection: socket.socket) -> int:
    """Bytes that were given to the system and are not confirmed by the other end's (0 where it does not say)."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    except (OSError, struct.error):
        return 0


def is_crowded(connection: socket.socket) -> bool:
    """Whether more than half of the send buffer is in use.

    Linux reports room only when a third of the buffer is free (``sk_stream_is_writeable`` in include/net/sock.h). A sender that
    waits for this report has at most two thirds of the buffer under way. ``takes_more`` knows of the rest.
    """
    queued, buffer = _buffer_use(connection)
    return 2 * queued > buffer


def takes_more(connection: socket.socket) -> bool:
    """Whether the system takes more bytes now, although it does not report room; see ``is_crowded``."""
    queued, buffer = _buffer_use(connection)
    try:
        unsent = struct.unpack("i", fcntl.ioctl(connection.fileno(), _SIOCOUTQNSD, bytes(4)))[0]
        backlog = connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_NOTSENT_LOWAT", _NOTSENT_LOWAT))
    except (OSError, struct.error):
        return False
    return bool(queued < buffer and 2 * unsent < backlog & 0xFFFFFFFF)


def _buffer_use(connection: socket.socket) -> tuple[int, int]:
    """Return the bytes in use of the send buffer, and its size (zeros where the system does not say)."""
    if not sys.platform.startswith("linux"):
        return 0, 0
    try:
        # SO_MEMINFO (linux/sock_diag.h): u32 fields; the fourth is the size of the send buffer, the sixth what is in use
        info = struct.unpack("6I", connection.getsockopt(socket.SOL_SOCKET, _MEMINFO, 24))
    except (OSError, struct.error):
        return 0, 0
    return info[5], info[3]


def explain_break(error: BaseException) -> str:
    """Why a connection ended, in a few words."""
    if isinstance(error, ConnectionLost):
        return str(error)
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
