"""A worker's part in hole punching. The broker coordinates: it observes a port of both ends, and tells both when to dial.

An attempt has a number and takes two commands. At ``Observe``, a thread opens a port and shows it to the broker. At ``Punch``,
the same thread dials the peer's observed address from that port, for a few seconds. The end that wanted the connection opens TLS
on it, and the other end accepts, so nobody but the peer gets further.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass

from farflung.clock import monotonic
from farflung.errors import ConnectionLost, FarflungError
from farflung.messages.commands import Observe, Punch
from farflung.messages.reports import PunchEnded, PunchWanted
from farflung.messages.schema import Message
from farflung.security import split_address
from farflung.telemetry.log_line import Detail
from farflung.thread_group import ThreadGroup
from farflung.transports.punching.hole_puncher import punch
from farflung.transports.punching.observation import observe

__all__ = ["Punching"]

#: Seconds for an observation, from there to the broker's answer, for dialling, and for further connections after the first.
_OBSERVE_SECONDS, _ANSWER_SECONDS, _PUNCH_SECONDS, _MORE_SECONDS = 2.0, 4.0, 4.0, 0.5
#: Seconds from the wish to a connection, at most.
_PATIENCE = 8.0
#: Attempts of this worker at once, and those with one peer; further ones are ignored, and their peers try again.
_MOST_AT_ONCE, _MOST_OF_PEER = 32, 4
#: Connections of one attempt that the end that did not want it greets.
_MOST_CONNECTIONS = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Attempt:
    """``address``: the peer's, once the broker has sent it. ``dial``: who waits for the connection (None: the peer does)."""

    order: Observe
    address: Future[str]
    dial: Future[socket.socket] | None


class Punching:
    """The session's thread calls ``begin`` and ``go``, dialling threads call ``dial``."""

    def __init__(
        self, broker: str, report: Callable[[Message], None], take_in: Callable[[socket.socket], None], log: Callable[[str], None]
    ) -> None:
        """``take_in`` greets a peer that comes over a connection, and owns it."""
        self._broker, self._report, self._take_in, self._log = broker, report, take_in, log
        self._threads = ThreadGroup()
        #: Guards the next three; turns are acquired after it was released, because that waits.
        self._lock = threading.Lock()
        self._closed = threading.Event()
        #: peer -> who waits for a connection with it
        self._dials: dict[str, Future[socket.socket]] = {}
        #: peer -> held while somebody dials it: there is one attempt of a pair at once
        self._turns: dict[str, threading.Lock] = {}
        #: By the numbers of the broker.
        self._attempts: dict[int, _Attempt] = {}

    def dial(self, peer: str) -> socket.socket:
        """Return a plain connection with ``peer``, who may be anybody until TLS has proved it.

        Raises:
            ConnectionLost: no hole could be punched in time.
        """
        with self._lock:
            turn = self._turns.setdefault(peer, threading.Lock())
        if not turn.acquire(timeout=_PATIENCE):
            raise ConnectionLost(f"cannot reach {peer} by hole punching: another attempt lasts")
        try:
            return self._dial(peer)
        finally:
            turn.release()

    def _dial(self, peer: str) -> socket.socket:
        found: Future[socket.socket] = Future()
        with self._lock:
            if self._closed.is_set():
                raise ConnectionLost(f"cannot reach {peer} by hole punching: this worker is leaving")
            self._dials[peer] = found  # before the report: the broker's order may come at once
        reached = False
        try:
            self._report(PunchWanted(peer=peer))
            sock = found.result(_PATIENCE)
            reached = True
            return sock
        except TimeoutError:
            raise ConnectionLost(f"cannot reach {peer} by hole punching: no connection within {_PATIENCE:.0f} s") from None
        finally:
            with self._lock:
                del self._dials[peer]
                late = not found.cancel() and not reached and found.exception() is None
            if late:
                found.result().close()
            with suppress(ConnectionLost):  # the broker is lost, and nobody plans with the answer
                self._report(PunchEnded(peer=peer, reached=reached))

    def begin(self, order: Observe) -> None:
        """Take part in an attempt."""
        with self._lock:
            dial = self._dials.get(order.peer) if order.dials else None
            unwanted = self._closed.is_set() or order.number in self._attempts or (order.dials and dial is None)
            of_peer = sum(one.order.peer == order.peer for one in self._attempts.values())
            if unwanted or len(self._attempts) >= _MOST_AT_ONCE or of_peer >= _MOST_OF_PEER:
                return
            attempt = self._attempts[order.number] = _Attempt(order, Future(), dial)
        self._threads.spawn(f"punch-{order.peer}", self._attempt, attempt)

    def go(self, order: Punch) -> None:
        """Dial now."""
        with self._lock:
            attempt = self._attempts.get(order.number)
            if attempt is not None and not attempt.address.done():
                attempt.address.set_result(order.address)

    def close(self) -> None:
        """End all attempts."""
        with self._lock:
            self._closed.set()
            addresses = [attempt.address for attempt in self._attempts.values()]
            waiting: list[Future[socket.socket] | Future[str]] = [*self._dials.values(), *addresses]
            for one in waiting:
                if not one.done():
                    one.set_exception(ConnectionLost("this worker is leaving"))

    def join(self) -> None:
        """Wait for all attempts to end; the endpoint that greets peers must be closed."""
        self._threads.join()

    def _attempt(self, attempt: _Attempt) -> None:
        order = attempt.order
        try:
            with observe(split_address(self._broker), token=order.token, seconds=_OBSERVE_SECONDS).sock as seen:
                port = int(seen.getsockname()[1])
                self._punch(attempt, port, attempt.address.result(_ANSWER_SECONDS))
        except (FarflungError, OSError, TimeoutError) as error:
            cause = f"no hole to {order.peer} could be punched: {str(error) or 'the broker did not continue'}"
            self._log(Detail(cause))
            self._give_up(attempt, cause)
        finally:
            with self._lock:
                del self._attempts[order.number]

    def _punch(self, attempt: _Attempt, port: int, address: str) -> None:
        peer = attempt.order.peer
        until = monotonic() + _PUNCH_SECONDS
        over = self._closed.is_set
        with closing(punch(port, address, _PUNCH_SECONDS, lambda: over() or monotonic() > until)) as connections:
            for count, sock in enumerate(connections, 1):
                if attempt.dial is not None:
                    self._hand_over(attempt.dial, sock)
                    return
                # two connections may cross: the peer chooses one, and ends the other
                self._threads.spawn(f"punched-{peer}", self._take_in, sock)
                if count == _MOST_CONNECTIONS:
                    return
                until = min(until, monotonic() + _MORE_SECONDS)

        self._give_up(attempt, f"no hole to {peer} could be punched: no connection within {_PUNCH_SECONDS:.0f} s")

    def _give_up(self, attempt: _Attempt, cause: str) -> None:
        """Tell whoever dials, if it is an attempt of this worker."""
        with self._lock:
            if attempt.dial is not None and not attempt.dial.done():
                attempt.dial.set_exception(ConnectionLost(cause))

    def _hand_over(self, dial: Future[socket.socket], sock: socket.socket) -> None:
        with self._lock:
            if not dial.done():
                dial.set_result(sock)
                return
        sock.close()
