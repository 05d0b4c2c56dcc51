"""Connections between two members that cannot reach each other, through a third one that both can dial: the third one's side.

The relay proves itself and its caller over TLS, as for any link. Then this TLS ends, on purpose, and both ends begin TLS with
each other over the same sockets: the relay moves bytes that it can't read, and every byte is encrypted once. It keeps one piece
of each direction at most; a slow way out holds the way in back by TCP's own window, so credit stays a matter of the two ends.

A relay serves the pairs that it was told of (``Desk.allow``), which are members of one run, and so many connections of each.
"""

from __future__ import annotations

import math
import secrets
import selectors
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from farflung.clock import monotonic
from farflung.errors import ConnectionLost
from farflung.ids import Pair, pair_of
from farflung.transports.tcp.sockets import cut, set_backlog

__all__ = ["Desk", "Forwarder", "Parked", "end_tls"]

#: The most bytes of one direction that a relay holds in memory.
PIECE = 64 << 10
_BACKLOG = 128 << 10
_ROUNDS = 16
_IDLE_SECONDS = 30.0
_TICK = 1.0
#: Connections from which on messages are gathered: with fewer, waking the thread for each message costs little.
_MANY = 128
#: Connections at once: of a pair (both ends may dial sixteen), of all; those that wait for their other end.
_MAX_OF_PAIR, _MAX_IN_ALL, _MAX_WAITING = 32, 256, 64


def end_tls(connection: socket.socket) -> socket.socket:
    """The plain socket under ``connection``: both sides say that TLS ends here, and not a byte of what follows is lost.

    Raises:
        OSError: the other side broke off, or says nothing in time.
    """
    if not isinstance(connection, ssl.SSLSocket):
        return connection
    timeout = connection.gettimeout()
    connection.unwrap()
    plain = socket.socket(fileno=connection.detach())
    plain.settimeout(timeout)
    return plain


@dataclass(slots=True, eq=False)
class Way:
    """One direction: at most one piece that was read and is not yet sent. ``moved``: bytes that went."""

    source: socket.socket
    sink: socket.socket
    names: tuple[str, str]
    piece: memoryview = field(default_factory=lambda: memoryview(bytearray(PIECE)))
    begin: int = 0
    end: int = 0
    over: bool = False
    moved: int = 0

    @property
    def full(self) -> bool:
        """Whether something waits to be sent."""
        return self.begin < self.end

    def waits(self) -> bool:
        """Return whether the way waits for its source, and for nothing else."""
        return not (self.full or self.over)

    def move(self) -> None:
        """Move what can be moved now, up to a budget. A piece that is not full is the last for now: the selector reports more.

        Raises:
            OSError: a side broke off; what went before counts in ``moved``.
        """
        for _ in range(_ROUNDS):
            try:
                if not self.full:
                    if self.over:
                        break
                    self.begin, self.end = 0, self.source.recv_into(self.piece)
                    if not self.end:
                        self.over = True
                        self.sink.shutdown(socket.SHUT_WR)
                        break
                sent = self.sink.send(self.piece[self.begin : self.end])
            except BlockingIOError:
                break
            self.begin += sent
            self.moved += sent
            if not self.full and self.end < PIECE:
                break


@dataclass(slots=True, eq=False)
class Splice:
    """Two sockets that are one connection, and both ways between them."""

    pair: Pair
    sockets: tuple[socket.socket, socket.socket]
    ways: tuple[Way, Way]
    moved_at: float
    #: When it is cut, in monotonic seconds.
    until: float = math.inf
    #: The events for which the selector waits, by socket.
    awaited: list[int] = field(default_factory=lambda: [0, 0])
    #: A side broke off.
    broken: bool = False

    def pass_on(self, which: int, now: float) -> bool:
        """Move what socket ``which`` has. Return whether the selector waits for the same events as before: nearly always."""
        way = self.ways[which]
        if not way.waits():
            return False
        try:
            way.move()
        except OSError:
            self.broken = True
        self.moved_at = now
        return way.waits() and not self.broken

    def wants(self, which: int) -> int:
        """Events of socket ``which`` that matter now."""
        forth, back = self.ways[which], self.ways[1 - which]
        reads = selectors.EVENT_READ if forth.waits() else 0
        return reads | (selectors.EVENT_WRITE if back.full else 0)

    def ready(self, which: int, events: int) -> set[Way]:
        """The ways that can move after ``events`` of socket ``which``."""
        reads = {self.ways[which]} if events & selectors.EVENT_READ else set()
        return reads | {self.ways[1 - which]} if events & selectors.EVENT_WRITE else reads


class Forwarder:
    """One thread that moves the bytes of all spliced connections. ``carried``: bytes so far by (from, to)."""

    def __init__(
        self,
        idle_seconds: float = _IDLE_SECONDS,
        ended: Callable[[Splice], None] = lambda splice: None,
        gather_seconds: float = 0.0,
    ) -> None:
        """A connection ends after ``idle_seconds`` without a byte. ``ended`` is called on the thread when one has ended.

        ``gather_seconds``: with many connections, messages wait for others for so long and are moved together.
        """
        self._idle_seconds, self._ended, self._gather_seconds = idle_seconds, ended, gather_seconds
        #: Guards the next three. The thread closes sockets only after it has removed them, so those that others find are open.
        self._lock = threading.Lock()
        #: Connections that the thread has yet to register.
        self._new: list[Splice] = []
        #: The connections that are forwarded now.
        self.splices: set[Splice] = set()
        self._carried: dict[tuple[str, str], int] = {}
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        #: A byte in here wakes the thread, which waits for sockets.
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)

    def add(self, names: tuple[str, str], sockets: tuple[socket.socket, socket.socket], seconds: float = math.inf) -> Splice:
        """Join the plain ``sockets`` of the members ``names`` for ``seconds``, until one side ends it (they are closed here)."""
        near, far = sockets
        for one in sockets:
            one.setblocking(False)
            set_backlog(one, _BACKLOG)
        ways = (Way(near, far, names), Way(far, near, (names[1], names[0])))
        now = monotonic()
        splice = Splice(pair_of(*names), sockets, ways, now, now + seconds)
        with self._lock:
            if not self._closed.is_set():
                self._new.append(splice)
                self.splices.add(splice)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
                    self._thread.start()
                self._wake()
                return splice
        for one in sockets:
            one.close()
        return splice

    def count(self, pair: Pair | None = None) -> int:
        """Connections now, of ``pair`` or in all."""
        with self._lock:
            return sum(pair in (None, splice.pair) for splice in self.splices)

    def carried(self) -> Mapping[tuple[str, str], int]:
        """Bytes so far, by (from, to)."""
        with self._lock:
            found = dict(self._carried)
            for splice in self.splices:
                _add_moved(found, splice)
        return found

    def cut(self, pairs: Iterable[Pair]) -> None:
        """End the connections of ``pairs``."""
        chosen = set(pairs)
        with self._lock:
            for splice in self.splices:
                if splice.pair in chosen:
                    _cut(splice)

    def end(self, splice: Splice) -> None:
        """End one connection."""
        with self._lock:
            if splice in self.splices:  # else its sockets may be closed, and their numbers somebody else's
                _cut(splice)

    def close(self) -> None:
        """End all."""
        with self._lock:
            self._closed.set()
            thread = self._thread
        self._wake()
        if thread is not None:
            thread.join()
        self._wake_in.close()
        self._wake_out.close()

    def _wake(self) -> None:
        with suppress(OSError):
            self._wake_out.send(b"!")

    def _run(self) -> None:
        with selectors.DefaultSelector() as chosen:
            chosen.register(self._wake_in, selectors.EVENT_READ)
            swept = monotonic()
            while not self._closed.is_set():
                touched: dict[Splice, set[Way]] = {}
                ready = chosen.select(_TICK)
                now = monotonic()
                for key, events in ready:
                    if key.data is None:
                        self._wake_in.recv(4096)
                        continue
                    splice, which = key.data
                    if splice in touched or events != selectors.EVENT_READ or not splice.pass_on(which, now):
                        touched.setdefault(splice, set()).update(splice.ready(which, events))
                with self._lock:
                    touched |= {one: set(one.ways) for one in self._new}
                    self._new.clear()
                if now - swept > _TICK:  # whose ends are both gone without a word
                    swept = now
                    with self._lock:
                        touched |= {one: set(one.ways) for one in self.splices if self._late(one, now)}
                for splice, ways in touched.items():
                    self._serve(chosen, splice, ways, now)
                if self._gather_seconds and not touched and len(self.splices) >= _MANY:
                    self._closed.wait(self._gather_seconds)
            with self._lock:
                left = list(self.splices)
            for splice in left:
                self._end(chosen, splice)

    def _serve(self, chosen: selectors.BaseSelector, splice: Splice, ways: Iterable[Way], now: float) -> None:
        """Move what waits on ``ways``, and await what the splice wants next."""
        before = sum(way.moved for way in splice.ways)
        try:
            for way in ways:
                way.move()
        except OSError:
            splice.broken = True
        if sum(way.moved for way in splice.ways) > before:
            splice.moved_at = now
        if splice.broken or all(way.over and not way.full for way in splice.ways) or self._late(splice, now):
            self._end(chosen, splice)
            return
        for which, one in enumerate(splice.sockets):
            events, before = splice.wants(which), splice.awaited[which]
            splice.awaited[which] = events
            if events and not before:
                chosen.register(one, events, (splice, which))
            elif before and not events:
                chosen.unregister(one)
            elif events != before:
                chosen.modify(one, events, (splice, which))

    def _late(self, splice: Splice, now: float) -> bool:
        return now - splice.moved_at > self._idle_seconds or now > splice.until

    def _end(self, chosen: selectors.BaseSelector, splice: Splice) -> None:
        with self._lock:
            self.splices.discard(splice)
            _add_moved(self._carried, splice)
        for one, awaited in zip(splice.sockets, splice.awaited, strict=True):
            if awaited:
                chosen.unregister(one)
            one.close()
        self._ended(splice)


def _add_moved(carried: dict[tuple[str, str], int], splice: Splice) -> None:
    for way in splice.ways:
        if way.moved:
            carried[way.names] = carried.get(way.names, 0) + way.moved


def _cut(splice: Splice) -> None:
    for one in splice.sockets:
        cut(one)


@dataclass(frozen=True, slots=True)
class Parked:
    """A caller whose other end was called and has not come yet."""

    sock: socket.socket
    caller: str
    target: str
    #: Monotonic seconds.
    until: float


class Desk:
    """Who may be relayed, and who waits. ``forwarder`` moves what was joined. Thread-safe."""

    def __init__(self) -> None:
        self.forwarder = Forwarder()
        #: Guards all fields below. It is released before the forwarder is asked, which has a lock of its own.
        self._lock = threading.Lock()
        #: run -> the pairs that it may be relayed for
        self._allowed: dict[str, frozenset[Pair]] = {}
        #: token -> the caller that waits
        self._parked: dict[str, Parked] = {}
        self._closed = False

    def allow(self, run: str, pairs: Iterable[tuple[str, str]]) -> None:
        """From now on relay for ``pairs`` of ``run``, and for no others of it."""
        with self._lock:
            before = self._allowed.get(run, frozenset())
            self._allowed[run] = frozenset(pair_of(*pair) for pair in pairs)
            if not self._allowed[run]:
                del self._allowed[run]
            others = frozenset(pair for known in self._allowed.values() for pair in known)
        self.forwarder.cut(before - others)

    def check(self, caller: str, target: str) -> None:
        """Whether ``caller`` may be connected with ``target``.

        Raises:
            ConnectionLost: this relay knows of no run in which they are, or they have too many connections.
        """
        pair = pair_of(caller, target)
        with self._lock:
            known = any(pair in pairs for pairs in self._allowed.values())
            waiting = len(self._parked)
        if not known:
            raise ConnectionLost(f"this relay was told of no run in which {caller} and {target} need it")
        if self.forwarder.count(pair) >= _MAX_OF_PAIR or self.forwarder.count() >= _MAX_IN_ALL or waiting >= _MAX_WAITING:
            raise ConnectionLost(f"this relay carries as many connections as it may ({_MAX_OF_PAIR} of a pair)")

    def park(self, sock: socket.socket, caller: str, target: str, until: float) -> str:
        """Keep ``sock`` until ``target`` comes with the token that is returned, or until ``until`` (monotonic seconds)."""
        token = secrets.token_hex(16)
        with self._lock:
            if self._closed:
                raise ConnectionLost("this relay is closing")
            self._parked[token] = Parked(sock, caller, target, until)
        return token

    def claim(self, token: str, target: str) -> Parked:
        """The caller that ``target`` was called for.

        Raises:
            ConnectionLost: nobody waits under that token for ``target`` (any more).
        """
        with self._lock:
            found = self._parked.get(token)
            if found is None or found.target != target:
                raise ConnectionLost(f"nobody waits for {target} here any more")
            return self._parked.pop(token)

    def tick(self, now: float) -> None:
        """Let go of callers whose other end did not come."""
        with self._lock:
            late = [token for token, parked in self._parked.items() if now > parked.until]
            gone = [self._parked.pop(token) for token in late]
        for parked in gone:
            parked.sock.close()

    def close(self) -> None:
        """End everything."""
        with self._lock:
            self._closed = True
            gone, self._parked = list(self._parked.values()), {}
        for parked in gone:
            parked.sock.close()
        self.forwarder.close()
