"""Who can dial whom: the broker's own dialing, answers of workers, and what is forgotten."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from farflung.broker.links.probes import LinkProbes, sampled_pairs
from farflung.broker.links.reachability import Reachability
from farflung.broker.links.table import LinkTable
from farflung.broker.requests.link_profile import LinkProfile
from farflung.cluster import pair_of
from farflung.errors import ConnectionLost, SecurityError
from farflung.messages.calls import Profile
from farflung.messages.commands import Reach
from farflung.messages.schema import Message
from farflung.nat_types import NatType
from farflung.protocol.events import Offer
from farflung.protocol.members import Member
from farflung.security import Caller
from farflung.transports.base import PUNCHED


def member(name: str) -> Member:
    return Member(name=name, address=f"{name}:1", offer=Offer(memory=1e9, speed=1e9))


class Cluster:
    """Workers that answer at once; ``opened``: the workers that the broker can dial; ``ways``: who can dial whom; ``holes``: the
    pairs that hole punching connects."""

    def __init__(self, opened: str, ways: set[str], holes: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.opened, self.ways, self.holes = opened, ways, holes
        self.punched: list[tuple[str, str]] = []
        #: Who can dial whom at second addresses.
        self.second: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.reachability = Reachability(self._send, self._dial, patience=20.0)

    def join(self, names: str) -> list[Member]:
        members = [member(name) for name in names]
        for one in members:
            self.reachability.joined(one.name, one.address)
        return members

    def _dial(self, name: str, address: str) -> None:
        if name not in self.opened:
            raise ConnectionLost(f"{address} does not answer")

    def _send(self, name: str, message: Message) -> None:
        assert isinstance(message, Reach)
        punched = [peer for peer, address in message.peers.items() if address == PUNCHED]
        self.punched += [(name, peer) for peer in punched]
        self.asked += [(name, peer) for peer in message.peers if peer not in punched]
        found = {
            peer: name + peer
            in (self.holes if address == PUNCHED else self.second if "::" in address or address.startswith("10.") else self.ways)
            for peer, address in message.peers.items()
        }
        self.reachability.answer(name, message.question, found)


def test_nobody_is_asked_where_the_broker_can_dial_all() -> None:
    cluster = Cluster("ab", set())
    assert cluster.reachability.apart(cluster.join("ab")) == frozenset()
    assert cluster.asked == []
    assert cluster.reachability.can_dial("a", "b")
    cluster.reachability.close()


def test_a_closed_worker_dials_the_others_and_what_is_left_is_apart() -> None:
    cluster = Cluster("a", {"ba"})
    members = cluster.join("abc")
    assert cluster.reachability.apart(members) == {("a", "c"), ("b", "c")}
    assert cluster.reachability.can_dial("b", "a")
    assert not cluster.reachability.can_dial("a", "b")
    assert not cluster.reachability.can_dial("c", "a"), "c has tried"
    assert cluster.reachability.nats(members) == {"a": "", "b": "nat of b", "c": "nat of c"}
    before = list(cluster.asked)
    assert cluster.reachability.apart(members) == {("a", "c"), ("b", "c")}
    assert cluster.asked == before, "results are stored"
    cluster.reachability.close()


@pytest.mark.parametrize("comes_back", [True, False])
def test_what_is_known_of_a_worker_ends_with_its_session(comes_back: bool) -> None:
    """Names come and go for months: a broker must not remember all of them."""
    cluster = Cluster("a", {"ba"})
    members = cluster.join("ab")
    assert cluster.reachability.apart(members) == frozenset()
    cluster.reachability.lost("b")
    assert not any("b" in direction for direction in cluster.reachability.known)
    if comes_back:
        cluster.ways.clear()
        cluster.join("b")
        assert cluster.reachability.apart(members) == {("a", "b")}
    cluster.reachability.close()


def test_silent_members_are_waited_for_together() -> None:
    reachability = Reachability(lambda name, message: None, None, patience=0.5)
    members = [replace(member(f"m{number}"), address="") for number in range(40)]
    for one in members:
        reachability.joined(one.name, one.address)
    begin = time.monotonic()
    reachability.ask([(one.name, "z") for one in members], {"z": "z:1"})
    assert time.monotonic() - begin < 18.0, "forty times half a second"
    reachability.close()


def test_pairs_of_which_neither_can_dial_the_other_punch_holes() -> None:
    cluster = Cluster("a", {"ba", "ca", "da"}, holes={"bc"})
    members = cluster.join("abcd")
    assert cluster.reachability.apart(members) == {("b", "d"), ("c", "d")}
    assert cluster.punched == [("b", "c"), ("b", "d"), ("c", "d")]
    assert cluster.reachability.holes.among("abcd") == [("b", "c")]
    addresses = {pair: cluster.reachability.address_for(*pair, f"{pair[1]}:1") for pair in ("ba", "ab", "bc", "cb", "bd")}
    assert addresses == {"ba": "a:1", "ab": "", "bc": PUNCHED, "cb": "", "bd": ""}
    assert cluster.reachability.nats(members) == {"a": "", "b": "nat of b", "c": "nat of b", "d": "nat of d"}
    assert cluster.reachability.apart(members) == {("b", "d"), ("c", "d")}
    assert len(cluster.punched) == 3, "results are stored"
    cluster.reachability.close()


def test_second_addresses_are_tried_before_holes_are_punched() -> None:
    cluster = Cluster("", set(), holes={"ab", "ac", "bc"})
    members = [member(name) for name in "abc"]
    for one in members:
        cluster.reachability.joined(one.name, one.address, "" if one.name == "c" else f"[2600::{one.name}]:1")
    cluster.second = {"ba"}
    assert cluster.reachability.apart(members) == frozenset()
    assert cluster.punched == [("a", "c"), ("b", "c")]
    addresses = {pair: cluster.reachability.address_for(*pair, f"{pair[1]}:1") for pair in ("ab", "ba", "ac", "ca")}
    assert addresses == {"ab": "", "ba": "[2600::a]:1", "ac": PUNCHED, "ca": ""}
    before = list(cluster.asked)
    assert cluster.reachability.apart(members) == frozenset()
    assert cluster.asked == before, "results are stored"
    cluster.reachability.lost("a")
    assert not any("a" in direction for direction in cluster.reachability.known6)
    cluster.reachability.close()


def test_members_behind_one_router_use_local_addresses_where_it_does_not_lead_back() -> None:
    cluster = Cluster("abcd", {"cd", "dc"})
    members = [replace(member(name), address=f"9.9.9.{9 if name in 'ab' else 8}:{ord(name)}") for name in "abcd"]
    for one in members:
        cluster.reachability.joined(one.name, one.address, f"10.0.0.{ord(one.name)}:7100")
    cluster.second = {"ab"}
    assert cluster.reachability.apart(members) == frozenset()
    assert {frozenset(pair) for pair in cluster.asked} == {frozenset("ab"), frozenset("cd")}, "others share no router"
    assert cluster.reachability.address_for("a", "b", "9.9.9.9:98") == "10.0.0.98:7100"
    assert cluster.reachability.address_for("b", "a", "9.9.9.9:97") == "", "it waits for a"
    assert cluster.reachability.address_for("c", "d", "9.9.9.8:100") == "9.9.9.8:100"
    assert cluster.reachability.address_for("a", "c", "9.9.9.8:99") == "9.9.9.8:99"
    cluster.reachability.close()


def test_nats_that_rule_it_out_and_workers_that_do_not_listen_punch_no_holes() -> None:
    cluster = Cluster("", set(), holes={"ab", "ac"})
    members = cluster.join("abc")
    for name, nat in zip("abc", (NatType.SYMMETRIC, NatType.PORT_RESTRICTED, NatType.RESTRICTED), strict=True):
        cluster.reachability.holes.described(name, nat)
    cluster.reachability.joined("d", "")
    assert cluster.reachability.apart([*members, replace(member("d"), address="")]) == {
        ("a", "b"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")
    }  # fmt: skip
    assert cluster.punched == [("a", "c"), ("b", "c")]
    assert cluster.reachability.nat_of("a") is NatType.SYMMETRIC
    cluster.reachability.close()


def test_a_pair_that_fails_again_and_again_needs_a_relay() -> None:
    cluster = Cluster("", set(), holes={"ab"})
    members = cluster.join("ab")
    assert cluster.reachability.apart(members) == frozenset()
    for reached in (False, True, False):
        cluster.reachability.holes.ended("a", "b", reached=reached)
        assert cluster.reachability.apart(members) == frozenset()
    cluster.reachability.holes.ended("b", "a", reached=False)  # the other end wants no connections
    assert cluster.reachability.apart(members) == frozenset()
    cluster.reachability.holes.ended("a", "b", reached=False)
    assert cluster.reachability.apart(members) == {("a", "b")}
    cluster.reachability.holes.ended("a", "b", reached=True)
    assert cluster.reachability.apart(members) == frozenset(), "it needs none once it connects again"
    assert cluster.reachability.holes.allows("a", "b")
    assert not cluster.reachability.holes.allows("b", "a")
    cluster.reachability.lost("b")
    assert not cluster.reachability.holes.allows("a", "b")
    cluster.reachability.close()


def test_an_answer_to_another_workers_question_counts_nothing() -> None:
    asked: list[Reach] = []

    def send(name: str, message: Message) -> None:
        assert isinstance(message, Reach)
        asked.append(message)
        reachability.answer("c", message.question, {"a": True})
        reachability.answer(name, message.question, {})

    reachability = Reachability(send, None)
    reachability.ask([("b", "a")], {"a": "a:1"})
    assert len(asked) == 1
    assert reachability.known == {}


def test_a_closed_port_and_an_open_port_of_another_service_are_the_same_to_the_advertiser() -> None:
    """Else a worker could probe ports through the broker, by the addresses that it advertises."""
    sent: list[tuple[str, Message]] = []

    def dial(name: str, address: str) -> None:
        raise ConnectionLost("refused") if address == "closed" else SecurityError("no certificate of this cluster")

    here = Reachability(lambda name, message: sent.append((name, message)), dial)
    for address in ("closed", "open"):
        here.joined("a", address)
        assert not here.dialable("a", 10.0)
    here.close()
    assert sent == [], "the advertiser gets no answer"


def test_of_many_members_behind_nat_a_measurement_lets_only_the_measured_pairs_dial() -> None:
    cluster = Cluster("", set())
    members = [
        replace(member(f"m{number:02}"), offer=Offer(memory=1e9, speed=1e9, region=f"r{number % 2}")) for number in range(60)
    ]
    for one in members:
        cluster.reachability.joined(one.name, one.address)
    runs: Any = SimpleNamespace(changed=threading.Lock(), machine=SimpleNamespace(members={one.name: one for one in members}))
    table, silent = LinkTable(), Mock()
    probes = LinkProbes(silent, table)
    probes.run = lambda *arguments: iter(())  # type: ignore[method-assign]
    network: Any = SimpleNamespace(table=table, reachability=cluster.reachability, probes=probes, relays=Mock(), routes=Mock())
    call: Any = SimpleNamespace(caller=Caller(name="c", role="client"))
    with pytest.raises(ConnectionLost, match="no worker reaches another one"):
        list(LinkProfile(runs=runs, network=network).profile(call, Profile()))
    pairs = sampled_pairs({one.name: one.offer.region for one in members})
    assert pairs is not None
    assert {pair_of(*way) for way in cluster.asked} == pairs
    assert len(pairs) < 60 * 3, "1,770 pairs are possible"
    assert set(map(pair_of, *zip(*cluster.punched, strict=True))) <= pairs
    cluster.reachability.close()
