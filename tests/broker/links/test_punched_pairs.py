"""Which pairs try hole punching, and how many at once."""

from __future__ import annotations

from itertools import combinations, product

from farflung.broker.links.punched_pairs import PunchedPairs


def test_neither_one_member_nor_all_together_try_too_many_pairs_for_one_plan() -> None:
    pairs = PunchedPairs()
    names = [f"w{number:02}" for number in range(40)]
    everybody = list(combinations(names, 2))
    first = pairs.begin(everybody)
    assert len(first) == 200
    assert max(sum(name in pair for pair in first) for name in names) == 24
    pairs.store(first, {})
    assert set(pairs.begin(everybody)).isdisjoint(first), "the next plan tries others"
    assert pairs.begin(list(product(["a"], ["b"]))) == [("a", "b")]


def test_an_answer_of_a_pair_that_was_forgotten_is_not_stored() -> None:
    pairs = PunchedPairs()
    assert pairs.begin([("a", "b")]) == [("a", "b")]
    pairs.forget("b")
    pairs.store([("a", "b")], {("a", "b"): True})
    assert not pairs.connects("a", "b")
    assert not pairs.allows("a", "b")
    assert pairs.among("ab") == []


def test_a_second_plan_does_not_take_a_pair_that_still_tries_for_one_that_failed() -> None:
    pairs = PunchedPairs()
    assert pairs.begin([("a", "b")]) == pairs.begin([("a", "b")]) == [("a", "b")]
    assert pairs.allows("a", "b")
    pairs.store([("a", "b")], {("a", "b"): True})
    assert pairs.begin([("a", "b")]) == []
    assert pairs.connects("a", "b")


def test_an_attempt_that_succeeds_late_counts() -> None:
    pairs = PunchedPairs()
    pairs.begin([("a", "b"), ("a", "c")])
    pairs.ended("a", "b", reached=True)  # while the broker still waits for the answer
    pairs.store([("a", "b"), ("a", "c")], {})
    assert pairs.among("abc") == [("a", "b")]
    pairs.ended("a", "c", reached=True)
    assert pairs.among("abc") == [("a", "b"), ("a", "c")]
