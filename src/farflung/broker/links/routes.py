"""How members of a run reach each other: addresses, and relays for those who can't dial each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from farflung.broker.links.reachability import Reaching
from farflung.broker.live_run import LiveRun
from farflung.broker.planning import Planned
from farflung.cluster import Topology, pair_of
from farflung.cluster.relays import STANDING_BY
from farflung.messages.relays import write_relays
from farflung.protocol.broker import BrokerMachine
from farflung.wire.frames import Frame

__all__ = ["Ways"]


class Ways:
    """``lock`` guards ``machine``; ``send`` puts a frame into a member's session."""

    def __init__(
        self, machine: BrokerMachine, lock: threading.Condition, reaching: Reaching, send: Callable[[str, Frame], None]
    ) -> None:
        self._machine, self._lock, self._reaching, self._send = machine, lock, reaching, send

    def addresses(self, names: Iterable[str]) -> dict[str, str]:
        """Where those of ``names`` who are here can be dialled (name -> address)."""
        members = self._machine.members
        return {name: members[name].address for name in names if name in members}

    def told(self, topology: Topology, name: str, peers: Mapping[str, str]) -> dict[str, Any]:
        """What ``name`` is told to reach ``peers`` (name -> address): who can't be dialled has no address, and is waited for."""
        addresses, through = {}, {}
        for peer, address in peers.items():
            relays = topology.via.get(pair_of(name, peer), ())
            addresses[peer] = address if self._reaching.can_dial(name, peer) else ""
            if relays:
                through[peer] = list(self.addresses(relays).items())
        return {"addresses": addresses, "relays": write_relays(through)}

    def introduce(self, name: str, ways: Mapping[str, Any], topology: Topology) -> None:
        """Tell those whom ``name`` reaches through relays."""
        address = self.addresses([name]).get(name, "")
        for peer in ways["relays"]:
            self._send(peer, Frame("meet", self.told(topology, peer, {name: address})))

    def introduce_all(self, topology: Topology) -> None:
        """Tell members that reach each other through relays about these, before one dials."""
        with self._lock:
            members = self._machine.members
            for name in topology.names:
                pairs = [pair for pair, relays in topology.via.items() if relays and name in pair and set(pair) <= set(members)]
                peers = {peer: members[peer].address for pair in pairs for peer in pair if peer != name}
                if peers:
                    self._send(name, Frame("meet", self.told(topology, name, peers)))

    def way(self, topology: Topology, name: str, peer: str) -> dict[str, Any]:
        """What ``name`` is told to reach ``peer``: ``address`` and ``relays``."""
        with self._lock:
            told = self.told(topology, name, {peer: self._machine.members[peer].address})
        return {"address": told["addresses"][peer], "relays": told["relays"]}

    def of_submitter(self, live: LiveRun, planned: Planned) -> dict[str, list[tuple[str, str]]]:
        """The same for a submitter that is the data's home: it is nobody's peer, and dials like this broker."""
        if live.job.data.kind != "caller":
            return {}
        closed = [name for name in planned.plan.devices if not self._reaching.dialable(name)]
        able = [
            (member.name, member.address)
            for member in self._machine.members.values()
            if member.offer.relay and self._reaching.dialable(member.name)
        ]
        return {
            name: [(relay, place) for relay, place in able if self._reaching.can_dial(name, relay)][:STANDING_BY]
            for name in closed
        }

    def relays_of_submitter(self, live: LiveRun, planned: Planned) -> list[tuple[str, str, str]]:
        """(relay, submitter, worker) for these."""
        through = self.of_submitter(live, planned)
        return [(relay, live.submitter, name) for name, relays in through.items() for relay, _ in relays]
