"""The benchmark of late workers: what it makes of what it saw, and one run of it."""

from __future__ import annotations

import pytest

from benchmarks.faults.joining import Joining, _report
from benchmarks.harness.base import override
from farflung.errors import InputError


def test_the_worst_of_all_times_counts() -> None:
    good, bad = _report({"helps": [(4.0, 2.0), (12.0, 3.0), (5.0, 2.5)]}, 12), _report({"helps": [(4.0, 2.0), (13.5, 3.0)]}, 12)
    assert (good.passed, bad.passed) == (True, False)
    assert good.rows == [("helps", 3, 2.5, "2.5", "9.0")]
    assert good.figures["state_bytes"] == 12


def test_who_never_comes_is_a_miss() -> None:
    never = float("inf")
    report = _report({"again": [(never, 2.0)], "helps": [(never, never)]}, 12)
    assert [check.passed for check in report.checks] == [False, False]
    assert report.rows == [("again", 1, 2.0, "never", "never"), ("helps", 1, "never", "never", "never")]
    assert report.figures["ways"]["helps"] == {"joined_seconds": [], "useful_seconds": [], "times": 1}


def test_unknown_ways_are_refused() -> None:
    bench = Joining()
    with pytest.raises(InputError, match="unknown way 'sits': known are helps, replaces, again"):
        bench.run(override(bench.settings(quick=True), ["ways=sits"]), lambda _: None)


@pytest.mark.slow
def test_a_helper_is_of_use_in_mid_run() -> None:
    bench = Joining()
    report = bench.run(bench.settings(quick=True), lambda _: None)
    (useful,) = report.figures["ways"]["helps"]["useful_seconds"]
    (joined,) = report.figures["ways"]["helps"]["joined_seconds"]
    assert joined > 0.0
    assert useful > 0.0
