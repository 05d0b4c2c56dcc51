"""A wide-area network in network namespaces: real programs, real bytes, slow links (Linux, root).

- ``session``: an emulation as a program sees it. ``programs``: programs in its nodes.
- ``changes``: the network and its changes as plain values. ``fabric``: the network itself, without I/O.
- ``router``: the process that forwards packets. ``packets``: IPv4 packets. ``nat``: what a node behind NAT lets in.
- ``kernel``: namespaces and TUN devices. ``nat_network``: machines behind NATs of the kernel.
- ``records``: emulations that run on this machine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farflung.emulation.session import Emulation, EmulationOptions, Node, PairCounters

__all__ = ["Emulation", "EmulationOptions", "Node", "PairCounters"]


def __getattr__(name: str) -> Any:
    # Late, so that the router's process, which is a module of this room, starts without numpy.
    if name in __all__:
        return getattr(importlib.import_module("farflung.emulation.session"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
