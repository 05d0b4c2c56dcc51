"""The broker's part in hole punching: who is told to dial where, and what no member can bring about."""

from __future__ import annotations

from typing import cast

import pytest

from farflung.broker.links import hole_punching
from farflung.broker.links.hole_punching import HolePunching
from farflung.messages.commands import Observe, Punch
from farflung.messages.schema import Message

NEAR, FAR = "203.0.113.10:4001", "203.0.113.11:4002"


class Broker:
    """``allowed``: the pairs that the broker has told to punch."""

    def __init__(self, *allowed: str) -> None:
        self.sent: list[tuple[str, Message]] = []
        self.time = 0.0
        self.one_host = False
        self.punching = HolePunching(
            lambda name, message: self.sent.append((name, message)),
            lambda one, other: one + other in allowed,
            lambda one, other: self.one_host,
            lambda: self.time,
        )

    def observes(self) -> dict[str, Observe]:
        """The newest order of each member; all messages are forgotten."""
        found = {name: message for name, message in self.sent if isinstance(message, Observe)}
        self.sent.clear()
        return found


def test_both_ends_are_observed_and_dial_what_was_seen_of_the_other() -> None:
    broker = Broker("ab")
    broker.punching.request("a", "b")
    orders = broker.observes()
    assert {name: (order.peer, order.dials) for name, order in orders.items()} == {"a": ("b", True), "b": ("a", False)}
    assert orders["a"].token != orders["b"].token
    broker.punching.seen(orders["b"].token, FAR)
    assert broker.sent == []
    broker.punching.seen(orders["a"].token, NEAR)
    number = orders["a"].number
    assert sorted(broker.sent, key=str) == [
        ("a", Punch(number=number, address=FAR)),
        ("b", Punch(number=number, address=NEAR)),
    ]
    broker.sent.clear()
    broker.punching.seen(orders["a"].token, NEAR)
    assert broker.sent == [], "a token counts once"


def test_a_member_gets_no_connection_that_the_broker_did_not_offer() -> None:
    broker = Broker("ab")
    broker.punching.request("b", "a")
    broker.punching.request("a", "c")
    broker.punching.seen("00" * 16, NEAR)
    assert broker.sent == []


@pytest.mark.parametrize(
    "place",
    [
        "203.0.113.11:22",  # a port of the system
        "224.0.0.1:5000",  # many machines
        "169.254.1.1:5000",  # link-local
        "0.0.0.0:5000",
    ],
)
def test_nobody_is_sent_to_an_address_that_no_worker_may_advertise(place: str) -> None:
    broker = Broker("ab")
    broker.punching.request("a", "b")
    orders = broker.observes()
    broker.punching.seen(orders["a"].token, NEAR)
    broker.punching.seen(orders["b"].token, place)
    assert broker.sent == []


@pytest.mark.parametrize(
    ("near", "far"),
    [
        ("8.8.8.8:4001", "192.168.1.20:4002"),
        ("8.8.8.8:4001", "100.64.0.7:4002"),  # a carrier's network
        ("192.168.1.20:4001", "100.64.0.7:4002"),
        ("[2600::1]:4001", "8.8.8.8:4002"),  # no socket dials from the one to the other
    ],
)
def test_nobody_is_sent_to_an_address_of_another_network(near: str, far: str) -> None:
    """The other end would dial a machine of its own network that has this address."""
    broker = Broker("ab")
    broker.punching.request("a", "b")
    orders = broker.observes()
    broker.punching.seen(orders["a"].token, near)
    broker.punching.seen(orders["b"].token, far)
    assert broker.sent == []


@pytest.mark.parametrize("one_host", [False, True])
def test_only_members_of_one_machine_are_sent_to_its_loopback(one_host: bool) -> None:
    """Members behind tunnels seem to be on the broker's machine, and each would dial ports of its own."""
    broker = Broker("ab")
    broker.one_host = one_host
    broker.punching.request("a", "b")
    orders = broker.observes()
    broker.punching.seen(orders["a"].token, "127.0.0.1:4001")
    broker.punching.seen(orders["b"].token, "127.0.0.1:4002")
    assert len(broker.sent) == (2 if one_host else 0)


def test_the_newest_attempt_of_a_pair_replaces_the_others() -> None:
    broker = Broker("ab")
    broker.punching.request("a", "b")
    old = broker.observes()
    broker.punching.request("a", "b")
    new = broker.observes()
    for name, place in (("a", NEAR), ("b", FAR)):
        broker.punching.seen(old[name].token, place)
    assert broker.sent == []
    for name, place in (("a", NEAR), ("b", FAR)):
        broker.punching.seen(new[name].token, place)
    assert {name for name, _ in broker.sent} == {"a", "b"}


def test_a_member_with_many_attempts_keeps_nobody_else_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hole_punching, "_MOST_OF_MEMBER", 1)
    broker = Broker("ab", "ac", "db", "ef")
    broker.punching.request("a", "b")
    assert sorted(broker.observes()) == ["a", "b"]
    for pair in ("ac", "db"):
        broker.punching.request(*pair)
    assert broker.sent == []
    broker.punching.request("e", "f")
    assert sorted(broker.observes()) == ["e", "f"]


def test_attempts_end_with_time_with_a_member_and_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker("ab", "cd", "ef")
    broker.punching.request("a", "b")
    late = broker.observes()
    broker.time = 60.0
    for token in (late["a"].token, late["b"].token):
        broker.punching.seen(token, NEAR)
    assert broker.sent == []
    broker.punching.request("a", "b")
    orders = broker.observes()
    broker.punching.lost("b")
    broker.punching.seen(orders["a"].token, NEAR)
    broker.punching.seen(orders["b"].token, FAR)
    assert broker.sent == []
    monkeypatch.setattr(hole_punching, "_MOST_AT_ONCE", 1)
    broker.punching.request("a", "b")
    broker.punching.request("c", "d")
    assert sorted(broker.observes()) == ["a", "b"], "one attempt at once"
    monkeypatch.undo()
    for _ in range(200):
        broker.punching.request("e", "f")
    assert len(broker.sent) == 2 * 60, "attempts of a pair in a minute"
    assert all(cast("Observe", message).peer in "ef" for _, message in broker.sent)
