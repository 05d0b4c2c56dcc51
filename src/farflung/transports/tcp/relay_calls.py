"""Relays as an endpoint uses them: to dial a peer through one, to answer when one calls, and to be one.

Who wants ``target`` dials a relay and says whom it wants. The relay, if it may, calls ``target`` over its link with it: a frame
with a token. ``target`` dials the relay with the token, and the two connections become one. Either end may begin.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from farflung.clock import monotonic
from farflung.errors import ConnectionLost, FarflungError, WireError
from farflung.thread_group import ThreadGroup
from farflung.transports.config import Insecure
from farflung.transports.tcp.connection import MessageKind, build_message, read_message
from farflung.transports.tcp.relay import Desk, end_tls
from farflung.transports.tcp.sockets import TlsContexts, Unfinished, dial, explain_break
from farflung.wire.frames import Frame
from farflung.wire.headers import pack_value, unpack_value
from farflung.wire.relay_calls import RelayCall

__all__ = ["PROTOCOL", "RelayHost", "RelayRequest", "Relaying"]

#: Of greetings.
PROTOCOL = 1
_TOKEN = 100
#: A relay that does not answer must leave time for the next one.
_DIAL_SECONDS = 4.0
_KEEP_SECONDS = 1.0


class RelayHost(Protocol):
    """The endpoint, as its relaying sees it."""

    name: str
    threads: ThreadGroup

    def address_of(self, peer: str) -> str:
        """Where ``peer`` listens (empty: not known, or it does not)."""

    def call(self, peer: str, frame: Frame) -> bool:
        """Send ``frame`` over the link with ``peer``, if there is one with a connection now."""

    def keep(self, peer: str) -> None:
        """See that there is a link with ``peer``, or that it is dialled."""

    def take_in(self, sock: socket.socket, relay: str) -> None:
        """Greet a peer that came through ``relay``, on a thread of its own; closes ``sock`` if that fails."""

    def log(self, text: str) -> None:
        """Tell the person at this machine."""


@dataclass(frozen=True, slots=True)
class RelayRequest:
    """A first message to a relay: ``target`` is wanted, or (with ``token``) the sender was called."""

    target: str
    token: str
    name: str = ""

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> RelayRequest:
        """Check what came.

        Raises:
            WireError: it is malformed.
        """
        target, token = value.get("to"), value.get("token")
        if not (isinstance(target, str) and isinstance(token, str) and len(target) <= _TOKEN and len(token) <= _TOKEN):
            raise WireError("a request to a relay must say whom it is for")
        return cls(target, token, str(value.get("name", ""))[:_TOKEN])


class Relaying:
    """One endpoint's relays, and what it relays itself (``desk``)."""

    def __init__(self, host: RelayHost, tls: TlsContexts | Insecure, unfinished: Unfinished, timeout: float) -> None:
        """``timeout``: seconds in which a relay, or the peer that it calls, must answer."""
        self.desk = Desk()
        self._host, self._tls, self._unfinished, self._timeout = host, tls, unfinished, timeout
        #: Guards the next two; links are kept without it, because that may dial.
        self._lock = threading.Lock()
        #: peer -> relays, the best first (one that failed goes to the end)
        self._through: dict[str, tuple[str, ...]] = {}
        #: When the links to relays are kept next (monotonic seconds).
        self._keep_at = 0.0

    def use(self, peer: str, relays: Sequence[str]) -> None:
        """``peer`` is reached through one of ``relays`` (none: directly)."""
        with self._lock:
            self._through.pop(peer, None)
            if relays:
                self._through[peer] = tuple(relays)
                self._keep_at = 0.0  # at the next tick

    def relays(self, peer: str) -> tuple[str, ...]:
        """The relays to ``peer``, the best first."""
        with self._lock:
            return self._through.get(peer, ())

    def tick(self, now: float) -> None:
        """Keep the links over which relays call."""
        self.desk.tick(now)
        if now < self._keep_at:
            return
        with self._lock:
            self._keep_at = now + _KEEP_SECONDS
            wanted = {relay for relays in self._through.values() for relay in relays}
        for relay in wanted:
            self._host.keep(relay)

    # -- an end -------------------------------------------------------------------------------------------------------

    def dial(self, peer: str) -> tuple[socket.socket, str]:
        """A plain connection with ``peer``'s machine, and the relay that it goes through.

        Raises:
            ConnectionLost: no relay could be reached, or none has the peer; the text says of the last one why.
        """
        failure = "no relay's address is known"
        for relay in self.relays(peer):
            try:
                return self._ask(relay, {"protocol": PROTOCOL, "to": peer, "token": ""}), relay
            except FarflungError as error:  # whatever is wrong with this one, another may do
                failure = str(error)
            except OSError as error:
                failure = f"the relay {relay} broke off: {explain_break(error)}"
            self.failed(peer, relay)
        raise ConnectionLost(f"cannot reach {peer} through a relay: {failure}")

    def failed(self, peer: str, relay: str) -> None:
        """Try ``relay`` last from now on."""
        with self._lock:
            known = self._through.get(peer, ())
            if relay in known:
                self._through[peer] = (*(one for one in known if one != relay), relay)

    def called(self, relay: str, call: RelayCall) -> None:
        """``relay`` says that a peer is there who wants this endpoint."""
        if relay not in self.relays(call.source):
            return  # nobody told this endpoint to expect that
        self._host.threads.spawn(f"called-{call.source}", self._answer, relay, call.source, call.token)

    def _answer(self, relay: str, source: str, token: str) -> None:
        try:
            sock = self._ask(relay, {"protocol": PROTOCOL, "to": "", "token": token})
        except (FarflungError, OSError) as error:
            self._host.log(f"the relay {relay} called for {source}, and was not reached: {error}")
            return
        self._host.take_in(sock, relay)

    def _ask(self, relay: str, body: Mapping[str, Any]) -> socket.socket:
        address = self._host.address_of(relay)
        if not address:
            raise ConnectionLost(f"the address of the relay {relay} is unknown")
        timeout = min(self._timeout, _DIAL_SECONDS)
        sock = dial(relay, address, self._tls, timeout, self._unfinished)
        with ExitStack() as undo:
            undo.callback(sock.close)
            with self._unfinished.guard(sock, timeout + self._timeout):
                sock.settimeout(self._timeout)
                hello = {"name": self._host.name} if isinstance(self._tls, Insecure) else {}
                sock.sendall(build_message(MessageKind.RELAY, [pack_value({**body, **hello})]))
                kind, answer = read_message(sock)
                if kind != MessageKind.RELAY:
                    raise ConnectionLost(_refusal(relay, unpack_value(bytes(answer), 4)))
                plain = end_tls(sock)
            undo.pop_all()  # the socket is the caller's
            return plain

    # -- the relay ----------------------------------------------------------------------------------------------------

    def serve(self, sock: socket.socket, caller: str, request: RelayRequest) -> None:
        """Answer a member that wants to be relayed (a greeting's thread); owns ``sock``."""
        try:
            if request.token:
                self._join(sock, caller, request.token)
            else:
                self._call(sock, caller, request.target)
        except FarflungError as error:
            sock.sendall(build_message(MessageKind.FATAL, [pack_value([type(error).__name__, str(error)])]))
            sock.close()

    def _call(self, sock: socket.socket, caller: str, target: str) -> None:
        self.desk.check(caller, target)
        until = monotonic() + self._timeout
        token = self.desk.park(sock, caller, target, until)
        if not self._host.call(target, RelayCall(caller, token).to_frame()):
            self.desk.claim(token, target)
            raise ConnectionLost(f"the relay {self._host.name} has no connection with {target} now")

    def _join(self, sock: socket.socket, caller: str, token: str) -> None:
        parked = self.desk.claim(token, caller)
        near, far = parked.sock, sock
        try:
            with self._unfinished.guard(near, self._timeout):
                for one in (near, far):
                    one.sendall(build_message(MessageKind.RELAY, [pack_value({"protocol": PROTOCOL})]))
                near = end_tls(near)
            far = end_tls(far)
        except (OSError, FarflungError):
            near.close()
            far.close()
            raise
        self.desk.forwarder.add((parked.caller, caller), (near, far))


def _refusal(relay: str, value: Any) -> str:
    good = isinstance(value, list) and len(value) == 2 and isinstance(value[1], str)
    return f"the relay {relay} says: {value[1] if good else 'something that can not be read'}"[:1000]
