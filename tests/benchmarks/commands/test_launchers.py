"""The report of the benchmark ``launchers``."""

from __future__ import annotations

import pytest

from benchmarks.commands.launchers import WORKERS, Launchers, LaunchersSettings, report_of
from farflung.errors import InputError


def test_medians_are_judged_against_the_target() -> None:
    seconds = [{"joined": 10.0, "first_step": value} for value in (29.0, 31.0, 12.0)]
    report = report_of({"ssh": seconds, "slurm": [{"joined": 20.0, "first_step": 30.5}], "ray": []}, judged=True)
    assert [check.passed for check in report.checks] == [True, False, False]
    assert report.figures["median_seconds"] == {"ssh": 29.0, "slurm": 30.5}
    assert report.rows == [("ssh", "3", "10.0 s", "29.0 s"), ("slurm", "4", "20.0 s", "30.5 s")]
    assert report.checks[2].measured.startswith("not measured")
    assert [check.passed for check in report_of({"ssh": seconds}, judged=False).checks] == [None]


def test_the_workers_are_those_of_the_target() -> None:
    assert WORKERS == {"ssh": 3, "slurm": 4, "ray": 4}


def test_unknown_providers_are_refused() -> None:
    with pytest.raises(InputError, match="unknown provider 'fly': known are ssh, slurm, ray"):
        Launchers().run(LaunchersSettings(providers=("fly",)), print)
