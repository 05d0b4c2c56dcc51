"""The loss scale of float16: its rule is that of PyTorch, all workers have the same one, and a run resumes with it."""

from __future__ import annotations

import random
import re
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from farflung.api.submission import freeze
from farflung.errors import InputError, TrainingError
from farflung.messages.data import LossScaleState
from farflung.step.run_setup import sender_of
from farflung.step.stages.local_stages import LocalStages
from farflung.step.stages.loss_scale import LossScale
from farflung.step.stages.scale_agreement import ScaleAgreement
from tests.support.steps.executor_threads import EVERY_STEP, Case, assert_goes_on, job_of, root, run_threads
from tests.support.steps.small_runs import small_graph, small_job, small_setup

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
            {"precision": "fp16", "sync": {"strategy": "local_sgd"}, "plan": {"replicas": 2}},
            r"precision = 'fp16' with sync.strategy = 'local_sgd': replicas that train alone can't leave out a step in",
        ),
        (
            {"precision": "fp16", "plan": {"helpers": True}, "optimizer": {"delayed": True}},
            r"precision = 'fp16' with optimizer.delayed = true: after a step that overflows, no update is left to be",
        ),
        (
            {"precision": "fp16", "codec": {"name": "int4", "memory": "both"}},
            r"precision = 'fp16' with codec.memory = 'both': what a codec drops has the scale of its step; use 'difference', or",
        ),
    ],
)
def test_what_float16_does_not_go_with(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        job_of(**changes)


def test_a_rollback_before_the_first_checkpoint_begins_with_the_first_scale() -> None:
    stages = LocalStages(small_setup("a", precision="fp16"))
    first = stages.loss_scale.factor
    for _ in range(60):
        stages.loss_scale.skipped()
    assert stages.loss_scale.exhausted
    hooks: Any = SimpleNamespace(first_states=lambda names: None, first_optimizer=lambda names: {})
    stages.roll_back(hooks)
    assert stages.loss_scale.factor == first
    assert not stages.loss_scale.exhausted


def test_a_worker_that_waits_for_the_scale_names_its_source() -> None:
    setup, stored = small_setup("b", precision="fp16"), dict[Hashable, LossScaleState]()
    inbox: Any = SimpleNamespace(put=stored.__setitem__, take=stored.pop)
    context: Any = SimpleNamespace(setup=setup, inbox=inbox)
    stages = LocalStages(setup)
    stages.loss_scale.load({})
    agreement = ScaleAgreement(context, stages)
    agreement.receive("a", LossScaleState(run="r", step=3, scale=2.0, calm=1))
    (key,) = stored
    assert sender_of(setup, key) == "a"
    agreement.agree(3)
    assert stages.loss_scale.factor == 2.0


def test_a_parameter_in_float16_is_refused() -> None:
    graph = small_graph()
    states = tuple(replace(s, spec=replace(s.spec, dtype="float16")) if s.name == "second.weight" else s for s in graph.states)
    text = (
        "precision = 'fp16' with the float16 parameter 'second.weight': without the loss scale, small gradients become 0 in "
        "float16; load the model in float32, or freeze the parameter"
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        freeze(replace(graph, states=states), small_job(precision="fp16"))
    freeze(replace(graph, states=states), small_job())
    groups = [{"match": "second", "frozen": True}]
    freeze(replace(graph, states=states), small_job(precision="fp16", optimizer={"groups": groups}))
