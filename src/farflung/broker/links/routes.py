"""How the members of a run reach each other: addresses, and relays for pairs that can't dial each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from farflung.broker.links.reachability import Reachability
from farflung.cluster import Topology, pair_of
from farflung.cluster.relays import STANDING_BY
from farflung.messages.commands import Meet, Probe
from farflung.messages.conversions.relays import routes_of
from farflung.messages.schema import Message
from farflung.protocol.broker import BrokerMachine

__all__ = ["Routes"]


class Routes:
    """``lock`` guards ``machine``; ``send`` queues a message for a member and never waits."""

    def __init__(
        self,
        machine: BrokerMachine,
        lock: threading.Condition,
        reachability: Reachability,
        send: Callable[[str, Message], None],
    ) -> None:
        self._machine, self._lock, self._reachability, self._send = machine, lock, reachability, send

    def addresses(self, names: Iterable[str]) -> dict[str, str]:
        """Return the addresses of those of ``names`` that are members."""
        members = self._machine.members
        return {name: members[name].address for name in names if name in members}

    def to_peers(self, topology: Topology, name: str, peers: Mapping[str, str], known: Mapping[str, str] | None = None) -> Meet:
        """Return the addresses and relays by which ``name`` reaches ``peers`` (name -> address).

        A peer that ``name`` can't dial has an empty address; ``name`` waits until that peer connects. ``known``: the addresses of
        all members (None: this asks for them).
        """
        addresses: dict[str, str] = {}
        through: dict[str, list[tuple[str, str]]] = {}
        for peer, address in peers.items():
            relays = topology.via.get(pair_of(name, peer), ())
            addresses[peer] = self._reachability.address_for(name, peer, address)
            if relays:
                found = self.addresses(relays) if known is None else {one: known[one] for one in relays if one in known}
                through[peer] = list(found.items())
        return Meet(addresses=addresses, relays=routes_of(through))

    def probe(self, topology: Topology, name: str, peer: str, question: int) -> Probe:
        """Return the command by which ``name`` measures its link to ``peer``, which is notified: only peers get its answers."""
        with self._lock:
            members = self._machine.members
            route = self.to_peers(topology, name, {peer: members[peer].address})
            back = self.to_peers(topology, peer, {name: members[name].address})
        self._send(peer, back)
        return Probe(question=question, peer=peer, address=route.addresses[peer], relays=route.relays)

    def introduce(self, name: str, routes: Meet, topology: Topology) -> None:
        """Notify the members that ``name`` reaches through relays."""
        address = self.addresses([name]).get(name, "")
        for peer in routes.relays:
            self._send(peer, self.to_peers(topology, peer, {name: address}))

    def introduce_all(self, topology: Topology) -> None:
        """Notify members that reach each other through relays of these relays, before one dials."""
        with self._lock:  # a copy: with a thousand members the rest takes long
            known = {member.name: member.address for member in self._machine.members.values()}
        peers: dict[str, dict[str, str]] = {}
        for pair, relays in topology.via.items():
            if relays and known.keys() >= set(pair):
                first, second = pair
                peers.setdefault(first, {})[second] = known[second]
                peers.setdefault(second, {})[first] = known[first]
        for name, reached in peers.items():
            self._send(name, self.to_peers(topology, name, reached, known))

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
