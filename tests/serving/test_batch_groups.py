"""Into how many batches requests are divided: what is measured decides, and it is measured again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from farflung.serving.batch_groups import BatchGroups

#: Seconds between two tokens for requests that are divided into so many batches.
Time = Callable[[int], float]


def settled(time: Time, requests: int, most: int = 4, tokens: int = 40) -> tuple[int, list[int]]:
    """The number after so many tokens of each request, and all numbers until then."""
    groups, seen = BatchGroups(most), list[int]()
    for _ in range(tokens):
        number = groups.number(requests)
        seen.append(number)
        for _ in range(requests):
            groups.drew(requests, time(number))
    return groups.number(requests), seen


def shared(number: int) -> float:
    """Stages on one core: every batch reads all weights."""
    return 0.04 + 0.03 * number


def apart(number: int) -> float:
    """Stages on machines of their own: smaller batches take less time."""
    return 0.04 + 0.2 / number


@pytest.mark.parametrize(("time", "wanted"), [(shared, 1), (apart, 4), (lambda number: abs(number - 2.1), 2)])
def test_the_fastest_number_stays(time: Time, wanted: int) -> None:
    found, seen = settled(time, 8)
    assert found == wanted
    assert seen[0] == 4, "no stage stands idle at first"


def test_what_is_clearly_slower_ends_the_trials() -> None:
    _, seen = settled(apart, 8)
    assert set(seen) == {3, 4}
    assert seen.count(3) == 3


@pytest.mark.parametrize("requests", [1, 2, 3, 7])
def test_no_batch_is_empty(requests: int) -> None:
    _, seen = settled(apart, requests)
    assert min(seen) >= 1
    assert max(seen) <= requests


def test_numbers_are_tried_again() -> None:
    """The machines change: what was fastest is not any more."""
    groups, time = BatchGroups(4), shared
    found = []
    for token in range(1000):
        time = shared if token < 100 else apart
        number = groups.number(8)
        found.append(number)
        for _ in range(8):
            groups.drew(8, time(number))
    assert found[100] == 1
    assert found[-1] == 4
