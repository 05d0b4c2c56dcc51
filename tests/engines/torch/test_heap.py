"""Freed memory goes back to the system, seldom."""

from __future__ import annotations

import sys
import threading

import psutil
import pytest

from farflung.engines.torch.heap import Heap


def drive(sizes: list[int], times: list[float]) -> tuple[list[bool], int]:
    """What happens at ``times`` to a process of ``sizes`` bytes (one for each look)."""
    calls: list[None] = []
    clock, found, now = iter(times), iter(sizes), [0.0]
    heap = Heap(lambda: next(found), lambda: calls.append(None), lambda: now[0])
    given = []
    for now[0] in clock:
        given.append(heap.give_back())
    return given, len(calls)


def test_it_is_given_back_at_once_and_then_after_a_while() -> None:
    mb = 1 << 20
    assert drive([300 * mb, 290 * mb, 400 * mb, 390 * mb], [0.0, 0.5, 1.2]) == ([True, False, True], 2)


def test_much_is_given_back_more_seldom() -> None:
    gb = 10**9
    given, calls = drive([2 * gb, gb, 2 * gb, gb], [0.0, 30.0, 41.0])
    assert (given, calls) == ([True, False, True], 2)


def test_a_process_that_has_not_grown_is_let_alone() -> None:
    mb = 1 << 20
    assert drive([300 * mb, 250 * mb, 290 * mb, 299 * mb, 260 * mb], [0.0, 4.0, 8.0]) == ([True, False, True], 2)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_the_real_one_gives_back_what_is_free() -> None:
    held = [bytearray(b"x" * 100_000) for _ in range(1500)]
    last = bytearray(100_000)  # keeps the heap from shrinking by itself
    before = psutil.Process().memory_info().rss
    del held
    assert Heap().give_back()
    assert psutil.Process().memory_info().rss < before - 50e6
    assert len(last) == 100_000


def test_the_time_in_which_a_thread_waits_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the processes of a pipeline, which wait for each other, would give back once a second each: pages return at a cost."""
    monkeypatch.setattr("farflung.engines.torch.heap._EVERY", 0.1)
    sizes = iter([300 << 20, 0, 600 << 20, 0])
    heap = Heap(lambda: next(sizes), lambda: None)
    assert heap.give_back()
    threading.Event().wait(0.2)
    assert not heap.give_back()


def test_a_new_thread_has_a_clock_of_its_own() -> None:
    sizes = iter([300 << 20, 0, 600 << 20, 0])
    times, given = iter([900.0, 901.0, 0.1, 0.2]), list[bool]()
    heap = Heap(lambda: next(sizes), lambda: None, lambda: next(times))
    given.append(heap.give_back())
    thread = threading.Thread(target=lambda: given.append(heap.give_back()))
    thread.start()
    thread.join()
    assert given == [True, True]
