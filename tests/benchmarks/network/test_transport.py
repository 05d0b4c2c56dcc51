"""The transport benchmark: its arithmetic, and (with namespaces) one short case."""

from __future__ import annotations

import pytest

from benchmarks.network.transport import CASES, Transport, TransportSettings, _figures
from farflung.errors import TrainingError


def test_figures_leave_out_the_first_transfers() -> None:
    case = CASES["100-50"]
    sent = [{"connections": 2, "round_trip": 0.05, "congestion": "bbr", "repeated": 0}, {"cpu": 1.0}]
    received = [{"address": "x"}, {"number": 0, "seconds": 10.0}, {"number": 1, "seconds": 5.12}, {"cpu": 0.28}]
    found = _figures(case, "tcp", 64_000_000, sent, received)
    assert found["fractions"] == [0.512, 1.0]
    assert found["fraction"] == 1.0
    assert found["cpu_seconds_per_gb"] == pytest.approx(1.28 / 0.128)
    with pytest.raises(TrainingError, match="did not end"):
        _figures(case, "tcp", 64_000_000, sent, received[:2])


@pytest.mark.netns
def test_a_short_case_runs() -> None:
    settings = TransportSettings(quick=True, cases=("1000-20",), repeats=1)
    report = Transport().run(settings, lambda text: None)
    assert report.passed is None
    assert 0 < report.figures["links"][0]["fraction"] < 1
