"""One TCP connection of a link, used both ways by a thread of its own.

A message is 20 bytes of head (kind u8, lane u8, zero u16, length u32, number u64, CRC-32 u32, little-endian) and its body. The
CRC covers the other 16 bytes and the body, so a corrupted byte is found wherever it came from; the connection ends then, and
what was not confirmed goes over another one. The thread asks the link for the next message when the system can take one, so the
most urgent goes first.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import struct
import threading
import zlib
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Protocol

import numpy as np

from farflung.clock import monotonic
from farflung.errors import ConnectionLost, FarflungError, WireError
from farflung.thread_group import ThreadGroup
from farflung.transports.base import failure_of
from farflung.transports.tcp.adaptation import Deadlines
from farflung.transports.tcp.bbr_pause import Breather
from farflung.transports.tcp.sockets import (
    bbr_view,
    cut,
    explain_break,
    is_crowded,
    kernel_view,
    set_backlog,
    takes_more,
    unconfirmed,
)

__all__ = ["Carried", "Connection", "MessageKind", "NeverBegan", "NotAdmitted", "build_message", "read_message"]

_HEAD = struct.Struct("<BBHIQ")
_CRC = struct.Struct("<I")
_SIZE = _HEAD.size + _CRC.size
#: Bytes: of a message's body at most, and those that one turn of the thread reads before it sends again.
_MAX_BODY = 2 << 20
_READ_BUDGET = 4 << 20
#: Milliseconds that the thread waits at most: for anything; while it rests, to see the next round trip; while it looks what the
#: system has sent; and for room in the system's buffer.
_POLL_MS, _PAUSE_MS, _LOOK_MS, _ROOM_MS = 500.0, 4.0, 4.0, 2.0
#: How long the state waits for the handler of a complete frame, in seconds.
_STATE_SECONDS = 0.005
#: How long a connection that has sent its last message waits for the peer to close.
LINGER_SECONDS = 5.0


class MessageKind(IntEnum):
    """What a message is."""

    HELLO = 1
    DATA = 2
    STATE = 3
    GOODBYE = 4
    FATAL = 5
    RETIRE = 6
    RELAY = 7
    REFUSED = 8


class NeverBegan(ConnectionResetError):
    """A connection ended before its first byte: somebody looked whether this port answers."""


class NotAdmitted(ConnectionLost):
    """The far side can be reached, and does not know this member as its peer, or not yet."""


class Carried(Protocol):
    """The link, as its connections see it."""

    @property
    def threads(self) -> ThreadGroup:
        """The endpoint's threads."""

    def waits(self, connection: Connection) -> bool:
        """Whether ``next_message`` would give something."""

    def next_message(self, connection: Connection) -> bytes | None:
        """What ``connection`` shall send now."""

    def arrived(self, connection: Connection, kind: int, place: tuple[int, int], body: memoryview) -> None:
        """A whole, undamaged message came; ``place``: lane and number."""

    def pause(self) -> float:
        """Seconds until data may go (0: now)."""

    def comes(self, connection: Connection) -> None:
        """Bytes are there to be read."""

    def gives(self, connection: Connection) -> None:
        """Bytes will be given to the system."""

    def looks(self, connection: Connection) -> bool:
        """Bytes are being sent by the system; whether that shall be looked at again soon."""

    def ended(self, connection: Connection, why: str, error: FarflungError | None) -> None:
        """The connection is no more; ``error``: the peer sent what can't be read."""


def build_message(kind: MessageKind, pieces: Sequence[memoryview | bytes], lane: int = 0, number: int = 0) -> bytes:
    """A message of body ``pieces``."""
    head = _HEAD.pack(kind, lane, 0, sum(len(piece) for piece in pieces), number)
    check = zlib.crc32(head)
    for piece in pieces:
        check = zlib.crc32(piece, check)
    return b"".join((head, _CRC.pack(check), *pieces))


def read_message(connection: socket.socket) -> tuple[int, memoryview]:
    """One message from a blocking connection (the greeting): kind and body.

    Raises:
        WireError: it is damaged or too large.
        OSError: the connection broke.
    """
    head = _read_exactly(connection, _SIZE)
    kind, _, _, length, _ = _HEAD.unpack_from(head)
    if length > 65536:
        raise WireError(f"not a greeting: its length is {length}")
    body = _read_exactly(connection, length)
    _check(head, body)
    return kind, body


def _read_exactly(connection: socket.socket, count: int) -> memoryview:
    data = bytearray()
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise (ConnectionResetError if data else NeverBegan)("it ended the connection")
        data += more
    return memoryview(data)


def _check(head: memoryview, body: memoryview) -> None:
    (expected,) = _CRC.unpack_from(head, _HEAD.size)
    if zlib.crc32(body, zlib.crc32(head[: _HEAD.size])) != expected:
        raise WireError("a message's checksum does not match: the link corrupts data")


class Connection:
    """A socket with its thread. ``link`` decides what is sent and learns what comes."""

    def __init__(self, sock: socket.socket, link: Carried, *, dialed: bool) -> None:
        self.sock = sock
        self.dialed = dialed
        #: Whether the peer has said what it holds: data may go.
        self.ready = False
        self.state_due = True
        #: When the next state is due at the latest (infinite: nothing has come that the peer does not know of).
        self.state_by = math.inf
        #: Whether it gets no more data, and ends when what it carries is confirmed.
        self.retired = False
        #: The last message, when it is time for it: nothing follows it.
        self.last_words: bytes | None = None
        self.last_words_sent = False
        self.state_sent = -1e9
        #: Bytes that came.
        self.received = 0
        now = monotonic()
        self.deadlines = Deadlines(now, now)
        self.heartbeat = 0.5
        self.congestion = kernel_view(sock).congestion
        #: Whether it is given nothing for a moment, and whether its next message shall be more than a lonely small packet.
        self._resting = self.padded = False
        self._breather = Breather() if self.congestion == "bbr" else None
        self._link = link
        #: Monotonic seconds.
        self._wrote_at = 0.0
        #: Bytes per second that congestion control takes its way for (0: it does not say).
        self.believed = 0.0
        self._looking = False
        #: Whether the system refused the last bytes.
        self._refused = False
        self._why = ""
        #: Whether it ends: its thread reads and writes nothing more.
        self.closing = False
        self._out: memoryview | None = None
        self._head = memoryview(bytearray(_SIZE))
        self._into, self._filled = self._head, 0
        self._body: memoryview | None = None
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to send and receive."""
        self.sock.setblocking(False)
        self._thread = self._link.threads.spawn("link", self._run)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the connection's thread has ended, unless that is the calling one."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def discard(self) -> None:
        """Close what was never started."""
        for sock in (self.sock, self._wake_in, self._wake_out):
            sock.close()

    def wake(self) -> None:
        """There may be something to send."""
        with suppress(OSError):  # awake already, or over
            self._wake_out.send(b"!")

    def owe_state(self, *, complete: bool) -> None:
        """Something has come. A state says so now, or after a frame that is ``complete`` when its handler has ended.

        So most frames cost one state instead of two, and the handler does not wait for the interpreter's lock meanwhile.
        """
        if complete:
            self.state_by = min(self.state_by, monotonic() + _STATE_SECONDS)
        else:
            self.state_due = True

    def told_state(self, now: float) -> None:
        """The peer is told everything that has come."""
        self.state_due, self.state_by, self.state_sent = False, math.inf, now

    def limit_backlog(self, nbytes: int) -> None:
        """At most ``nbytes`` shall wait in the kernel."""
        set_backlog(self.sock, nbytes)

    def break_off(self, why: str) -> None:
        """End it from any thread."""
        self._why = self._why or why
        self.closing = True
        cut(self.sock)
        self.wake()

    def _run(self) -> None:
        why: list[str] = []

        def loop() -> None:
            try:
                self._loop()
            except OSError as broken:
                why.append(explain_break(broken))

        try:
            error = failure_of("what came", loop)
        finally:
            for sock in (self.sock, self._wake_in, self._wake_out):
                sock.close()
        self._link.ended(self, self._why or "".join(why) or str(error or "it was closed"), error)

    def _loop(self) -> None:
        poll = select.poll()
        poll.register(self._wake_in, select.POLLIN)
        poll.register(self.sock, select.POLLIN)
        number = self.sock.fileno()
        more = False
        while not self.closing:
            longest = min(self._breathe(), self._state_wait())
            if self._looking:
                self._looking = self._link.looks(self)
                longest = min(longest, _LOOK_MS)
            wants = self._out is not None or (not self._resting and self._link.waits(self))
            crowded = wants and is_crowded(self.sock)
            unreported = crowded and takes_more(self.sock)
            if crowded:
                longest = 0.0 if unreported and not self._refused else min(longest, _ROOM_MS)
            poll.modify(self.sock, select.POLLIN | (select.POLLOUT if wants else 0))
            found = dict(poll.poll(0 if more else min(longest, math.ceil(1e3 * self._link.pause()) or longest)))
            woken = self._wake_in.fileno() in found
            if woken:
                with suppress(BlockingIOError):
                    self._wake_in.recv(4096)
            events = found.get(number, 0)
            if more or events & ~select.POLLOUT:
                more = self._read()
            if woken and not wants:  # to send at once what came meanwhile, without another poll
                self._breathe()
            if (unreported or events & select.POLLOUT or (woken and not wants)) and not self._write():
                return

    def _state_wait(self) -> float:
        """Return how many ms the next state may still wait."""
        left = self.state_by - monotonic()
        if left <= 0:
            self.state_due, self.state_by = True, math.inf
        return max(1e3 * left, 0.0)

    def _breathe(self) -> float:
        """Look after BBR's pauses (see ``Breather``); how many ms to wait at most."""
        breather = self._breather
        if breather is None or (view := bbr_view(self.sock)) is None:
            return _POLL_MS
        self.believed = float(view.rate)
        now = monotonic()
        breather.saw(view, now)
        self._resting = self.padded = False
        if breather.near(now):
            queued = unconfirmed(self.sock) + (0 if self._out is None else len(self._out))
            self._resting = breather.holds(now, queued, view)
            expired = breather.expired(now)
            self.padded = expired and not queued
            if expired and queued:
                return _PAUSE_MS  # to see when the next round trip is taken
        if self._resting:
            return _PAUSE_MS
        # the kernel's round trip is in microseconds; what is returned, in milliseconds
        settled = self._wrote_at + 1.5 * view.round_trip / 1e6 + _PAUSE_MS / 1e3
        return min(max(1e3 * (settled - now), 1.0), _POLL_MS) if settled > now else _POLL_MS

    def _read(self) -> bool:
        """Take what is there, up to a budget; whether there may be more."""
        taken = 0
        self._link.comes(self)
        while taken < _READ_BUDGET:
            try:
                count = self.sock.recv_into(self._into[self._filled :])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            if not count:
                raise ConnectionResetError("it broke off")
            taken += count
            self.received += count
            self.deadlines.heard(monotonic())  # a message may take long on a slow link: any byte is a sign of life
            self._filled += count
            if self._filled == len(self._into):
                self._part()
        return True

    def _part(self) -> None:
        """The head or the body is complete."""
        if self._body is None:
            kind, lane, zero, length, _ = _HEAD.unpack_from(self._head)
            if length > _MAX_BODY or zero or lane > 15 or kind not in MessageKind.__members__.values():
                raise WireError("a message's head is damaged: the link corrupts data")
            self._body = memoryview(np.empty(length, np.uint8).data) if length else memoryview(b"")
            self._into, self._filled = self._body, 0
            if length:
                return
        kind, lane, _, _, number = _HEAD.unpack_from(self._head)
        body, self._body = self._body, None
        _check(self._head, body)
        self._into, self._filled = self._head, 0
        self._link.arrived(self, kind, (lane, number), body)

    def _write(self) -> bool:
        """Send one message, or as much of it as the system takes; False after the last words."""
        if self._out is None and self._resting:
            return True
        if self._out is None:
            message = self._link.next_message(self)
            if message is None:
                return True
            self._out = memoryview(message)
        self._link.gives(self)
        try:
            count = self.sock.send(self._out)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._refused = True
            return True
        self._refused = False
        self._wrote_at = monotonic()
        self._looking = True
        self._out = self._out[count:] if count < len(self._out) else None
        if self._out is None and self.last_words_sent:
            self.closing = True
            self._linger()
            return False
        return True

    def _linger(self) -> None:
        """Discard what comes until the peer closes, or ``LINGER_SECONDS`` have passed.

        A socket that is closed with unread bytes resets its connection, and the reset can overtake the last message.
        """
        until = monotonic() + LINGER_SECONDS
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        with suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_WR)
            while (left := until - monotonic()) > 0 and poll.poll(1e3 * left):
                if not socket.socket.recv(self.sock, _MAX_BODY):  # still encrypted: nobody reads it
                    return
