"""What the broker knows and does about links, as one value."""

from __future__ import annotations

from dataclasses import dataclass

from farflung.broker.links.hole_punching import HolePunching
from farflung.broker.links.probes import LinkProbes
from farflung.broker.links.reachability import Reachability
from farflung.broker.links.relays import Relays
from farflung.broker.links.routes import Routes
from farflung.broker.links.table import LinkTable

__all__ = ["Network"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The parts of this folder. Each is thread-safe by itself."""

    table: LinkTable
    reachability: Reachability
    punching: HolePunching
    probes: LinkProbes
    relays: Relays
    routes: Routes

    def lost(self, name: str) -> None:
        """The member ``name`` is lost: nobody waits for its answers, and it relays nothing."""
        self.probes.lost(name)
        self.reachability.lost(name)
        self.punching.lost(name)
        self.relays.lost(name)
