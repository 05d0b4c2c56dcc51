"""Rounds of probes: everybody meets everybody once, and nobody is in two places at the same time."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from farflung.protocol.probe_pairing import sampled_rounds, star_rounds, tournament

NAMES = st.integers(0, 24).map(lambda count: [f"w{index}" for index in range(count)])


@given(NAMES)
def test_every_two_meet_once_in_about_n_rounds(names: list[str]) -> None:
    rounds = tournament(names)
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert sorted(map(sorted, met)) == sorted(map(sorted, combinations(names, 2)))
    for pairs in rounds:
        busy = [name for pair in pairs for name in pair]
        assert len(busy) == len(set(busy))
    if len(names) > 1:
        assert len(rounds) == len(names) - 1 + len(names) % 2


@given(NAMES)
def test_everybody_is_the_middle_of_one_star(names: list[str]) -> None:
    rounds = star_rounds(names)
    firsts = [triple[0] for triples in rounds for triple in triples]
    assert sorted(firsts) == (sorted(names) if len(names) >= 3 else [])
    for triples in rounds:
        busy = [name for triple in triples for name in triple]
        assert len(busy) == len(set(busy))


@given(st.lists(st.sampled_from(["", "north", "south", "west"]), max_size=40))
def test_samples_touch_everybody_and_every_two_regions(places: list[str]) -> None:
    regions = {f"w{index}": place for index, place in enumerate(places)}
    rounds = sampled_rounds(regions)
    for pairs in rounds:
        busy = [name for pair in pairs for name in pair]
        assert len(busy) == len(set(busy))
    met = {frozenset(pair) for pairs in rounds for pair in pairs}
    assert all(len(pair) == 2 for pair in met)
    areas = {name: place or name for name, place in regions.items()}
    joined = {frozenset(areas[name] for name in pair) for pair in met}
    assert {frozenset(two) for two in combinations(set(areas.values()), 2)} <= joined
    for name, place in regions.items():
        others = sum(area == place for area in regions.values()) - 1
        inside = sum(name in pair and len({areas[one] for one in pair}) == 1 for pair in met)
        assert inside >= min(others, 3) if place else True


def test_rounds_of_samples_grow_with_the_regions_only() -> None:
    def rounds(count: int) -> int:
        return len(sampled_rounds({f"w{index}": f"region {index % 4}" for index in range(count)}))

    assert rounds(1000) == rounds(100) == 4 + 3 * 3


def test_a_star_has_the_given_peers_only() -> None:
    peers = {"a": ["b", "c"], "b": ["a"], "c": ["a", "b"], "d": []}
    triples = [triple for found in star_rounds("abcd", peers) for triple in found]
    assert triples == [("a", "b", "c"), ("c", "a", "b")]
