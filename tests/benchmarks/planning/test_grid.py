"""The grid benchmark at its smallest: what it reports, and its generated networks."""

import itertools

import numpy as np
import pytest

from benchmarks.harness.base import override
from benchmarks.harness.catalog import BENCHMARKS
from benchmarks.planning.grid import OPTIMA, cities, lognormal
from farflung.planners.grid import assign
from farflung.planners.grid.budget import Budget


def test_grid_reports_cases_networks_and_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes a millisecond, so that a busy machine searches as long as any other."""
    ticks = itertools.count()
    monkeypatch.setattr(assign, "Budget", lambda *args, **kwargs: Budget(*args, now=lambda: next(ticks) / 1000, **kwargs))
    chosen = BENCHMARKS.get("grid")
    pairs = ("seeds=1", "draws=3", "scales=1", "case_seconds=0.1", "dtfm_seconds=0.1", "seconds=0.2")
    said: list[str] = []
    report = chosen.run(override(chosen.settings(quick=True), pairs), said.append)
    for name, optimum in OPTIMA.items():
        found = report.figures["cases"][name]
        assert found["lower_bound"] <= optimum <= found["search_worst"] + 1e-4
        assert found["search_worst"] < found["random"]
    assert [run["devices"] for run in report.figures["scales"]] == [64]
    run = report.figures["irregular"][0]
    assert run["lower_bound"] <= run["search"] <= run["dtfm"]
    assert report.passed is None
    assert len(report.checks) == 2 * 3 + 1 + 1
    assert said


def test_cities_are_uneven_and_links_lognormal() -> None:
    topology = cities(1024)
    sizes = [len(members) for members in topology.regions.values()]
    assert sum(sizes) == 1024
    assert max(sizes) > 1.5 * min(sizes)
    other = lognormal(64, 0)
    off = ~np.eye(64, dtype=bool)
    assert np.log(other.beta[off]).std() == pytest.approx(1, abs=0.05)
    assert np.median(other.alpha[off]) == pytest.approx(0.05, rel=0.05)
