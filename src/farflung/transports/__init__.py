"""Frames between workers (``tcp`` between machines, ``memory`` inside one process), and remote calls to the broker (``rpc``).

- ``base``: what every transport does (``Endpoint``); ``config``: its settings.
- ``memory``: frames between threads of one process.
- ``tcp``: frames between machines.
- ``shaping``: a transport slowed down to the latency and bandwidth of an emulated link.
- ``meter``: counters of traffic by peer.
- ``rpc``: the control plane, remote calls over gRPC.
- ``punching``: connections through NAT. ``upnp``, ``pcp``: ports that a router forwards. ``addresses``: addresses as text.
- ``connection_gate``: the first bytes of each connection. ``descriptors``: how many connections a process may have.
- ``arenas``: how many heaps the threads of a broker share.
- ``http_patience``: a deadline for requests to the HTTP servers.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from farflung.registry import Registry
from farflung.transports.base import Arrival, Endpoint, FrameHandler, LinkStatistics, LossHandler, Urgency
from farflung.transports.config import Insecure, Pinned, TransportConfig

__all__ = [
    "Arrival",
    "Endpoint",
    "FrameHandler",
    "Insecure",
    "LinkStatistics",
    "LossHandler",
    "Pinned",
    "TransportConfig",
    "Urgency",
    "get_transport",
]

# gRPC's C core writes handshake failures and goodbyes to the terminal; the errors of this room carry their causes.
# It reads the variable when it is first imported, and who wants its log sets it.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_members: Registry[Callable[..., Endpoint]] = Registry("transport", "transports")


def _memory() -> Callable[..., Endpoint]:
    from farflung.transports.memory import MemoryEndpoint

    return MemoryEndpoint


def _tcp() -> Callable[..., Endpoint]:
    from farflung.transports.tcp.endpoint import TcpEndpoint

    return TcpEndpoint


_members.add("memory", _memory)
_members.add("tcp", _tcp)


def get_transport(name: str) -> Callable[..., Endpoint]:
    """The class of endpoints called ``name``; its module is imported on first use.

    Raises:
        InputError: nothing has that name; the text lists the known ones.
    """
    return _members.get(name)
