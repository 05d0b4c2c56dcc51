"""The benchmark of workers that share cores: what it makes of what it saw, and one run of it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from benchmarks.harness.base import override
from benchmarks.planning.shared_cores import MODELS, CpuTime, SharedCores, SharedCoresSettings, _report, other_load
from farflung.errors import InputError

COST = {"frame_seconds": 0.001, "byte_seconds": 3e-9}


def run(ratio: float, other: float = 0.0) -> dict[str, Any]:
    return {"predicted": ratio, "measured": 1.0, "ratio": ratio, "other_cores": other}


def test_the_median_of_the_runs_counts() -> None:
    report = _report(SharedCoresSettings(), {"gpt": [run(0.9), run(0.5), run(1.3)], "mlp": [run(0.7), run(0.9), run(0.7)]}, COST)
    assert [check.passed for check in report.checks] == [True, False]
    assert report.rows[0] == ("gpt", 0.9, 1.0, 0.9, 0.5, 1.3, 0.0)


def test_other_load_is_told_and_nothing_is_judged() -> None:
    report = _report(SharedCoresSettings(), {"gpt": [run(0.9), run(0.9, other=0.7)]}, COST)
    assert report.passed is None
    assert report.checks[0].note == "other programs used 0.70 cores; measure again on a quiet machine"
    assert other_load((100.0, 10.0), (104.0, 13.0), 2.0) == (0.5, 1.5)
    assert other_load((100.0, 10.0), (102.0, 13.0), 2.0) == (0.0, 1.5), "clocks of processes are coarse"


def test_the_time_of_an_ended_process_stays_ours() -> None:
    worked = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    time_of_programs = CpuTime()
    before = time_of_programs.read()[1]
    with subprocess.Popen([sys.executable, "-c", worked], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        program.stdout.readline()
        alive = time_of_programs.read()[1]
        program.communicate("\n")
    assert alive - before >= 0.4, "clocks of processes are coarse"
    assert time_of_programs.read()[1] >= alive


def test_unknown_models_and_too_few_cores_are_refused() -> None:
    bench = SharedCores()
    with pytest.raises(InputError, match="unknown model 'vgg': known are gpt, resnet18, mlp, bert, llama"):
        bench.run(override(bench.settings(quick=True), ["models=vgg"]), lambda _: None)
    with pytest.raises(InputError, match=r"cores=4096: this process may use \d+; set cores="):
        bench.run(override(bench.settings(quick=True), ["cores=4096"]), lambda _: None)


@pytest.mark.slow
def test_two_workers_on_one_core() -> None:
    bench = SharedCores()
    report = bench.run(override(bench.settings(quick=True), ["cores=1"]), lambda _: None)
    (found,) = report.figures["models"]["mlp"]["runs"]
    ((capacity, sharing),) = found["hosts"]
    assert sharing == 2
    assert 1.0 <= capacity < 1.7, "two workers on one core reach the speed of one"
    assert found["ratio"] > 0.0
    assert set(MODELS) == {"gpt", "resnet18", "mlp", "bert", "llama"}
