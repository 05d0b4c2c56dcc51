"""The loss scale of float16: its rule is that of PyTorch, all workers have the same one, and a run resumes with it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from farflung.errors import InputError, TrainingError
from farflung.step.stages.loss_scale import LossScale
from tests.support.executor_threads import EVERY_STEP, Case, assert_goes_on, job_of, root, run_threads
from tests.support.small_runs import small_setup

HIGH: dict[str, Any] = {"precision": "fp16", "loss_scale": {"initial": 2.0**24, "every": 2}}


def case(**changes: Any) -> Case:
    return Case(job=job_of(**{**HIGH, "steps": 14, **changes}), devices=("a", "b", "a"), cut_seed=3)


@pytest.mark.parametrize("seed", range(5))
def test_the_rule_is_that_of_pytorch(seed: int) -> None:
    chance, setup = random.Random(seed), small_setup("a", precision="fp16", loss_scale={"every": 3, "growth": 4.0})
    ours, theirs = LossScale(setup), torch.amp.GradScaler("cpu", growth_interval=3, growth_factor=4.0)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for _ in range(200):
        overflows = chance.random() < (0.1 if seed % 2 else 0.3)
        weight.grad = theirs.scale(torch.tensor([float("inf") if overflows else 1.0]))
        theirs.step(optimizer)
        theirs.update()
        if overflows:
            ours.skipped()
        else:
            ours.applied()
        assert ours.factor == max(theirs.get_scale(), 2.0**-16)
        if theirs.get_scale() <= 2.0**-16:
            break


def test_an_overflow_skips_the_step_and_the_run_continues() -> None:
    ran = run_threads(case())
    skipped = [report.step for report in ran.reports if report.skipped]
    assert 0 < len(skipped) < 14, "the first scale is too high, a later one is not"
    assert f"step {skipped[0]}: numbers overflowed in float16; the loss scale is now {2.0**23:g}" in ran.notes


@pytest.mark.parametrize("at", [1, 5, 11])
def test_a_run_resumes_with_its_scale(at: int, tmp_path: Path) -> None:
    assert_goes_on(case(checkpoint=EVERY_STEP), at, tmp_path)


def test_numbers_that_no_scale_helps_end_the_run() -> None:
    """The gradient of a square root at zero is never finite."""
    job = job_of(precision="fp16", steps=60, loss_scale={"backoff": 2.0**-16})
    with pytest.raises(TrainingError, match=r"step 2: .* is not a finite number"):
        run_threads(Case(job=job, devices=("a", "b"), make=root, spoilt=dict.fromkeys(range(60), 0.0)))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"loss_scale": {"every": 3}}, r"\[loss_scale\] with precision = 'float32': it is for 'fp16' only; remove it"),
        (
            {"precision": "fp16", "loss_scale": {"initial": 1000.0}},
            r"loss_scale.initial = 1000 is no power of 2, so gradients would be rounded: set e.g. 2 or 0.5",
        ),
        (
            {"precision": "fp16", "plan": {"helpers": True}},
            r"precision = 'fp16' with plan.helpers = true: a step has one loss scale for all workers; remove it, or set",
        ),
    ],
)
def test_what_float16_does_not_go_with(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        job_of(**changes)
