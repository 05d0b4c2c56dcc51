"""Types of NAT, and how two machines behind them connect. Pure; the table is in docs/nat.md.

A NAT *maps* each inner address and port to an outer one, and *filters* what arrives at the outer one (RFC 4787, sections 4 and
5). Two machines can punch holes into their NATs if each can send to the other's outer address and port before anything arrives.
The broker can report that port only if the NAT uses it for every destination.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from enum import StrEnum

__all__ = ["NatType", "Way", "classify", "is_private", "way_between"]

#: Addresses between a carrier's NAT and its customers (RFC 6598).
_CARRIER = ipaddress.IPv4Network("100.64.0.0/10")
#: Addresses of local networks (RFC 1918).
_LOCAL = tuple(map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))


class NatType(StrEnum):
    """What stands between a machine and the internet."""

    #: Nothing: the machine accepts connections from anybody.
    NONE = "none"
    #: One outer port for all destinations, open to anybody once the machine has used it.
    FULL_CONE = "full cone"
    #: One outer port for all destinations, open to machines to which this one has sent.
    RESTRICTED = "restricted"
    #: One outer port for all destinations, open to addresses and ports to which this machine has sent.
    PORT_RESTRICTED = "port-restricted"
    #: Another outer port for each destination, open to that destination.
    SYMMETRIC = "symmetric"
    #: A home router behind the carrier's NAT. Both keep one outer port for all destinations (RFC 6888), and filter by port.
    CARRIER_GRADE = "carrier-grade"

    @property
    def plain(self) -> str:
        """What it means for links, in a few words."""
        return _PLAIN[self]


_PLAIN = {
    NatType.NONE: "no NAT: other machines can connect to this one",
    NatType.FULL_CONE: "full-cone NAT: connects directly to every machine",
    NatType.RESTRICTED: "open NAT: connects directly to every machine",
    NatType.PORT_RESTRICTED: "port-restricted NAT: connects directly, except to machines behind a symmetric NAT",
    NatType.SYMMETRIC: "symmetric NAT: connects directly to machines without NAT or behind an open one, else through a relay",
    NatType.CARRIER_GRADE: "carrier-grade NAT: connects directly, except to machines behind a symmetric NAT",
}


class Way(StrEnum):
    """How two machines connect."""

    #: One end dials the other one's outer address.
    DIRECT = "direct"
    #: Both ends dial at the same time.
    PUNCHED = "punched"
    RELAY = "relay"


#: One outer port for all destinations, but closed to a sender whose port is unknown.
_BY_PORT = {NatType.PORT_RESTRICTED, NatType.CARRIER_GRADE}


def way_between(one: NatType, other: NatType) -> Way:
    """Return how machines behind ``one`` and ``other`` connect, if each is behind a NAT of its own."""
    types = {one, other}
    if types & {NatType.NONE, NatType.FULL_CONE}:
        return Way.DIRECT
    if NatType.SYMMETRIC in types and (types & _BY_PORT or types == {NatType.SYMMETRIC}):
        return Way.RELAY  # the port to which a hole must lead is not known before it is used
    return Way.PUNCHED


def classify(local: str, seen: Sequence[str], *, called_back: bool) -> NatType:
    """Return the NAT of a machine from what two observers saw of one of its ports.

    ``local``, ``seen``: ``host:port``. ``called_back``: whether a connection arrived from a port to which the machine had not
    sent. It came from an address to which the machine had sent, so a full cone counts as restricted, which connects alike.
    """
    if len(set(seen)) > 1:
        return NatType.SYMMETRIC
    if called_back:
        return NatType.NONE if local in seen else NatType.RESTRICTED
    host = local.rpartition(":")[0].strip("[]")
    carrier = not local.startswith("[") and ipaddress.ip_address(host) in _CARRIER
    return NatType.CARRIER_GRADE if carrier else NatType.PORT_RESTRICTED


def is_private(address: ipaddress.IPv4Address) -> bool:
    """Return whether the internet has no route to ``address``."""
    special = address.is_loopback or address.is_link_local or address.is_multicast or address.is_reserved
    return special or address.is_unspecified or any(address in network for network in (*_LOCAL, _CARRIER))
