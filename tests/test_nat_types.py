"""How pairs of NAT types connect, and how a type follows from what observers see."""

from __future__ import annotations

import re
from ipaddress import IPv4Address
from itertools import product
from pathlib import Path

import pytest

from farflung.nat_types import NatType, Way, classify, is_private, way_between

PAGE = Path(__file__).parents[1] / "docs" / "nat.md"
NONE, FULL, RESTRICTED, PORT, SYMMETRIC, CARRIER = NatType


def theory(one: NatType, other: NatType) -> Way:
    """The same from first principles: who maps how, who lets in whom."""
    by_everybody = {NONE, FULL}
    one_port = {NONE, FULL, RESTRICTED, PORT, CARRIER}
    if one in by_everybody or other in by_everybody:
        return Way.DIRECT

    def lets_in(inner: NatType, outer: NatType) -> bool:
        """A packet of ``outer`` passes after ``inner`` has sent to the port that the broker saw of ``outer``."""
        return inner is RESTRICTED or outer in one_port

    def is_found(inner: NatType) -> bool:
        """Its outer port toward the peer is the one that the broker saw."""
        return inner in one_port

    forth, back = lets_in(one, other) and is_found(one), lets_in(other, one) and is_found(other)
    return Way.PUNCHED if forth or back else Way.RELAY


@pytest.mark.parametrize(("one", "other"), list(product(NatType, NatType)))
def test_the_table_is_the_theory(one: NatType, other: NatType) -> None:
    assert way_between(one, other) is way_between(other, one) is theory(one, other)


def test_the_page_has_the_table() -> None:
    types = [nat for nat in NatType if nat is not NONE]
    rows = {line.split("|")[1].strip(): line for line in PAGE.read_text().splitlines() if line.startswith("|")}
    for one in types:
        cells = [cell.strip() for cell in rows[f"**{one.value}**"].strip("|").split("|")[1:]]
        assert cells == [way_between(one, other).value for other in types], one
    assert re.findall(r"[\w-]+(?: \w+)?", rows["NAT"].partition("NAT |")[2]) == [nat.value for nat in types]


@pytest.mark.parametrize(
    ("local", "seen", "called_back", "nat"),
    [
        ("203.0.113.9:5", ("203.0.113.9:5", "203.0.113.9:5"), True, NONE),
        ("203.0.113.9:5", ("203.0.113.9:5", "203.0.113.9:5"), False, PORT),  # a firewall
        ("10.0.0.2:5", ("203.0.113.9:5", "203.0.113.9:5"), True, RESTRICTED),
        ("10.0.0.2:5", ("203.0.113.9:77", "203.0.113.9:77"), False, PORT),
        ("10.0.0.2:5", ("203.0.113.9:77", "203.0.113.9:78"), False, SYMMETRIC),
        ("100.64.3.2:5", ("203.0.113.9:77", "203.0.113.9:77"), False, CARRIER),
        ("[2001:db8::2]:5", ("[2001:db8::2]:5", "[2001:db8::2]:5"), False, PORT),
    ],
)
def test_a_type_follows_from_observations(local: str, seen: tuple[str, str], called_back: bool, nat: NatType) -> None:
    assert classify(local, seen, called_back=called_back) is nat


def test_each_type_has_plain_words() -> None:
    texts = {nat.plain for nat in NatType}
    assert len(texts) == len(NatType)
    assert all("NAT" in text for text in texts)


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("9.9.9.9", False),
        ("203.0.113.10", False),
        ("172.15.255.255", False),
        ("172.16.0.1", True),
        ("10.0.0.1", True),
        ("192.168.1.1", True),
        ("100.127.0.1", True),
        ("169.254.1.1", True),
        ("127.0.0.1", True),
        ("0.0.0.0", True),
        ("224.0.0.1", True),
        ("255.255.255.255", True),
    ],
)
def test_addresses_to_which_the_internet_has_no_route(address: str, private: bool) -> None:
    assert is_private(IPv4Address(address)) is private
