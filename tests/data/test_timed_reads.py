"""Reads with a deadline, on a thread of their own."""

from __future__ import annotations

import threading

import pytest

from farflung.data.timed_reads import TimedReads
from farflung.errors import DataError, Stopped


def raises(error: BaseException) -> None:
    raise error


def test_a_read_returns_what_the_call_returns() -> None:
    reads = TimedReads("r", "here")
    names = [reads.read("x", lambda: threading.current_thread().name, 60.0) for _ in range(3)]
    assert names == ["data-r"] * 3
    reads.close()
    assert "data-r" not in {thread.name for thread in threading.enumerate()}


def test_an_error_is_raised_where_it_is_waited_for_and_reading_continues() -> None:
    reads = TimedReads("r", "here")
    with pytest.raises(DataError, match=r"^torn$"):
        reads.read("x", lambda: raises(DataError("torn")))
    assert reads.read("x", lambda: 3) == 3
    reads.close()


def test_a_read_that_hangs_is_named_and_nothing_is_read_any_more() -> None:
    reads, over = TimedReads("r", "the data folder /data"), threading.Event()
    said = (
        r"^micro-batch 1 of step 2 has not come within 50 ms from the data folder /data: "
        r"check the disk, or the network folder, that holds the data$"
    )
    with pytest.raises(DataError, match=said):
        reads.read("micro-batch 1 of step 2", over.wait, 0.05)
    with pytest.raises(DataError, match=said):
        reads.read("micro-batch 2 of step 2", lambda: 3)
    over.set()
    reads.close()


def test_whoever_ends_the_run_wakes_a_read_that_hangs() -> None:
    reads, over, began = TimedReads("r", "here"), threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        over.wait()

    ender = threading.Thread(target=lambda: (began.wait(), reads.end(Stopped("stopped"))))
    ender.start()
    with pytest.raises(Stopped, match=r"^stopped$"):
        reads.read("x", hang)
    ender.join()
    over.set()
    reads.close()
