"""A worker's second address: with IPv6, beside the one with IPv4 by which it reaches the broker.

Two machines behind NAT often have global IPv6 addresses, which no NAT translates.
"""

from __future__ import annotations

from farflung.transports.addresses import global_ipv6, host_and_port
from farflung.worker.options import WorkerOptions

__all__ = ["listening_address", "second_address"]

_ANY = ("0.0.0.0", "")  # noqa: S104 - compared, not bound


def listening_address(options: WorkerOptions, own_host: str) -> str:
    """Return where a worker that reaches its broker from ``own_host`` listens: at both versions, if it has addresses of both."""
    host, _, port = options.listen.rpartition(":")
    if options.listen and host in _ANY and (":" in own_host or global_ipv6()):
        return f"[::]:{port}"
    return options.listen


def second_address(options: WorkerOptions, own_host: str, address: str) -> str:
    """Return the second address of a worker that peers reach at ``address`` (empty: it has none)."""
    host, port = options.listen.rpartition(":")[0], address.rpartition(":")[2]
    if not port or host not in _ANY or options.advertise or ":" in own_host:
        return ""
    found = global_ipv6()
    return host_and_port(found, int(port)) if found else ""
