"""``startup`` measures commands with a broker of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.commands import startup
from benchmarks.harness.catalog import BENCHMARKS
from farflung.errors import TrainingError


def test_commands_are_compared_with_the_import_of_typer() -> None:
    chosen = BENCHMARKS.get("startup")
    report = chosen.run(chosen.settings(quick=True), lambda text: None)
    assert report.figures["ratios"]["import typer"] == 1.0
    assert set(report.figures["ratios"]) == {"import typer", "help", "status", "join"}
    assert all(seconds > 0 for found in report.figures["seconds"].values() for seconds in found)
    assert report.passed is None


def test_targets_are_judged_by_the_medians() -> None:
    report = startup.report_of(
        {"import typer": [1.0, 1.0, 9.0], "help": [2.0], "status": [5.0, 3.0, 3.0], "join": [11.0]}, judged=True
    )
    assert {check.name: check.passed for check in report.checks} == {
        "CPU time of help": True,
        "CPU time of status": True,
        "CPU time of join": False,
        "CPU time of join until registered": False,
    }


def test_the_cpu_time_of_a_running_process_is_that_of_all_its_threads() -> None:
    program = "import threading, time\nthread = threading.Thread(target=lambda: [None for _ in range(5_000_000)])\n"
    program += "thread.start(); thread.join(); print(time.process_time(), flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = float(process.stdout.readline())
    found = startup.cpu_seconds(process.pid)
    process.communicate("\n")
    assert said <= found < said + 0.05


def test_a_command_that_fails_is_an_error() -> None:
    with pytest.raises(TrainingError, match=r"(?s)--bogus failed: .*No such option"):
        startup.process_seconds(["-m", "farflung", "--bogus"], os.environ)
