"""Dials connections for a link until it has enough."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from farflung.clock import monotonic
from farflung.errors import ConnectionLost, FarflungError
from farflung.thread_group import ThreadGroup
from farflung.transports.base import failure_of
from farflung.transports.config import TransportConfig
from farflung.transports.tcp.connection import NotAdmitted

__all__ = ["Dialer", "LinkCalls"]

#: How long a peer that is there may take to learn of the run: it may have to end its part in another one first.
_ADMISSION_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class LinkCalls:
    """What a dialer calls of its link. ``enough`` and ``connected`` are called under the link's lock, the others without it.

    ``dial``: make one connection; return False if nobody knows where the peer is. ``enough``: whether there is nothing to dial
    for. ``connected``: whether there is a connection. ``fail``: end the link with an error.
    """

    dial: Callable[[], bool]
    enough: Callable[[], bool]
    connected: Callable[[], bool]
    fail: Callable[[FarflungError], None]


class Dialer:
    """Dials on one thread at a time, named "dial-PEER"."""

    def __init__(self, peer: str, changed: threading.Condition, threads: ThreadGroup, calls: LinkCalls, *, redial: float) -> None:
        """``changed`` guards the link and the dialer. ``threads``: of the endpoint. ``redial``: seconds between attempts."""
        self._peer, self._changed, self._threads = peer, changed, threads
        self._calls, self._redial = calls, redial
        #: Whether a thread dials now.
        self.running = False
        #: Why the newest failed attempt failed.
        self.failure: FarflungError | None = None
        #: When the peer's machine first refused a connection (None: it does not refuse).
        self.refused_since: float | None = None

    def refused_for(self, now: float) -> float:
        """Return for how many seconds the peer's machine has refused connections."""
        return 0.0 if self.refused_since is None else now - self.refused_since

    def patience(self, config: TransportConfig, *, known: bool) -> float:
        """Return for how many seconds a link without a connection is dialed; ``known``: it had one, or only the peer can dial."""
        if isinstance(self.failure, NotAdmitted):
            return max(_ADMISSION_SECONDS, config.resume)  # the peer is there, and has not begun with the run
        return config.resume if known else config.connect_timeout

    def start(self) -> None:
        """Dial on a thread, unless one does (under the lock)."""
        if not self.running:
            self.running = True
            self._threads.spawn(f"dial-{self._peer}", self.run)

    def run(self) -> None:
        """Dial until there are enough connections, the link is over, or (with some there) the peer does not answer."""
        going, changed = True, self._changed
        try:
            while going:
                with changed:
                    going = self.running = not self._calls.enough()
                if going:
                    known, failure = self._try()
                    with changed:
                        going = self.running = not self._heed(known, failure)
        finally:  # a defect must not leave the link without anybody who dials
            if going:
                with changed:
                    self.running = False

    def _try(self) -> tuple[bool, FarflungError | None]:
        """Whether the peer's place is known, and why it was not reached (None: it was)."""
        known: list[bool] = []
        failure = failure_of(f"dialling {self._peer}", lambda: known.append(self._calls.dial()))
        if failure is not None and not isinstance(failure, ConnectionLost):
            self._calls.fail(failure)  # else the link would wait for ever
        return known != [False], failure

    def _heed(self, known: bool, failure: FarflungError | None) -> bool:
        """What a try tells (under the lock); whether it was the last one for now."""
        if failure is not None:
            refused = "refused" in str(failure).lower()
            self.refused_since = (self.refused_since or monotonic()) if refused else None
            self.failure = failure
        if (failure is not None or not known) and (self._calls.connected() or not known):
            return True
        if failure is not None:
            self._changed.wait(self._redial)
        return False
