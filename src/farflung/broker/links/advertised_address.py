"""Which addresses a worker may advertise: others dial them, so nobody may point them at services that are not workers."""

from __future__ import annotations

import ipaddress

from farflung.errors import InputError, SecurityError
from farflung.security import split_address

__all__ = ["check_advertised"]

#: Ports below this belong to services of the system.
_LEAST_PORT = 1024


def check_advertised(address: str, source: str) -> None:
    """See that a worker that calls from ``source`` may advertise ``address`` (both ``host:port``; empty: it can't be dialed).

    Raises:
        InputError: other members must not dial that address.
    """
    if not address:
        return
    try:
        host, port = split_address(address)
    except SecurityError as error:
        raise InputError(f"a worker can't advertise {address!r:.80}: {error}") from None
    if port < _LEAST_PORT:
        raise InputError(f"a worker can't advertise port {port}: use a port from {_LEAST_PORT} on with --listen HOST:PORT")
    found = _ip(host)
    if found is None:
        return  # a name: whoever dials it expects a certificate of this cluster there
    if found.is_unspecified or found.is_multicast or found.is_link_local:
        raise InputError(f"a worker can't advertise {host}, which is no address of one machine: use --advertise with another one")
    caller = _ip(source.rpartition(":")[0].strip("[]"))
    if found.is_loopback and caller is not None and not caller.is_loopback:
        raise InputError(f"a worker on another machine can't advertise {host}: use --advertise with an address that others reach")


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
