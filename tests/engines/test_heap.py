"""Freed memory goes back to the system, seldom."""

from __future__ import annotations

import sys

import pytest

from farflung.engines.torch.heap import Heap


def test_it_is_given_back_at_once_and_then_after_a_while() -> None:
    times, calls = iter([0.0, 0.1, 0.5, 1.2, 1.3]), []
    heap = Heap(lambda: calls.append(None), lambda: next(times))
    assert [heap.give_back() for _ in range(3)] == [True, False, True]
    assert len(calls) == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_the_real_one() -> None:
    assert Heap().give_back()
