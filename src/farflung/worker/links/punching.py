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
#: Attempts of this worker at once; further ones are ignored, and their peers try again.
_MOST_AT_ONCE = 32


class Punching:
    """The session's thread calls ``begin`` and ``go``, dialling threads call ``dial``."""

    def __init__(
        self, broker: str, report: Callable[[Message], None], take_in: Callable[[socket.socket], None], log: Callable[[str], None]
    ) -> None:
        """``take_in`` greets a peer that comes over a connection, and owns it."""
        self._broker, self._report, self._take_in, self._log = broker, report, take_in, log
        self._threads = ThreadGroup()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        #: peer -> who waits for a connection with it
        self._dials: dict[str, Future[socket.socket]] = {}
        #: peer -> held while somebody dials it: there is one attempt of a pair at once
        self._turns: dict[str, threading.Lock] = {}
        #: number of an attempt -> the peer's address, once the broker has sent it
        self._attempts: dict[int, Future[str]] = {}

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
            self._dials[peer] = found
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
                late = not reached and found.done() and not found.cancelled() and found.exception() is None
            if late:
                found.result().close()
            with suppress(ConnectionLost):  # the broker is lost, and nobody plans with the answer
                self._report(PunchEnded(peer=peer, reached=reached))

    def begin(self, order: Observe) -> None:
        """Take part in an attempt."""
        with self._lock:
            if self._closed.is_set() or order.number in self._attempts or len(self._attempts) >= _MOST_AT_ONCE:
                return
            address = self._attempts[order.number] = Future()
        self._threads.spawn(f"punch-{order.peer}", self._attempt, order, address)

    def go(self, order: Punch) -> None:
        """Dial now."""
        with self._lock:
            address = self._attempts.get(order.number)
            if address is not None and not address.done():
                address.set_result(order.address)

    def close(self) -> None:
        """End all attempts."""
        with self._lock:
            self._closed.set()
            waiting: list[Future[socket.socket] | Future[str]] = [*self._dials.values(), *self._attempts.values()]
            for one in waiting:
                if not one.done():
                    one.set_exception(ConnectionLost("this worker is leaving"))

    def join(self) -> None:
        """Wait for all attempts to end; the endpoint that greets peers must be closed."""
        self._threads.join()

    def _attempt(self, order: Observe, address: Future[str]) -> None:
        try:
            with observe(split_address(self._broker), token=order.token, seconds=_OBSERVE_SECONDS).sock as seen:
                port = int(seen.getsockname()[1])
                self._punch(order, port, address.result(_ANSWER_SECONDS))
        except (FarflungError, OSError, TimeoutError) as error:
            cause = f"no hole to {order.peer} could be punched: {str(error) or 'the broker did not continue'}"
            self._log(Detail(cause))
            self._give_up(order, cause)
        finally:
            with self._lock:
                del self._attempts[order.number]

    def _punch(self, order: Observe, port: int, address: str) -> None:
        until = monotonic() + _PUNCH_SECONDS
        over = self._closed.is_set
        with closing(punch(port, address, _PUNCH_SECONDS, lambda: over() or monotonic() > until)) as connections:
            for sock in connections:
                if order.dials:
                    self._hand_over(order.peer, sock)
                    return
                # two connections may cross: the peer chooses one, and ends the other
                self._threads.spawn(f"punched-{order.peer}", self._take_in, sock)
                until = min(until, monotonic() + _MORE_SECONDS)

        self._give_up(order, f"no hole to {order.peer} could be punched: no connection within {_PUNCH_SECONDS:.0f} s")

    def _give_up(self, order: Observe, cause: str) -> None:
        """Tell whoever dials, if it is an attempt of this worker."""
        with self._lock:
            waiting = self._dials.get(order.peer) if order.dials else None
            if waiting is not None and not waiting.done():
                waiting.set_exception(ConnectionLost(cause))

    def _hand_over(self, peer: str, sock: socket.socket) -> None:
        with self._lock:
            waiting = self._dials.get(peer)
            if waiting is not None and not waiting.done():
                waiting.set_result(sock)
                return
        sock.close()
