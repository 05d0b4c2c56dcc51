"""Rounds of probes: everybody meets everybody once, and nobody is in two places at the same time."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from farflung.protocol.probe_pairing import star_rounds, tournament

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
