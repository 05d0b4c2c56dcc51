"""How the members of a run reach each other: addresses where they can dial, relays where nobody can."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from farflung.broker.links.reachability import Reachability
from farflung.broker.links.routes import Routes
from farflung.broker.run_table import RunTable
from farflung.cluster import Topology
from farflung.messages.commands import Meet
from farflung.messages.schema import Message
from farflung.protocol.events import MemberJoined, Offer


class Cluster:
    """``a`` can be dialed; ``b`` and ``c`` cannot, and ``b`` reaches ``c`` through ``a``."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Message]] = []
        self.free: list[bool] = []
        self.runs = runs = RunTable()
        send = self.send
        reachability = Reachability(send, None)
        for name in "abc":
            address = "a:1" if name == "a" else ""
            reachability.joined(name, address)
            runs.machine.handle(MemberJoined(name=name, address=address, offer=Offer(memory=1e9, speed=1e9, relay=name == "a")))
        self.routes = Routes(runs.machine, runs.changed, reachability, send)
        plain = Topology.preset("homogeneous-3")
        named = plain.rename(dict(zip(plain.names, "abc", strict=True)))
        self.topology = replace(named, via={("b", "c"): ("a",)})

    def send(self, name: str, message: Message) -> None:
        """Store the message, and whether another thread gets the broker's lock meanwhile."""
        self.sent.append((name, message))
        thread = threading.Thread(target=self._try)
        thread.start()
        thread.join()

    def _try(self) -> None:
        found = self.runs.changed.acquire(blocking=False)
        if found:
            self.runs.changed.release()
        self.free.append(found)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_addresses_are_those_of_present_members(cluster: Cluster) -> None:
    assert cluster.routes.addresses(["a", "b", "gone"]) == {"a": "a:1", "b": ""}


def test_a_peer_that_cannot_be_dialed_has_an_empty_address_and_its_relays(cluster: Cluster) -> None:
    route = cluster.routes.to_peers(cluster.topology, "b", {"a": "a:1", "c": "c:1"})
    assert route.addresses == {"a": "a:1", "c": ""}
    assert route.relays == {"c": (("a", "a:1"),)}


def test_a_probe_goes_where_training_would(cluster: Cluster) -> None:
    probe = cluster.routes.probe(cluster.topology, "b", "c", 1)
    assert (probe.peer, probe.address, probe.relays) == ("c", "", {"c": (("a", "a:1"),)})


def test_both_ends_of_a_relayed_pair_learn_of_the_relay(cluster: Cluster) -> None:
    cluster.routes.introduce_all(cluster.topology)
    told = {name: message for name, message in cluster.sent if isinstance(message, Meet)}
    assert told.keys() == {"b", "c"}
    assert told["b"].relays == {"c": (("a", "a:1"),)}
    assert told["c"].relays == {"b": (("a", "a:1"),)}
    assert cluster.free == [True, True], "with a thousand members this takes long"


def test_a_submitter_needs_relays_to_workers_that_the_broker_cannot_dial(cluster: Cluster) -> None:
    assert cluster.routes.to_submitter(["a", "b"]) == {"b": [("a", "a:1")]}
