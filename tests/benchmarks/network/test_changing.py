"""Links whose rate changes, and one that crawls: the arithmetic of their benchmarks, and (with namespaces) short runs."""

from __future__ import annotations

import pytest

from benchmarks.network.changing import Changing, judge_step
from benchmarks.training.crawl import Crawl


def samples(rates: list[float]) -> list[dict[str, float]]:
    """Four looks a second at a link that carries so many bytes per second, a second each."""
    found, arrived = [], 0.0
    for number in range(4 * len(rates)):
        found.append({"at": number / 4, "arrived": arrived, "connections": 1, "resumed": 0, "repeated": 0})
        arrived += rates[number // 4] / 4
    return found


def test_a_step_is_late_until_a_second_carries_its_share() -> None:
    found = judge_step(samples([100.0, 20.0, 50.0, 90.0, 95.0, 95.0]), 100.0, 1.0, 6.0)
    assert found["late"] == pytest.approx(2.75)  # from 2.75 to 3.75: a quarter of 50, then 90
    assert found["share"] == pytest.approx(0.945, abs=0.01)


def test_a_step_that_never_gets_there_is_late_for_all_of_it() -> None:
    found = judge_step(samples([10.0] * 6), 100.0, 1.0, 6.0)
    assert (found["late"], found["share"]) == (5.0, pytest.approx(0.1))
    assert judge_step([], 100.0, 1.0, 6.0)["late"] == 5.0


@pytest.mark.netns
@pytest.mark.timeout(600)  # three clusters of four processes, which load PyTorch
@pytest.mark.parametrize("bench", [Changing(), Crawl()])
def test_a_short_run(bench: Changing | Crawl) -> None:
    report = bench.run(bench.settings(quick=True), lambda text: None)
    assert report.passed is None
    assert report.rows
