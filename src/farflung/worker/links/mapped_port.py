"""The port of this machine's router that leads to a worker: asked for, renewed, and given back at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, Protocol

from farflung.errors import ConnectionLost
from farflung.telemetry.log_line import Detail
from farflung.thread_group import ThreadGroup
from farflung.transports.addresses import host_and_port
from farflung.transports.pcp import PcpRouter
from farflung.worker.options import WorkerOptions

__all__ = ["LEASE_SECONDS", "MappedPort", "PortRouter", "find_port_router", "mapped_port"]

#: A mapping ends after so many seconds without a renewal, so that a worker that was killed leaves nothing behind.
LEASE_SECONDS = 1200
#: Renewals in the length of a lease.
_RENEWALS = 3
#: Seconds that ``close`` waits for the router.
_END_SECONDS = 10.0


class PortRouter(Protocol):
    """What maps ports: ``transports.upnp.Router`` or ``transports.pcp.PcpRouter``. ``protocol``: what it speaks."""

    address: str
    protocol: ClassVar[str]

    def outer_host(self) -> str:
        """Return the router's public address (empty: not known before a port is mapped)."""

    def map_port(self, inner: int, lease: int, outer: int = 0) -> int:
        """Forward a port (``outer``: this one) for ``lease`` seconds, and return it."""

    def unmap_port(self, outer: int) -> None:
        """Forward the port no more."""


class MappedPort:
    """A mapping of the port ``inner``, until ``close``. Thread: "port-mapping"."""

    def __init__(
        self, inner: int, find: Callable[[], PortRouter], log: Callable[[str], None], lease: int = LEASE_SECONDS
    ) -> None:
        """Ask the router that ``find`` returns; waits for it. Without a mapping, the reason is logged.

        ``lease``: seconds for which the router keeps a mapping that is not renewed.
        """
        self._inner, self._log, self._lease = inner, log, lease
        self._over = threading.Event()
        self._threads = ThreadGroup()
        #: ``host:port`` at which other machines reach this one (empty: there is no mapping).
        self.address = ""
        try:
            router = find()
            host = router.outer_host()
            outer = router.map_port(inner, lease)
            host = host or router.outer_host()
        except ConnectionLost as error:
            log(
                f"warning: --map-port: {error}. This worker joins without a mapping; forward a port by hand if peers cannot "
                "reach it (--listen 0.0.0.0:PORT --advertise HOST)"
            )
            return
        self.address = host_and_port(host, outer)
        log(
            f"the router {router.address} forwards {self.address} to port {inner} of this machine ({router.protocol}) "
            "until this worker leaves"
        )
        self._threads.spawn("port-mapping", self._keep, router, outer)

    def close(self) -> None:
        """Remove the mapping."""
        self._over.set()
        self._threads.join(_END_SECONDS)

    def _keep(self, router: PortRouter, outer: int) -> None:
        """Renew the mapping until ``close``, then remove it."""
        failed = False
        while not self._over.wait(self._lease / _RENEWALS):
            try:
                router.map_port(self._inner, self._lease, outer)
                failed = False
            except ConnectionLost as error:
                if not failed:
                    self._log(f"warning: the mapping of {self.address} was not renewed and may end: {error}")
                failed = True
                continue
            with suppress(ConnectionLost):  # the next renewal asks again
                self._follow(host_and_port(router.outer_host(), outer))
        try:
            router.unmap_port(outer)
        except ConnectionLost as error:
            end = f"it ends in {self._lease} s, or never if the router has no mappings that end"
            self._log(Detail(f"the router did not remove the mapping of {self.address}: {end} ({error})"))

    def _follow(self, address: str) -> None:
        """The router has this public ``address`` now: peers that have the former one can't dial this worker any more."""
        before, self.address = self.address, address
        if address != before:
            self._log(
                f"warning: the router's public address has changed: peers reach this worker at {address}, no longer at {before}. "
                "The broker learns it when this worker joins again: restart farflung join"
            )


def mapped_port(options: WorkerOptions, address: str, log: Callable[[str], None]) -> MappedPort | None:
    """Return a mapping of the port of ``address``, at which a worker listens, if its owner asked for one."""
    if not (options.map_port and address):
        return None
    return MappedPort(int(address.rpartition(":")[2]), find_port_router, log)


def find_port_router() -> PortRouter:
    """Return the router behind which this machine is: by UPnP, otherwise by PCP.

    Raises:
        ConnectionLost: there is none that maps ports.
    """
    from farflung.transports.upnp import default_gateway, find_router  # here: few workers need a client of UPnP

    try:
        return find_router()
    except ConnectionLost as error:
        if gateway := default_gateway():
            with suppress(ConnectionLost):
                return PcpRouter(gateway)
            raise ConnectionLost(f"{error}; it offers no PCP, either") from error
        raise
