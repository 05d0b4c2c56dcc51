"""A link between two members: one or several connections, dialled by whoever can, and the state that outlives them.

Frames of both directions use all connections. When one breaks, or falls silent, its unconfirmed chunks go over the others; when
none is left, both sides dial again for ``resume`` seconds and go on where they stood. A peer whose machine refuses connections
after that is gone. Each side names its link by a random id: one that comes back with another id has forgotten everything, and
then the frames that were on their way are lost, and their senders are told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from farflung.clock import monotonic
from farflung.errors import ConnectionLost, FarflungError
from farflung.ids import new_id
from farflung.thread_group import ThreadGroup
from farflung.transports.base import Arrival, LinkStatistics, Urgency, lost
from farflung.transports.meter import frame_bytes
from farflung.transports.tcp.adaptation import Deadlines, Rate, StripeProbe
from farflung.transports.tcp.byte_counts import LinkGoodput, Measured
from farflung.transports.tcp.connection import Connection, MessageKind, build_message
from farflung.transports.tcp.dialer import Dialer, LinkCalls
from farflung.transports.tcp.halves import Inbox, Outbox
from farflung.transports.tcp.lanes import Lanes
from farflung.transports.tcp.link_host import LinkHost
from farflung.transports.tcp.state import ERRORS_KEPT, named_error, read_state
from farflung.units import Seconds
from farflung.wire.frames import Frame, encode_frame
from farflung.wire.headers import pack_value, unpack_value

__all__ = ["TcpLink"]

_TEXT = 1500
_REFUSED_GRACE, _GOODBYE_SECONDS = 1.0, 1.0
#: Bytes per round trip that one connection carries for certain: buffers hold ten times as much, its thread may be slow.
_ONE_CARRIES = 0.25e6
#: What makes a state more than one packet.
_PADDING = 4096
_CORRUPT_LIMIT = 16
_FIRST_WITHOUT_BBR = 4
_BACKLOG_SECONDS, _MIN_BACKLOG, _MAX_BACKLOG = 0.04, 64 << 10, 4 << 20


@dataclass(slots=True, eq=False)
class _Pending:
    future: Future[None]
    size: int


class TcpLink(Measured):
    """All connections with ``peer``, and the frames on their way both ways."""

    def __init__(self, peer: str, host: LinkHost[TcpLink]) -> None:
        super().__init__(lambda: host.others(self))
        config = host.config
        self.peer, self._host, self._config = peer, host, config
        self.id = new_id("link")
        self.peer_id: str | None = None
        self.over: FarflungError | None = None
        self.rate = Rate()
        self.relay = ""
        #: Where the peer is, for the texts of errors.
        self.address = "an unknown address"
        self._outbox: Outbox[_Pending] = Outbox(config.window, config.credit, config.small)
        self._inbox = Inbox(lambda: host.limits(peer), config.credit, config.window, config.budget)
        self._probe = StripeProbe(config.stripes, max(config.stripes, config.max_stripes))
        self._peer_wants = 1
        self._errors: deque[tuple[int, int, str, str]] = deque(maxlen=ERRORS_KEPT)
        self._lanes = Lanes(peer, host.frame, self._handled, host.threads)
        self._leaving = self._peer_left = False
        #: Whether the peer has sent data: then it may wait for this side.
        self.peer_sent = False
        self._echo: tuple[float, float] | None = None
        self._unreadable: FarflungError | None = None
        self._ever, self._corrupt = False, 0
        self._resumed = self._repeated = self._arrived = 0
        self._congestion = ""
        #: What a new connection's deadlines begin with (see ``Deadlines``).
        self._patience = 1.0
        #: Since when there is no connection.
        self.alone_since: float | None = monotonic()
        calls = LinkCalls(lambda: host.dial_link(self), self.enough, lambda: bool(self.connections), self.fail)
        self.dialer = Dialer(peer, self.changed, host.threads, calls, redial=float(config.redial))

    @property
    def threads(self) -> ThreadGroup:
        """See ``Carried``."""
        return self._host.threads

    # -- sending ------------------------------------------------------------------------------------------------------

    def post(self, frame: Frame, urgency: Urgency, started: Callable[[Future[None], int], None]) -> Future[None]:
        """Queue ``frame``; waits while the window is full. ``started`` hears of its future and size before it leaves."""
        buffers = encode_frame(frame, checksum=False, limits=self._config.limits)
        pending = _Pending(Future(), sum(len(buffer) for buffer in buffers))
        with self.changed:
            while self.over is None and not self._outbox.has_room(urgency):
                self.changed.wait()
            if self.over is not None:
                raise type(self.over)(str(self.over))
            started(pending.future, pending.size)
            now = monotonic()
            if not self._outbox.busy:
                if self.alone_since is not None and not self._wanted():
                    self.alone_since = now
                self.rate.started(now)
                for connection in self.connections:
                    connection.deadlines.moved(now)
            self._outbox.put(urgency, buffers, pending)
            self._wake_all()
            self._dial_if_needed()
        return pending.future

    def waits(self, connection: Connection) -> bool:
        """See ``Carried``."""
        if connection.last_words_sent:
            return False
        if connection.state_due or connection.last_words is not None:
            return True
        return self._may_carry(connection) and self._outbox.waits() and not self.pause()

    def pause(self) -> float:
        """See ``Carried``."""
        return self._host.cap.pause(monotonic())

    def _may_carry(self, connection: Connection) -> bool:
        return connection.ready and not connection.retired

    def next_message(self, connection: Connection) -> bytes | None:
        """See ``Carried``: what the peer must know goes first, then chunks by urgency."""
        with self.changed:
            if connection.state_due:
                return self._state_message(connection)
            if connection.last_words is not None:
                connection.last_words_sent = True
                return connection.last_words
            if not self._may_carry(connection) or connection not in self.connections or self.pause():
                return None
            chunk = self._outbox.take(connection, self.rate.chunk_bytes(self._config.chunk_bytes))
            self.given += 0 if chunk is None else chunk.size
        if chunk is None:
            return None
        self._host.cap.spend(sum(len(piece) for piece in chunk.pieces), monotonic())
        return build_message(MessageKind.DATA, chunk.pieces, chunk.lane, chunk.number)

    def _state_message(self, connection: Connection) -> bytes:
        now = monotonic()
        connection.told_state(now)
        body = {
            "states": [list(state) for state in self._inbox.states()],
            "errors": [list(error) for error in self._errors],
            "time": now,
            "echo": None if self._echo is None else [self._echo[0], now - self._echo[1]],
            "beat": float(self._config.heartbeat),
            "wants": self._probe.wanted,
            "arrived": self._inbox.arrived,
            "curve": self.own.tell(self.connections),
        }
        if connection.padded:
            body["padding"] = bytes(_PADDING)
        return build_message(MessageKind.STATE, [pack_value(body)])

    @property
    def run(self) -> str:
        """The run of the last frame (see ``LossHandler``)."""
        return self._lanes.run

    @property
    def under_way(self) -> int:
        """Bytes that were given to connections and are not confirmed."""
        return self._outbox.under_way

    # -- receiving ----------------------------------------------------------------------------------------------------

    def arrived(self, connection: Connection, kind: int, place: tuple[int, int], body: memoryview) -> None:
        """See ``Carried``."""
        if kind == MessageKind.DATA:
            self._take_chunk(connection, place, body)
        elif kind == MessageKind.STATE:
            self._take_state(connection, unpack_value(bytes(body), 8))
        elif kind == MessageKind.RETIRE:
            connection.retired = True
        elif kind == MessageKind.GOODBYE:
            with self.changed:
                self._peer_left = True
        elif kind == MessageKind.FATAL:
            self.fail(named_error(unpack_value(bytes(body), 4)))

    def _take_chunk(self, connection: Connection, place: tuple[int, int], body: memoryview) -> None:
        lane, number = place
        with self.changed:
            if connection not in self.connections or self.over is not None:
                return
            self.peer_sent = True
            if self._unreadable is not None:
                return
            before = self._inbox.arrived
            try:
                frames = self._inbox.take(lane, number, body, monotonic())
            except FarflungError as error:
                self._refuse(connection, error)
                return
            if self._inbox.arrived > before:
                self._got_through()
            connection.owe_state(complete=bool(frames))
            for frame, since in frames:
                self._deliver(lane, frame, since)

    def _deliver(self, lane: int, frame: Frame, since: float) -> None:
        size = frame_bytes(frame)
        self._host.arrival(Arrival(peer=self.peer, nbytes=size, start=since, end=monotonic()))
        self._lanes.put(lane, frame)

    def _handled(self, lane: int, error: FarflungError | None) -> None:
        """The oldest frame of ``lane`` is over: the window lets the sender send more."""
        with self.changed:
            number = self._inbox.handled(lane)
            if error is not None:
                self._errors.append((lane, number, type(error).__name__, str(error)[:_TEXT]))
            self._tell_state()

    def _take_state(self, connection: Connection, body: Any) -> None:
        now = monotonic()
        state = read_state(body)
        with self.changed:
            if connection not in self.connections:
                return
            connection.ready = True
            connection.heartbeat = state.heartbeat
            self._peer_wants = state.wants
            self._echo = (state.time, now)
            if state.echo is not None:
                trip = max(now - state.echo[0] - state.echo[1], 1e-5)
                self.rate.echoed(trip)
                self.own.tripped(connection, trip, now, direct=not self.relay)
            news = self._outbox.acknowledge(state.lanes)
            fresh, self._arrived = max(state.arrived - self._arrived, 0), max(state.arrived, self._arrived)
            self._count(connection, news.nbytes, fresh, now)
            trip, empty = self.rate.round_trip, not self._outbox.under_way
            self.own.told(self.connections, self._echo[0], state.curve, empty=empty, round_trip=trip)
            if news.nbytes and self._outbox.waits():
                self._wake_all()  # credit came back: for every connection, not only for the one that says so
            self.changed.notify_all()
        for lane, number, pending in news.handled:
            error = state.failures.get((lane, number))
            if error is None:
                pending.future.set_result(None)
            else:
                pending.future.set_exception(error)

    def _count(self, connection: Connection, nbytes: int, arrived: int, now: float) -> None:
        """``nbytes`` were confirmed in order, which one late chunk holds up: that is what deadlines look at. ``arrived`` came in
        any order: that is what the link carries."""
        busy = self._outbox.busy
        if nbytes:
            self._got_through()
        if nbytes or not busy:
            for one in self.connections:
                one.deadlines.moved(now)
        self.rate.confirmed(arrived, now, busy=busy)
        if self._may_need_more() and self._probe.confirmed(arrived, now, self.rate, full=self._outbox.behind):
            self._fit_connections()
        self.rate.believed = 0.0 if self.relay else sum(one.believed for one in self.connections)  # else: the way to the relay
        backlog = self.rate.feeding / max(len(self.connections), 1) * _BACKLOG_SECONDS
        connection.limit_backlog(int(min(max(backlog, _MIN_BACKLOG), _MAX_BACKLOG)))

    def _may_need_more(self) -> bool:
        """Under BBR one connection fills a link whose bandwidth times delay it can carry; a second one only makes frames of both
        wait for each other."""
        return self._congestion != "bbr" or self.rate.bytes_per_second * self.rate.round_trip > _ONE_CARRIES

    def _got_through(self) -> None:
        self._patience = 1.0
        for connection in self.connections:
            connection.deadlines.patience = 1.0

    # -- connections --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Dial if there is no connection."""
        with self.changed:
            self._dial_if_needed()

    def add(self, connection: Connection, relay: str = "") -> None:
        """Use ``connection``, which goes through ``relay``, from now on (it is closed if the link is over)."""
        with self.changed:
            if self.over is not None or self._leaving:
                connection.discard()
                return
            if self.alone_since is not None and self._ever:
                self._resumed += 1
                self._host.log(f"link to {self.peer}: connected again after {monotonic() - self.alone_since:.1f} s")
            if relay != self.relay and relay:
                self._host.log(f"link to {self.peer}: goes through {relay}")
            if relay != self.relay:
                self.own = LinkGoodput()
            self.relay = relay
            self._ever = True
            if not self._congestion:
                self._congestion = connection.congestion
                if connection.congestion != "bbr" and self._config.max_stripes > 1:
                    self._probe = StripeProbe(max(self._config.stripes, _FIRST_WITHOUT_BBR), self._config.max_stripes)
            connection.deadlines.patience = self._patience
            self.connections.append(connection)
            self.alone_since = self.dialer.refused_since = None
            connection.start()
            self._dial_if_needed()
            self.changed.notify_all()

    def ended(self, connection: Connection, why: str, error: FarflungError | None) -> None:
        """See ``Carried``."""
        with self.changed:
            if connection not in self.connections:
                return
            self.connections.remove(connection)
            self.came += connection.received
            if error is not None:
                self._corrupt += 1
            repeated = self._outbox.release(connection)
            self._repeated += repeated
            if self.over is not None or self._leaving or (connection.retired and self.connections):
                self._wake_all()
                return
            if not self.connections:
                self.alone_since = monotonic()
            if not self._peer_left and self._unreadable is None and (error or repeated or not self.connections):
                again = f", {repeated} bytes are sent again" if repeated else ""
                self._host.log(f"link to {self.peer}: a connection ended ({why}), {len(self.connections)} left{again}")
            self._wake_all()
            gone, unreadable = self._peer_left and not self.connections, self._unreadable
            if not gone and unreadable is None:
                self._dial_if_needed()
        if gone or unreadable is not None:
            self._end()
        elif self._corrupt > _CORRUPT_LIMIT and error is not None:
            self.fail(error)

    def tick(self, now: float, late: float) -> None:
        """Heartbeats, deadlines, dialling: called a few times a second; ``late``: this process slept so much too long."""
        with self.changed:
            for connection in list(self.connections):
                if late > 0:
                    connection.deadlines.excuse(late)
                if connection.retired and not self._outbox.carries(connection):
                    connection.last_words = build_message(MessageKind.RETIRE, ())
                    connection.wake()
                if now - connection.state_sent > self._config.heartbeat:
                    connection.state_due = True
                    connection.wake()
                allowed = Deadlines.allowed(self.rate, len(self.connections), connection.heartbeat)
                if connection.deadlines.silent(now, allowed):
                    self._patience = max(self._patience, connection.deadlines.broke())
                    connection.break_off(f"no data for {allowed * connection.deadlines.patience:.1f} s")
            if self.alone_since is not None and late > 0:
                self.alone_since = min(self.alone_since + late, now)
            self._check_progress(now)
            self._fit_connections()  # not when one comes: why it was dialled is known a round trip later
            alone = self.alone_since
            if alone is None:
                return
            patience = self.dialer.patience(self._config, known=bool(self.peer_id or not self._host.can_dial(self)))
            refused = self.peer_id is not None and self.dialer.refused_for(now) > _REFUSED_GRACE
            wanted = self._wanted()
        if wanted and (refused or now - alone > patience):
            silence = lost(self.peer, self.address, f"no connection for {patience:.0f} s")
            self.fail(self.dialer.failure or silence)

    def _check_progress(self, now: float) -> None:
        if not self._outbox.busy or not self.connections:
            return
        carrier = self._outbox.oldest_carrier()
        if isinstance(carrier, Connection) and carrier in self.connections:
            allowed = 2 * Deadlines.allowed(self.rate, len(self.connections), carrier.heartbeat)
            if carrier.deadlines.stuck(now, allowed):
                self._patience = max(self._patience, carrier.deadlines.patience)
                carrier.break_off(f"nothing confirmed for {allowed:.1f} s")

    def _wanted(self) -> bool:
        """Whether anybody here needs the link: frames wait to go, or the peer was sending when it broke."""
        return self._outbox.busy or self._outbox.unhandled > 0 or self.peer_sent

    def _fit_connections(self) -> None:
        """More connections if the probe wants them; the surplus is closed when it wants fewer."""
        active = [one for one in self.connections if not one.retired]
        mine = [one for one in active if one.dialed]
        surplus = len(active) - self._target
        if surplus > 0 and self.peer_id is not None:
            # Both sides may have dialled at once: one that the side with the lesser id has dialled stays.
            kept = int(self.id < self.peer_id or len(mine) == len(active))
            for connection in mine[kept:][-surplus:]:
                connection.retired = True
        self._dial_if_needed()

    @property
    def _target(self) -> int:
        """How many connections there should be."""
        return max(self._probe.wanted, min(self._peer_wants, self._config.max_stripes))

    def _dial_if_needed(self) -> None:
        mine = not self.connections or any(one.dialed for one in self.connections)
        if mine and not self.enough():
            self.dialer.start()

    def _active(self) -> int:
        return sum(not one.retired for one in self.connections)

    def enough(self) -> bool:
        """See ``Dialed``."""
        return self.over is not None or self._leaving or self._peer_left or self._active() >= self._target

    # -- the end ------------------------------------------------------------------------------------------------------

    def fail(self, error: FarflungError, *, quiet: bool = False) -> None:
        """End the link with ``error``; ``quiet``: nobody else needs to be told."""
        with self.changed:
            if self.over is not None:
                return
            self.over = error
            pending = self._outbox.drop()
            connections, told = list(self.connections), self.peer_sent and not quiet
            self._lanes.stop()
            self._inbox.close()
            self.changed.notify_all()
        for connection in connections:
            connection.break_off(str(error))
        for one in pending:
            one.future.set_exception(type(error)(str(error)))
        self._host.link_over(self, error, told=told)

    def let_go(self) -> None:
        """If the peer has said goodbye or sent what can't be read, wait until the link is over: a frame now needs a new link."""
        with self.changed:
            ending = self._peer_left or self._unreadable is not None
            if not ending or self.changed.wait_for(lambda: self.over is not None, _GOODBYE_SECONDS):
                return
        self._end()

    def _end(self) -> None:
        """End the link because of what the peer sent last."""
        if self._unreadable is None:
            self.fail(lost(self.peer, self.address, "it ended the connection"), quiet=True)
        else:
            self.fail(ConnectionLost(f"lost {self.peer}: it sent what can't be read: {self._unreadable}"))

    def close(self) -> None:
        """Say goodbye if nothing is on its way, else break off."""
        error = ConnectionLost(f"the connection to {self.peer} was closed on this side")
        with self.changed:
            if self.over is not None:
                return
            self._leaving = True
            self.changed.notify_all()
            connections = list(self.connections)
            leaving = [] if self._outbox.busy or self._outbox.unhandled > 0 else connections
            for connection in leaving:
                connection.last_words = build_message(MessageKind.GOODBYE, ())
                connection.wake()
        for connection in leaving:
            connection.join(_GOODBYE_SECONDS)
        self.fail(error, quiet=True)
        for connection in connections:
            connection.join()

    def view(self, seen: LinkStatistics) -> LinkStatistics:
        """``seen`` with what the link knows."""
        with self.changed:
            return replace(
                seen,
                connections=len(self.connections),
                congestion=self._congestion,
                rate=self.rate.bytes_per_second,
                round_trip=Seconds(self.rate.round_trip),
                resumed=self._resumed,
                repeated=self._repeated,
                confirmed=self._arrived,
                relay=self.relay,
                alpha=Seconds(self.own.alpha),
                beta=self.own.goodput.alone,
                least=self.own.goodput.least,
            )

    def _refuse(self, connection: Connection, error: FarflungError) -> None:
        """The peer sent what can't be read: it is told why, and with this connection the link is over."""
        self._unreadable = error
        connection.last_words = build_message(MessageKind.FATAL, [pack_value([type(error).__name__, str(error)[:_TEXT]])])

    def _tell_state(self) -> None:
        """Let one connection carry the news; heartbeats repeat them if it breaks."""
        if self.connections:
            self.connections[0].state_due = True
            self.connections[0].wake()

    def _wake_all(self) -> None:
        for connection in self.connections:
            connection.wake()
