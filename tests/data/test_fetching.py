"""Fetches of remote data: one at a time for each folder, counted, and over when the run is over."""

from __future__ import annotations

import contextvars
from pathlib import Path

import pytest

from farflung.data import fetching
from farflung.data.fetching import Fetch
from farflung.data.timed_reads import TimedReads
from farflung.errors import Stopped
from tests.support.network.futures import PATIENCE, later
from tests.support.network.quiet import until


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fetching, "_POLL", 0.001)
    (tmp_path / "objects").mkdir()
    return tmp_path / "objects"


def test_a_second_fetch_waits_for_the_first_and_counts_what_that_writes(folder: Path) -> None:
    second, order = Fetch(), list[str]()

    def wait() -> None:
        with second.alone(folder):
            order.append("second")

    def grown() -> int:
        with (folder / "one").open("ab") as stream:
            stream.write(b"more")
        return second.nbytes

    with Fetch().alone(folder):
        done = later(wait)
        until(grown)
        order.append("first")
    done.result(PATIENCE)
    assert order == ["first", "second"]


def test_a_fetch_that_is_over_waits_no_more(folder: Path) -> None:
    second = Fetch()

    def wait() -> None:
        with second.alone(folder):
            raise AssertionError("the first one still writes")

    with Fetch().alone(folder):
        done = later(wait)
        second.end(Stopped("the run is over"))
        with pytest.raises(Stopped, match=r"^the run is over$"):
            done.result(PATIENCE)
    with pytest.raises(Stopped, match=r"^the run is over$"):
        second.add(1)


def test_reads_count_for_the_fetch_of_their_run() -> None:
    fetch = Fetch()
    reads = TimedReads("r", "here", fetch)
    reads.read("x", lambda: Fetch.current().add(7))
    assert fetch.nbytes == 7
    assert contextvars.copy_context().run(Fetch.current) is not fetch
    reads.close()
    with pytest.raises(Exception, match="the run is over here"):
        fetch.add(1)
