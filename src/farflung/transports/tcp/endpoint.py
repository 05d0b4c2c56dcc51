"""Frames between machines over TCP and TLS 1.3: several connections per link, urgency, credit, resumption after a break.

What gRPC cannot do for the data plane, and the reason for this member: congestion control per socket, short queues in the
kernel, chunks that change their connection, and one link for both directions, so that it is enough if one of two can dial.
"""

from __future__ import annotations

import math
import socket
import ssl
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace

from farflung.clock import MonotonicClock, monotonic
from farflung.errors import ConnectionLost, FarflungError, SecurityError, VersionError, WireError
from farflung.security import Credentials
from farflung.telemetry.log_line import Detail
from farflung.thread_group import ThreadGroup
from farflung.transports.base import PUNCHED, Arrival, EndpointEvents, FrameHandler, LinkStatistics, Urgency, failure_of, lost
from farflung.transports.config import Insecure, TransportConfig
from farflung.transports.connection_gate import ConnectionGate
from farflung.transports.meter import Meter
from farflung.transports.tcp.adaptation import Cap
from farflung.transports.tcp.byte_counts import Others
from farflung.transports.tcp.connection import Connection, MessageKind, NeverBegan, NotAdmitted, build_message, read_message
from farflung.transports.tcp.link import TcpLink
from farflung.transports.tcp.relay_calls import PROTOCOL, Relaying, RelayRequest
from farflung.transports.tcp.sockets import TlsContexts, Unfinished, caller_of, dial, explain_break, open_server, secure, tune
from farflung.wire.frames import Frame, FrameLimits
from farflung.wire.headers import pack_value, unpack_value
from farflung.wire.relay_calls import RelayCall

__all__ = ["TcpEndpoint"]

_TICK = 0.1
#: How long the handlers of frames may take to end after the links are closed.
_END_SECONDS = 30.0
GREETING_SECONDS = 10.0
_MAX_GREETING = 64
#: What frames of a member may hold of which this side was not told (``connect``): it may be early, or have no business here.
_STRANGER = FrameLimits(max_header=1 << 20, max_sections=256, max_bytes=64 << 20)
#: A link that is taken up again is dialled anew after so long without an answer.
_AGAIN_SECONDS = 1.0


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
        events: EndpointEvents = EndpointEvents(),  # noqa: B008 - immutable
    ) -> None:
        """``security.name`` is this endpoint's name. ``advertise`` is the host that peers reach it by (default: that of
        ``listen``); the port is the real one. An empty ``listen``: it can't be dialled, and dials others.

        Raises:
            InputError: ``listen`` can't be listened at.
        """
        self.name = security.name
        self.config = config or TransportConfig()
        #: All threads of this endpoint and its links.
        self.threads = ThreadGroup()
        #: What may be sent to all peers together.
        self.cap = Cap()
        self._tls = security if isinstance(security, Insecure) else TlsContexts(security)
        self._handler, self._events = handler, events
        #: What was sent to each peer and received from it.
        self.meter = Meter(MonotonicClock())
        #: Guards addresses, admitted names and links. A link's own lock is never taken under it.
        self._lock = threading.Lock()
        self._closing = threading.Event()
        #: peer -> where it can be dialled (empty: it dials this side)
        self._addresses: dict[str, str] = {}
        #: Who may call, where only peers may.
        self._admitted: set[str] = set()
        self._links: dict[str, TcpLink] = {}
        #: What the last links that are over knew.
        self._past: dict[str, LinkStatistics] = {}
        #: How many connections are greeted at once, each on a thread.
        self._greeting = threading.Semaphore(_MAX_GREETING)
        #: When a refusal was logged last (monotonic seconds).
        self._refused_at = -math.inf
        #: Connections that this side dials, and connections that it accepted and greets.
        self.unfinished, self.greeted = Unfinished(), Unfinished()
        self.relaying = Relaying(self, self._tls, self.unfinished, float(self.config.connect_timeout))
        server = open_server(listen) if listen else None
        host = listen.rpartition(":")[0]
        self._address = f"{advertise or host}:{server.getsockname()[1]}" if server else ""
        tls = isinstance(self._tls, TlsContexts)
        self._gate = ConnectionGate(server, self._begin_greeting, tls=tls, log=self.log) if server else None
        self.threads.spawn(f"links-{self.name}", self._watch)
        if self._gate is not None:
            self.threads.spawn(f"accept-{self.name}", self._gate.run)

    @property
    def address(self) -> str:
        return self._address

    def connect(self, peer: str, address: str) -> None:
        """``address``: empty if the peer can't be dialled, and dials itself."""
        with self._lock:
            moved = bool(address) and self._addresses.get(peer, address) not in ("", address)
            self._addresses[peer] = address
            self._admitted.add(peer)
            link = self._links.get(peer) if moved else None
        if link is not None:  # it was started again elsewhere: nobody will take up the old link
            link.fail(lost(peer, address, "it was started again and has forgotten what was sent"), quiet=True)

    def post(self, peer: str, frame: Frame, urgency: Urgency = Urgency.VALUES) -> Future[None]:
        link = self.link_to(peer, incoming=False)
        return link.post(frame, urgency, lambda future, size: self._started(peer, future, size))

    def send(self, peer: str, frame: Frame) -> None:
        self.post(peer, frame).result()

    def statistics(self) -> Mapping[str, LinkStatistics]:
        seen = dict(self.meter.snapshot())
        with self._lock:
            links, past = dict(self._links), dict(self._past)
        over = {peer: replace(seen[peer], relay=view.relay, rate=view.rate) for peer, view in past.items() if peer in seen}
        return seen | over | {peer: link.view(seen.get(peer, LinkStatistics())) for peer, link in links.items()}

    def close(self) -> None:
        self._closing.set()
        if self._gate is not None:
            self._gate.close()
        self.relaying.desk.close()
        self.unfinished.stop()
        self.greeted.stop()
        with self._lock:
            links = list(self._links.values())
        self._close_links(links)
        self.threads.join(_END_SECONDS)

    def _close_links(self, links: Iterable[TcpLink]) -> None:
        """Close ``links`` at the same time: each may wait for its peer."""
        closing = [self.threads.spawn(f"close-{link.peer}", link.close) for link in links]
        for thread in closing:
            thread.join()

    def relay_through(self, peer: str, relays: Sequence[str]) -> None:
        """``peer`` is reached through one of ``relays`` (the best first; none: directly), whose addresses ``connect`` told."""
        self.relaying.use(peer, relays)

    def part(self, peers: Iterable[str]) -> None:
        """``peers`` are peers no more. Close the links with those that are reached through relays, and dial them no more."""
        chosen = set(peers)
        with self._lock:
            self._admitted -= chosen
            links = [link for link in self._links.values() if link.peer in chosen and self.relaying.relays(link.peer)]
        for peer in chosen:
            self.relaying.use(peer, ())
        self._close_links(links)

    def relay_for(self, run: str, pairs: Iterable[tuple[str, str]]) -> None:
        """Relay between the members of each of ``pairs``, as members of ``run`` (no pairs: no more)."""
        pairs = tuple(pairs)
        with self._lock:
            self._admitted.update(name for pair in pairs for name in pair)
        self.relaying.desk.allow(run, pairs)

    def relayed(self) -> Mapping[tuple[str, str], int]:
        """Bytes that went through this endpoint from one member to another."""
        return self.relaying.desk.forwarder.carried()

    def reach(self, peer: str, address: str, seconds: float) -> bool:
        """Whether ``peer`` can be dialled here, within about ``seconds``; the connection that shows it stays."""
        self.connect(peer, address)
        link = self.link_to(peer, incoming=False)
        if link.connections and not link.relay:
            return True
        try:
            return self._dial_directly(link, seconds)
        except NotAdmitted:
            return True  # it answers those who are its peers
        except FarflungError as error:
            if not link.connections:
                link.fail(error, quiet=True)
            return False

    def drop(self, peer: str, why: str) -> int:
        """Break all connections with ``peer`` (as a broken network would); the link takes up again. How many there were."""
        with self._lock:
            link = self._links.get(peer)
        connections = list(link.connections) if link is not None else []
        for connection in connections:
            connection.break_off(why)
        return len(connections)

    # -- for the links ------------------------------------------------------------------------------------------------

    def limits(self, peer: str) -> FrameLimits:
        """See ``LinkHost``."""
        return self.config.limits if self._admits(peer) else _STRANGER

    def frame(self, peer: str, frame: Frame) -> None:
        """See ``LinkHost``."""
        call = RelayCall.of(frame)
        if call is None:
            self._handler(peer, frame)
        else:
            self.relaying.called(peer, call)

    def arrival(self, arrival: Arrival) -> None:
        """See ``LinkHost``."""
        self.meter.received(arrival.peer, arrival.nbytes)
        if self._events.on_arrival is not None:
            self._events.on_arrival(arrival)

    def others(self, link: TcpLink) -> Others:
        """See ``LinkHost``."""
        others = [other for other in tuple(self._links.values()) if other is not link]
        return Others(
            received=sum(other.received for other in others),
            given=sum(other.given for other in others),
            waiting=sum(other.under_way for other in others),
        )

    def log(self, text: str) -> None:
        """See ``LinkHost``."""
        if not self._closing.is_set():
            self._events.log(Detail(text))

    def link_over(self, link: TcpLink, error: FarflungError, *, told: bool) -> None:
        """See ``LinkHost``."""
        view = link.view(LinkStatistics())
        with self._lock:
            self._past[link.peer] = view
            if self._links.get(link.peer) is link:
                del self._links[link.peer]
        if told and not self._closing.is_set():
            self.log(f"link to {link.peer} is lost: {error}")
            if self._events.on_lost is not None:
                self._events.on_lost(link.peer, ConnectionLost(str(error)), link.run)

    def dial_link(self, link: TcpLink) -> bool:
        """See ``LinkHost``."""
        if not self.relaying.relays(link.peer):
            return self._dial_directly(link, float(self.config.connect_timeout))
        link.address = "an address that only its relays know"
        sock, relay = self.relaying.dial(link.peer)
        place = f"the far side of {relay}"
        try:
            sock = secure(sock, link.peer, place, self._tls, self.unfinished)
        except SecurityError as error:  # a relay that connects with somebody else: another one may do better
            self.relaying.failed(link.peer, relay)
            raise ConnectionLost(f"cannot reach {link.peer} through {relay}: {error}") from error
        self._introduce(link, sock, place, relay)
        return True

    def can_dial(self, link: TcpLink) -> bool:
        """See ``LinkHost``."""
        return bool(self.address_of(link.peer) or self.relaying.relays(link.peer))

    # -- for the relaying ---------------------------------------------------------------------------------------------

    def address_of(self, peer: str) -> str:
        """See ``RelayHost``."""
        with self._lock:
            return self._addresses.get(peer, "")

    def call(self, peer: str, frame: Frame) -> bool:
        """See ``RelayHost``."""
        with self._lock:
            link = self._links.get(peer)
        if link is None or link.over is not None or not link.connections:
            return False
        link.post(frame, Urgency.CONTROL, lambda future, size: None)
        return True

    def keep(self, peer: str) -> None:
        """See ``RelayHost``."""
        with suppress(ConnectionLost):  # its address is unknown, or this endpoint closes
            self.link_to(peer, incoming=False).open()

    def take_in(self, sock: socket.socket, relay: str) -> None:
        """See ``RelayHost``."""
        if self._greeting.acquire(timeout=GREETING_SECONDS):
            self._greet(sock, relay)
        else:
            sock.close()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _dial_directly(self, link: TcpLink, seconds: float) -> bool:
        address = self.address_of(link.peer)
        if not address:
            return False
        link.address = address
        if address == PUNCHED:
            return self._dial_punched(link, seconds)
        again = max(_AGAIN_SECONDS, 4 * link.rate.round_trip) if link.peer_id else math.inf
        sock = dial(link.peer, address, self._tls, seconds, self.unfinished, again)
        self._introduce(link, sock, address)
        return True

    def _dial_punched(self, link: TcpLink, seconds: float) -> bool:
        sock = self._events.punch(link.peer)
        sock.settimeout(seconds)
        tune(sock)
        try:
            sock = secure(sock, link.peer, PUNCHED, self._tls, self.unfinished)
        except SecurityError as error:  # another machine behind the peer's NAT: the next attempt may find the peer
            raise ConnectionLost(f"cannot reach {link.peer} by hole punching: {error}") from error
        self._introduce(link, sock, PUNCHED)
        return True

    def _introduce(self, link: TcpLink, sock: socket.socket, place: str, relay: str = "") -> None:
        """Exchange greetings on a new connection and give it to the link."""
        try:
            with self.unfinished.guard(sock, GREETING_SECONDS):
                sock.sendall(build_message(MessageKind.HELLO, [pack_value(self._hello(link))]))
                answer = _read_hello(sock, link.peer)
            if link.peer_id not in (None, answer["link"]):
                raise lost(link.peer, place, "it was started again and has forgotten what was sent")
            link.peer_id = answer["link"]
            sock.settimeout(None)
            link.add(Connection(sock, link, dialed=True), relay)
        except OSError as error:
            sock.close()
            raise lost(link.peer, place, explain_break(error)) from error
        except FarflungError as error:
            sock.close()
            if isinstance(error, ConnectionLost) and not isinstance(error, NotAdmitted):
                link.fail(error)
            raise

    def _started(self, peer: str, future: Future[None], size: int) -> None:
        self.meter.begin(peer)
        future.add_done_callback(lambda done: self.meter.end(peer, size, delivered=done.exception() is None))

    def link_to(self, peer: str, *, incoming: bool) -> TcpLink:
        """Return the link with ``peer``, made if there is none; ``incoming``: the peer has called.

        Raises:
            ConnectionLost: this endpoint was closed, or it called nobody and does not know where ``peer`` is.
        """
        with self._lock:
            leaving = self._links.get(peer)
        if leaving is not None:  # without the lock: it may wait for the end of the link
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
            link.address = self._addresses.get(peer) or link.address
            return link

    def _hello(self, link: TcpLink) -> dict[str, object]:
        """``knows``: the other end that the link had (empty: it is new)."""
        return {"protocol": PROTOCOL, "name": self.name, "link": link.id, "to": link.peer, "knows": link.peer_id or ""}

    def _begin_greeting(self, sock: socket.socket, place: str) -> None:
        """Greet a connection from ``place`` that has sent something, on a thread of its own."""
        del place
        while not self._greeting.acquire(timeout=_TICK):
            self.greeted.cut_oldest()  # a slow greeting must not keep others out
        try:
            self.threads.spawn("greet", self._greet, sock)
        except RuntimeError:  # no more threads can be had now: the dialler may try again
            self._greeting.release()
            sock.close()

    def _greet(self, sock: socket.socket, relay: str = "") -> None:
        try:
            sock.settimeout(GREETING_SECONDS)
            tune(sock)
            if isinstance(self._tls, TlsContexts):
                sock = self._tls.server.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            with self.greeted.guard(sock, GREETING_SECONDS):
                if isinstance(sock, ssl.SSLSocket):
                    sock.do_handshake()
                self._take_in(sock, relay)
        except (OSError, FarflungError) as error:
            if not isinstance(error, NeverBegan):
                self._log_refusal(f"a connection was refused: {explain_break(error) if isinstance(error, OSError) else error}")
            sock.close()
        finally:
            self._greeting.release()

    def _log_refusal(self, text: str) -> None:
        """Log one refusal a second at most: strangers must not fill the log."""
        now = monotonic()
        if now - self._refused_at >= 1.0:
            self._refused_at = now
            self.log(text)

    def _take_in(self, sock: socket.socket, relay: str) -> None:
        value = _read_greeting(sock)
        hello = {"name": value.name} if isinstance(value, RelayRequest) else value
        name = caller_of(sock).name if isinstance(self._tls, TlsContexts) else hello["name"]
        if isinstance(value, RelayRequest):
            self.relaying.serve(sock, name, value)
            return
        if self.config.peers_only and not self._admits(name):
            sock.sendall(build_message(MessageKind.REFUSED, [pack_value({"protocol": PROTOCOL})]))
            raise SecurityError(f"{name} is no peer of the current run")
        link = self.link_to(name, incoming=True)
        if hello["knows"] not in ("", link.id):  # the other end is what is old: it learns so, and begins anew
            sock.sendall(build_message(MessageKind.HELLO, [pack_value(self._hello(link))]))
            sock.close()
            return
        if link.peer_id not in (None, hello["link"]):
            link.fail(lost(name, link.address, "it was started again and has forgotten what was sent"))
            link = self.link_to(name, incoming=True)
        link.peer_id = hello["link"]
        sock.sendall(build_message(MessageKind.HELLO, [pack_value(self._hello(link))]))
        sock.settimeout(None)
        link.add(Connection(sock, link, dialed=False), relay)

    def _admits(self, name: str) -> bool:
        with self._lock:
            return name in self._admitted

    def _watch(self) -> None:
        """Every link's heartbeat; time in which this process did not run counts for nobody's silence."""
        last = monotonic()
        while not self._closing.wait(_TICK):
            now = monotonic()
            late, last = max(now - last - 5 * _TICK, 0.0), now
            for book in (self.greeted, self.unfinished):
                book.cut_late(now)
            self.relaying.tick(now)
            with self._lock:
                links = list(self._links.values())
            for link in links:
                defect = failure_of(f"the link to {link.peer}", link.tick, now, late)
                if defect is not None:  # the other links' heartbeats must go on
                    link.fail(defect)


def _read_hello(sock: socket.socket, peer: str) -> dict[str, str]:
    value = _read_greeting(sock, peer)
    if isinstance(value, RelayRequest):
        raise WireError("a connection must begin with a greeting")
    return value


def _read_greeting(sock: socket.socket, called: str = "") -> dict[str, str] | RelayRequest:
    """``called``: the peer that this side has called (empty: it is called)."""
    kind, body = read_message(sock)
    value = unpack_value(bytes(body), 4)
    if kind == MessageKind.REFUSED and called:
        raise NotAdmitted(f"cannot reach {called}: it accepts peers of its current run only, and does not know this one")
    if kind not in (MessageKind.HELLO, MessageKind.RELAY) or not isinstance(value, dict):
        raise WireError("a connection must begin with a greeting")
    if value.get("protocol") != PROTOCOL:
        raise VersionError(
            f"the other side speaks version {value.get('protocol')!r:.20} of links, this one {PROTOCOL}; "
            "install the same farflung on both machines"
        )
    if kind == MessageKind.RELAY:
        return RelayRequest.read(value)
    name, link, knows = value.get("name"), value.get("link"), value.get("knows", "")
    if not (isinstance(name, str) and isinstance(link, str) and 0 < len(name) < 100 and 0 < len(link) < 100):
        raise SecurityError("a greeting must name its sender")
    if not (isinstance(knows, str) and len(knows) < 100):
        raise SecurityError("a greeting must name the link that it takes up")
    return {"name": name, "link": link, "knows": knows}
