"""Frames between machines over TCP and TLS 1.3: several connections per link, urgency, credit, resumption after a break.

What gRPC cannot do for the data plane, and the reason for this member: congestion control per socket, short queues in the
kernel, chunks that change their connection, and one link for both directions, so that it is enough if one of two can dial.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress

from farflung.clock import MonotonicClock
from farflung.errors import ConnectionLost, FarflungError, SecurityError, VersionError, WireError
from farflung.security import Credentials
from farflung.transports.base import Arrival, FrameHandler, LinkStatistics, LossHandler, TransferHandler, Urgency
from farflung.transports.config import Insecure, TransportConfig
from farflung.transports.grpc_status import lost
from farflung.transports.meter import Meter
from farflung.transports.pace import Cap
from farflung.transports.tcp_connection import Connection, MessageKind, build_message, read_message
from farflung.transports.tcp_link import TcpLink
from farflung.transports.tcp_socket import TlsContexts, Unfinished, caller_of, dial, explain_break, open_server, tune
from farflung.wire.frames import Frame
from farflung.wire.packed import pack_value, unpack_value

__all__ = ["TcpEndpoint"]

PROTOCOL = 1
_TICK = 0.1
_GREETING_SECONDS = 10.0
_MAX_GREETING = 64


def _nobody(text: str) -> None:
    del text


class TcpEndpoint:
    """See ``transports.base.Endpoint``. Listens from its making on, until ``close``."""

    def __init__(
        self,
        security: Credentials | Insecure,
        handler: FrameHandler,
        *,
        listen: str = "0.0.0.0:0",
        advertise: str | None = None,
        config: TransportConfig | None = None,
        on_lost: LossHandler | None = None,
    ) -> None:
        """``security.name`` is this endpoint's name. ``advertise`` is the host that peers reach it by (default: that of
        ``listen``); the port is the real one. ``on_lost`` hears of peers that were sending and are gone.

        Raises:
            InputError: ``listen`` can't be listened at.
        """
        self.name = security.name
        self.config = config or TransportConfig()
        #: Told of each frame that came in, and of what a person may want to know about links.
        self.on_arrival: TransferHandler | None = None
        self.say: Callable[[str], None] = _nobody
        #: What may be sent to all peers together.
        self.cap = Cap()
        self._insecure = security if isinstance(security, Insecure) else None
        self._tls = security if isinstance(security, Insecure) else TlsContexts(security)
        self._handler, self._on_lost = handler, on_lost
        self._meter = Meter(MonotonicClock())
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._addresses: dict[str, str] = {}
        self._links: dict[str, TcpLink] = {}
        self._greeting = threading.Semaphore(_MAX_GREETING)
        self._unfinished, self._greeted = Unfinished(), Unfinished()
        self._server = open_server(listen)
        host = listen.rpartition(":")[0]
        self._address = f"{advertise or host}:{self._server.getsockname()[1]}"
        self._threads = [
            threading.Thread(target=target, name=f"{name}-{self.name}", daemon=True)
            for name, target in (("accept", self._accept), ("links", self._watch))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def address(self) -> str:
        return self._address

    def connect(self, peer: str, address: str) -> None:
        with self._lock:
            moved = self._addresses.get(peer, address) != address
            self._addresses[peer] = address
            link = self._links.get(peer) if moved else None
        if link is not None:  # it was started again elsewhere: nobody will take up the old link
            link.fail(lost(peer, address, "it was started again and has forgotten what was sent"), quiet=True)

    def post(self, peer: str, frame: Frame, urgency: Urgency = Urgency.VALUES) -> Future[None]:
        link = self._link(peer, incoming=False)
        return link.post(frame, urgency, lambda future, size: self._started(peer, future, size))

    def send(self, peer: str, frame: Frame) -> None:
        self.post(peer, frame).result()

    def statistics(self) -> Mapping[str, LinkStatistics]:
        seen = dict(self._meter.snapshot())
        with self._lock:
            links = dict(self._links)
        return seen | {peer: link.view(seen.get(peer, LinkStatistics())) for peer, link in links.items()}

    def close(self) -> None:
        self._closing.set()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        unfinished = [*self._unfinished.stop(), *self._greeted.stop()]
        with self._lock:
            links = list(self._links.values())
        closers = [threading.Thread(target=link.close, daemon=True) for link in links]
        for closer in closers:
            closer.start()
        for thread in (*closers, *self._threads, *unfinished):
            if thread is not threading.current_thread():
                thread.join()

    def drop(self, peer: str, why: str) -> int:
        """Break all connections with ``peer`` (as a broken network would); the link takes up again. How many there were."""
        with self._lock:
            link = self._links.get(peer)
        connections = list(link.connections) if link is not None else []
        for connection in connections:
            connection.break_off(why)
        return len(connections)

    # -- for the links ------------------------------------------------------------------------------------------------

    def frame(self, peer: str, frame: Frame) -> None:
        """See ``LinkHost``."""
        self._handler(peer, frame)

    def arrival(self, arrival: Arrival) -> None:
        """See ``LinkHost``."""
        self._meter.received(arrival.peer, arrival.nbytes)
        if self.on_arrival is not None:
            self.on_arrival(arrival)

    def log(self, text: str) -> None:
        """See ``LinkHost``."""
        if not self._closing.is_set():
            self.say(text)

    def link_over(self, link: TcpLink, error: FarflungError, *, told: bool) -> None:
        """See ``LinkHost``."""
        with self._lock:
            if self._links.get(link.peer) is link:
                del self._links[link.peer]
        if told and not self._closing.is_set():
            self.log(f"link to {link.peer} is lost: {error}")
            if self._on_lost is not None:
                self._on_lost(link.peer, ConnectionLost(str(error)), link.run)

    def dial_link(self, link: TcpLink) -> bool:
        """See ``LinkHost``."""
        with self._lock:
            address = self._addresses.get(link.peer)
        if address is None:
            return False
        link.address = address
        sock = dial(link.peer, address, self._tls, float(self.config.connect_timeout), self._unfinished)
        try:
            with self._unfinished.guard(sock):
                sock.sendall(build_message(MessageKind.HELLO, [pack_value(self._hello(link))]))
                answer = _read_hello(sock)
            if link.peer_id not in (None, answer["link"]):
                raise lost(link.peer, address, "it was started again and has forgotten what was sent")
            link.peer_id = answer["link"]
            sock.settimeout(None)
            link.add(Connection(sock, link, dialed=True))
        except OSError as error:
            sock.close()
            raise lost(link.peer, address, explain_break(error)) from error
        except FarflungError as error:
            sock.close()
            if isinstance(error, ConnectionLost):
                link.fail(error)
            raise
        return True

    # -- inside -------------------------------------------------------------------------------------------------------

    def _started(self, peer: str, future: Future[None], size: int) -> None:
        self._meter.begin(peer)
        future.add_done_callback(lambda done: self._meter.end(peer, size, delivered=done.exception() is None))

    def _link(self, peer: str, *, incoming: bool) -> TcpLink:
        with self._lock:
            leaving = self._links.get(peer)
        if leaving is not None:
            leaving.let_go()
        with self._lock:
            if self._closing.is_set():
                raise ConnectionLost(f"cannot reach {peer}: this endpoint ({self.name}) was closed")
            link = self._links.get(peer)
            if link is not None and link.over is None:
                return link
            if not incoming and peer not in self._addresses:
                raise ConnectionLost(f"cannot reach {peer}: its address is unknown; call connect({peer!r}, address) first")
            link = self._links[peer] = TcpLink(peer, self)
            link.address = self._addresses.get(peer, link.address)
            return link

    def _hello(self, link: TcpLink) -> dict[str, object]:
        """``knows``: the other end that the link had (empty: it is new)."""
        return {"protocol": PROTOCOL, "name": self.name, "link": link.id, "to": link.peer, "knows": link.peer_id or ""}

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._server.accept()
            except OSError:
                if not self._closing.wait(0.05):
                    continue  # out of file descriptors, or the dialler has gone: the next one may do better
                return
            while not self._greeting.acquire(timeout=_TICK):
                self._greeted.cut_oldest()  # who says nothing must not keep others out
            try:
                threading.Thread(target=self._greet, args=(sock,), name="greet", daemon=True).start()
            except RuntimeError:  # no more threads can be had now: the dialler may try again
                self._greeting.release()
                sock.close()

    def _greet(self, sock: socket.socket) -> None:
        try:
            sock.settimeout(_GREETING_SECONDS)
            tune(sock)
            if isinstance(self._tls, TlsContexts):
                sock = self._tls.server.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            with self._greeted.guard(sock):
                if isinstance(sock, ssl.SSLSocket):
                    sock.do_handshake()
                self._take_in(sock)
        except (OSError, FarflungError) as error:
            self.log(f"a connection was refused: {explain_break(error) if isinstance(error, OSError) else error}")
            sock.close()
        finally:
            self._greeting.release()

    def _take_in(self, sock: socket.socket) -> None:
        hello = _read_hello(sock)
        name = caller_of(sock).name if isinstance(self._tls, TlsContexts) else hello["name"]
        link = self._link(name, incoming=True)
        if hello["knows"] not in ("", link.id):  # the other end is what is old: it learns so, and begins anew
            sock.sendall(build_message(MessageKind.HELLO, [pack_value(self._hello(link))]))
            sock.close()
            return
        if link.peer_id not in (None, hello["link"]):
            link.fail(lost(name, link.address, "it was started again and has forgotten what was sent"))
            link = self._link(name, incoming=True)
        link.peer_id = hello["link"]
        sock.sendall(build_message(MessageKind.HELLO, [pack_value(self._hello(link))]))
        sock.settimeout(None)
        link.add(Connection(sock, link, dialed=False))

    def _watch(self) -> None:
        """Every link's heartbeat; time in which this process did not run counts for nobody's silence."""
        last = time.monotonic()
        while not self._closing.wait(_TICK):
            now = time.monotonic()
            late, last = max(now - last - 5 * _TICK, 0.0), now
            with self._lock:
                links = list(self._links.values())
            for link in links:
                try:
                    link.tick(now, late)
                except Exception as defect:  # noqa: BLE001 - the other links' heartbeats must go on
                    link.fail(FarflungError(f"the link to {link.peer} failed inside: {type(defect).__name__}: {defect}"))


def _read_hello(sock: socket.socket) -> dict[str, str]:
    kind, body = read_message(sock)
    value = unpack_value(bytes(body), 4)
    if kind != MessageKind.HELLO or not isinstance(value, dict):
        raise WireError("a connection must begin with a greeting")
    if value.get("protocol") != PROTOCOL:
        raise VersionError(
            f"the other side speaks version {value.get('protocol')!r:.20} of links, this one {PROTOCOL}; "
            "install the same farflung on both machines"
        )
    name, link, knows = value.get("name"), value.get("link"), value.get("knows", "")
    if not (isinstance(name, str) and isinstance(link, str) and 0 < len(name) < 100 and 0 < len(link) < 100):
        raise SecurityError("a greeting must name its sender")
    if not (isinstance(knows, str) and len(knows) < 100):
        raise SecurityError("a greeting must name the link that it takes up")
    return {"name": name, "link": link, "knows": knows}
