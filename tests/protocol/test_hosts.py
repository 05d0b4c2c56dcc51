"""Which workers share processors, and how many of them reach their full speed at once."""

from __future__ import annotations

from dataclasses import replace

from farflung.protocol.broker import BrokerMachine, Member
from farflung.protocol.events import HostMeasured, MemberJoined, Offer
from farflung.protocol.hosts import host_capacity, host_groups, host_names, is_same_device


def member(name: str, processors: str, host: str = "one", kind: str = "cpu") -> Member:
    offer = Offer(memory=1.0, speed=1.0, host=host, processors=tuple(processors), kind=kind)
    return Member(name=name, address="x", offer=offer)


def groups(*members: Member) -> list[list[str]]:
    return [[one.name for one in group] for group in host_groups(members)]


def test_workers_with_a_core_in_common_share_a_host() -> None:
    assert groups(member("a", "01"), member("b", "01"), member("c", "01")) == [["a", "b", "c"]]
    assert groups(member("a", "01"), member("b", "23")) == [], "containers that are pinned to different cores"
    assert groups(member("a", "01"), member("b", "34"), member("c", "13")) == [["a", "b", "c"]], "one connects two"
    assert groups(member("a", "01"), member("b", "01", host="two")) == []
    assert groups(member("a", ""), member("b", "")) == [], "nothing is known of them"
    assert groups(member("a", "01", host=""), member("b", "01", host="")) == []
    assert groups(member("a", "0"), member("b", "0", kind="cuda"), member("c", "0", kind="cuda")) == [["b", "c"]]


def test_workers_on_the_same_processors_are_equally_fast() -> None:
    one = member("a", "01").offer
    assert is_same_device(one, replace(member("b", "01").offer, speed=2.0))
    others = [member("b", "02"), member("b", "01", host="two"), member("b", "01", kind="cuda")]
    assert not any(is_same_device(one, other.offer) for other in others)
    assert not is_same_device(one, replace(one, versions={"engine": "numpy 2"}))
    assert not is_same_device(member("a", "01", host="").offer, member("b", "01", host="").offer), "nothing is known of them"


def test_a_name_for_the_host() -> None:
    found = host_names([member("b", "01"), member("a", "01"), member("c", "2")])
    assert {name: host for name, (host, _) in found.items()} == {"a": "host of a", "b": "host of a"}


def test_capacity_is_measured_or_counted() -> None:
    group = [member("a", "01"), member("b", "01"), member("c", "01")]
    assert host_capacity(group, threads=1) == 2.0
    assert host_capacity(group, threads=2) == 1.0
    assert host_capacity(group, threads=4) == 1.0, "one alone reaches its own full speed"
    for one in group[:2]:
        one.capacity, one.measured_with = 1.4, 2
    assert host_capacity(group[:2], threads=1) == 1.4
    assert host_capacity(group, threads=1) == 2.0, "a third one was not measured with them"
    gpus = [member("a", "0", kind="cuda"), member("b", "0", kind="cuda")]
    assert host_capacity(gpus, threads=1) == 1.0


def test_members_remember_what_they_reached_together() -> None:
    machine = BrokerMachine()
    for name in "ab":
        machine.handle(MemberJoined(name=name, address="x", offer=member(name, "01").offer))
    assert machine.handle(HostMeasured(names=("a", "b", "gone"), capacity=1.5)) == []
    assert [(one.capacity, one.measured_with) for one in machine.members.values()] == [(1.5, 3), (1.5, 3)]
