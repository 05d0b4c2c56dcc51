"""Who can dial whom: the broker's own dialing, answers of workers, and what is forgotten."""

from __future__ import annotations

import pytest

from farflung.broker.links.reachability import Reachability
from farflung.errors import ConnectionLost, SecurityError
from farflung.messages.commands import Reach
from farflung.messages.schema import Message
from farflung.protocol.events import Offer
from farflung.protocol.members import Member


def member(name: str) -> Member:
    return Member(name=name, address=f"{name}:1", offer=Offer(memory=1e9, speed=1e9))


class Cluster:
    """Workers that answer at once; ``open``: the workers that the broker can dial; ``ways``: who can dial whom."""

    def __init__(self, opened: str, ways: set[str]) -> None:
        self.opened, self.ways = opened, ways
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
        self.asked += [(name, peer) for peer in message.peers]
        self.reachability.answer(name, message.question, {peer: name + peer in self.ways for peer in message.peers})


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
