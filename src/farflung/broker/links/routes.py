"""How the members of a run reach each other: addresses, and relays for pairs that can't dial each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from farflung.broker.links.reachability import Reachability
from farflung.cluster import Topology, pair_of
from farflung.cluster.relays import STANDING_BY
from farflung.messages.relays import write_relays
from farflung.protocol.broker import BrokerMachine
from farflung.wire.frames import Frame

__all__ = ["Routes"]


class Routes:
    """``lock`` guards ``machine``; ``send`` queues a frame for a member and never waits."""

    def __init__(
        self,
        machine: BrokerMachine,
        lock: threading.Condition,
        reachability: Reachability,
        send: Callable[[str, Frame], None],
    ) -> None:
        self._machine, self._lock, self._reachability, self._send = machine, lock, reachability, send

    def addresses(self, names: Iterable[str]) -> dict[str, str]:
        """Return the addresses of those of ``names`` that are members."""
        members = self._machine.members
        return {name: members[name].address for name in names if name in members}

    def to_peers(self, topology: Topology, name: str, peers: Mapping[str, str]) -> dict[str, Any]:
        """Return ``addresses`` and ``relays`` by which ``name`` reaches ``peers`` (name -> address).

        A peer that ``name`` can't dial has an empty address; ``name`` waits until that peer connects.
        """
        addresses, through = {}, {}
        for peer, address in peers.items():
            relays = topology.via.get(pair_of(name, peer), ())
            addresses[peer] = address if self._reachability.can_dial(name, peer) else ""
            if relays:
                through[peer] = list(self.addresses(relays).items())
        return {"addresses": addresses, "relays": write_relays(through)}

    def to_peer(self, topology: Topology, name: str, peer: str) -> dict[str, Any]:
        """Return ``address`` and ``relays`` by which ``name`` reaches ``peer``."""
        with self._lock:
            route = self.to_peers(topology, name, {peer: self._machine.members[peer].address})
        return {"address": route["addresses"][peer], "relays": route["relays"]}

    def introduce(self, name: str, routes: Mapping[str, Any], topology: Topology) -> None:
        """Notify the members that ``name`` reaches through relays."""
        address = self.addresses([name]).get(name, "")
        for peer in routes["relays"]:
            self._send(peer, Frame("meet", self.to_peers(topology, peer, {name: address})))

    def introduce_all(self, topology: Topology) -> None:
        """Notify members that reach each other through relays of these relays, before one dials."""
        with self._lock:
            members = self._machine.members
            for name in topology.names:
                pairs = [pair for pair, relays in topology.via.items() if relays and name in pair and set(pair) <= set(members)]
                peers = {peer: members[peer].address for pair in pairs for peer in pair if peer != name}
                if peers:
                    self._send(name, Frame("meet", self.to_peers(topology, name, peers)))

    def to_submitter(self, devices: Iterable[str]) -> dict[str, list[tuple[str, str]]]:
        """Return relays (name and address) between each of ``devices`` and a submitter that feeds the data.

        The submitter is nobody's peer. It can dial the workers that this broker can dial, so those need no relay.
        """
        closed = [name for name in devices if not self._reachability.dialable(name)]
        able = [
            (member.name, member.address)
            for member in self._machine.members.values()
            if member.offer.relay and self._reachability.dialable(member.name)
        ]
        return {
            name: [(relay, address) for relay, address in able if self._reachability.can_dial(name, relay)][:STANDING_BY]
            for name in closed
        }
