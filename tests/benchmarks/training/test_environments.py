"""The benchmark of several environments: workers by their interpreters, verdicts, and a small run of processes."""

from __future__ import annotations

import sys

import pytest

from benchmarks.harness.catalog import BENCHMARKS
from benchmarks.training.environments import Environments, EnvironmentsSettings, report_of, workers_of
from farflung.errors import InputError

LOSSES = {"mixed": [3.0, 2.02], "alone": [3.0, 2.0]}


def test_a_worker_is_an_engine_and_its_interpreter() -> None:
    assert workers_of(["torch", f"jax={sys.executable}"]) == {
        "torch-0": ("torch", sys.executable),
        "jax-1": ("jax", sys.executable),
    }
    with pytest.raises(InputError, match=r"environments='torch=/nowhere/python': there is no interpreter '/nowhere/python'"):
        workers_of(["torch=/nowhere/python"])


def test_a_deviation_counts_against_the_limit_of_its_engines() -> None:
    versions = {"torch-0": "torch 2.13.0", "torch-1": "torch 2.15.0", "jax-2": "jax 0.10.2"}
    report = report_of(versions, {"releases of PyTorch": {"gpt2": 1e-5}, "all": {"gpt2": 1e-5}}, LOSSES)
    passed = {check.name: check.passed for check in report.checks}
    assert passed == {
        "gradients of gpt2, releases of PyTorch": False,
        "gradients of gpt2, all": True,
        "last loss, all / PyTorch alone - 1": False,
        "workers": True,
    }


def test_one_release_is_not_judged_as_several() -> None:
    report = report_of({"torch-0": "torch 2.13.0", "jax-1": "jax 0.10.2"}, {"all": {"gpt2": 1e-6}}, LOSSES)
    (workers,) = (check for check in report.checks if check.name == "workers")
    assert workers.passed is None


@pytest.mark.slow
def test_two_workers_train_as_processes() -> None:
    assert isinstance(BENCHMARKS.get("environments"), Environments)
    settings = EnvironmentsSettings(quick=True, models=("gpt2",), steps=2, environments=("torch", "reference"))
    report = Environments().run(settings, lambda text: None)
    assert report.figures["deviations"]["all"]["gpt2"] < 1e-5
    assert report.figures["apart"] < 1e-3
