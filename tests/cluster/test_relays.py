"""Pairs of devices that can't dial each other get the rate and latency of the best relay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.cluster import Topology, apart_by_nat, pair_of, with_relays
from farflung.units import BytesPerSecond, Seconds

TEXT = """
[default]
latency = "10 ms"
bandwidth = "80 Mbit/s"
{devices}
[[link]]
between = ["a", "r"]
latency = "10 ms"
bandwidth = "16 Mbit/s"
[[link]]
between = ["b", "s"]
latency = "30 ms"
bandwidth = "40 Mbit/s"
"""
DEVICE = '[[device]]\nname = "{name}"\nregion = "{name}"\nmemory = "1 GB"\nspeed = "1 GFLOP/s"\n{nat}\n'


def topology(**nats: str) -> Topology:
    devices = [DEVICE.format(name=name, nat=f'nat = "{nat}"' if nat else "") for name, nat in nats.items()]
    return Topology.from_text(TEXT.format(devices="".join(devices)))


def test_the_best_relay_is_taken_and_the_others_stand_by() -> None:
    found = with_relays(topology(a="one", b="two", r="", s=""))
    assert found.via == {("a", "b"): ("s", "r")}
    assert (found.relay("a", "b"), found.relay("b", "a"), found.relay("a", "r")) == ("s", "s", "")
    link = found.link("b", "a")
    assert link.bandwidth == BytesPerSecond(5e6)
    assert link.latency == Seconds(0.04)
    assert found.link("a", "r").bandwidth == BytesPerSecond(2e6)
    assert with_relays(found) == found


def test_who_shares_a_nat_needs_no_relay_and_a_nat_alone_neither() -> None:
    same = topology(a="one", b="one", r="", s="")
    assert with_relays(same) is same
    one = topology(a="one", b="", r="", s="")
    assert apart_by_nat(one) == frozenset()


def test_without_a_relay_there_is_hardly_a_way() -> None:
    found = with_relays(topology(a="one", b="two", r="three", s="four"))
    assert found.via == dict.fromkeys([("a", "b"), ("a", "r"), ("a", "s"), ("b", "r"), ("b", "s"), ("r", "s")], ())
    assert found.link("a", "b").bandwidth == 1.0


def test_who_may_not_or_can_not_relay_does_not() -> None:
    plain = topology(a="one", b="two", r="", s="")
    assert with_relays(plain, able=["r"]).via == {("a", "b"): ("r",)}
    assert with_relays(plain, can_dial=lambda end, relay: (end, relay) != ("b", "s")).via == {("a", "b"): ("r",)}
    assert with_relays(plain, [("a", "b"), ("a", "s")]).via == {("a", "b"): ("r",), ("a", "s"): ("r",)}


def test_what_was_measured_through_the_relay_counts() -> None:
    plain = topology(a="one", b="two", r="", s="")
    kept = with_relays(plain, measured={("a", "b"): "s"})
    assert kept.link("a", "b").bandwidth == plain.link("a", "b").bandwidth
    other = with_relays(plain, measured={("a", "b"): "r"})
    assert other.link("a", "b").bandwidth == 5e6


def test_relays_survive_documents_choices_and_names() -> None:
    found = with_relays(topology(a="one", b="two", r="", s=""))
    assert Topology.from_json(found.to_json()) == found
    assert found != topology(a="one", b="two", r="", s="")
    assert found.select(["b", "a"]).via == {("a", "b"): ("s", "r")}
    assert found.select(["a", "r"]).via == {}
    assert found.rename({"a": "z", "s": "t"}).via == {("b", "z"): ("t", "r")}
    assert with_relays(Topology.from_text(found.to_toml())).via == found.via


@given(st.integers(0, 2**32), st.integers(3, 7), st.integers(2, 5))
def test_no_relayed_way_is_better_than_its_hops(seed: int, count: int, closed: int) -> None:
    random = np.random.default_rng(seed)
    plain = Topology.from_matrices(random.uniform(0.001, 0.1, (count, count)), random.uniform(1e5, 1e8, (count, count)))
    names = plain.names
    apart = [pair_of(a, b) for i, a in enumerate(names[:closed]) for b in names[i + 1 : closed]]
    able = names[closed:]
    found = with_relays(plain, apart, able)
    for a, b in apart:
        relays = found.via[a, b]
        assert set(relays) <= set(able)
        assert bool(relays) == bool(able)
        for source, target in ((a, b), (b, a)):
            for relay in relays[:1]:
                hops = plain.link(source, relay), plain.link(relay, target)
                assert found.link(source, target).bandwidth == min(hop.bandwidth for hop in hops)
                assert found.link(source, target).latency == pytest.approx(sum(hop.latency for hop in hops))
        worst = [min(plain.beta[i, j] for i, j in _hops(plain, a, r, b)) for r in able]
        assert not relays or min(plain.beta[i, j] for i, j in _hops(plain, a, relays[0], b)) == max(worst)


def _hops(plain: Topology, a: str, r: str, b: str) -> list[tuple[int, int]]:
    i, j, k = (plain.index(name) for name in (a, r, b))
    return [(i, j), (j, k), (k, j), (j, i)]
