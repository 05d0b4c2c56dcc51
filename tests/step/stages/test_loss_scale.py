"""The loss scale of float16: its rule is that of PyTorch, all workers have the same one, and a run resumes with it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from farflung.api.submission import freeze
from farflung.engines.base import Array
from farflung.engines.torch.runner import TorchRunner
from farflung.errors import InputError, TrainingError
from farflung.messages.data import LossScaleState
from farflung.step.run_setup import sender_of
from farflung.step.stages.local_stages import LocalStages
from farflung.step.stages.loss_scale import LossScale
from farflung.step.stages.scale_agreement import ScaleAgreement
from tests.support.steps.executor_threads import (
    EVERY_STEP,
    Case,
    assert_goes_on,
    differing,
    job_of,
    newest,
    other,
    random_batches,
    root,
    run_threads,
)
from tests.support.steps.small_runs import small_graph, small_job, small_setup
from tests.support.steps.strategy_cases import case_of

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
            {
                "precision": "fp16",
                "sync": {"strategy": "local_sgd"},
                "plan": {"replicas": 2},
                "optimizer": {"clip_norm": 1.0, "clip_by": "previous"},
            },
            r"precision = 'fp16' with optimizer.clip_by = 'previous': the norm of a step is known before its update, because it",
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


PERIOD, ROUNDS = 3, 5


class Scaled(nn.Module):
    """Its gradients grow with its inputs."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), middle, nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.body(x), y) * x.square().mean()


def normed() -> nn.Module:
    """Its forwards change statistics, which a step that overflows must leave as they were."""
    torch.manual_seed(2)
    return Scaled(nn.BatchNorm1d(8)).train()


def layered() -> nn.Module:
    torch.manual_seed(2)
    return Scaled(nn.LayerNorm(8)).train()


def larger(step: int) -> float:
    return 4.0 if step >= 9 else 1.0


def infinite_twice(step: int) -> float:
    return np.inf if step in (10, 11) else 1.0


def apart(
    make: Callable[[], nn.Module],
    strategy: str = "local_sgd",
    grid: bool = False,
    factor: Callable[[int], float] = larger,
    **changes: Any,
) -> Case:
    """Two replicas. ``factor`` multiplies inputs of the second one, so that it alone overflows."""
    sizes = [4, 2, 3, 3]  # equal shares: the mean of two numbers is rounded once
    plain = random_batches(sizes)

    def batch(step: int, index: int) -> tuple[Tensor, ...]:
        x, y = plain(step, index)
        return (x * (factor(step) if index >= 2 else 1.0), y)

    job: dict[str, Any] = {
        "micro_batch_sizes": sizes,
        "steps": PERIOD * ROUNDS,
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    }
    case = case_of(strategy, {"sync_every": PERIOD}, grid=grid, **HIGH | job | changes)
    return other(case, make=make, batch=batch)


def with_scalers(case: Case) -> tuple[dict[str, Array], list[tuple[float, float]], list[int]]:
    """Local SGD in PyTorch, with a ``GradScaler`` for each replica.

    Return the states at the end, both scales after each step, and the samples of each local step that was left out.
    """
    job, left_out = case.job, list[int]()
    rule, groups = job.loss_scale, (range(2), range(2, 4))
    models = [normed(), normed()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in models]
    scalers = [
        torch.amp.GradScaler(
            "cpu", init_scale=rule.initial, growth_factor=rule.growth, backoff_factor=rule.backoff, growth_interval=rule.every
        )
        for _ in models
    ]
    shares = [sum(job.weight(index) for index in group) for group in groups]
    scales = []
    for step in range(job.steps):
        for model, optimizer, scaler, group, share in zip(models, optimizers, scalers, groups, shares, strict=True):
            before = {name: buffer.clone() for name, buffer in model.named_buffers()}
            for index in group:
                with torch.autocast("cpu", torch.float16):
                    loss = model(*case.batches(step, index))
                scaler.scale(loss * (job.weight(index) / share)).backward()
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if scaler.get_scale() < scale:  # GradScaler leaves the statistics of such a step as they are
                model.load_state_dict(before, strict=False)
                left_out.append(sum(job.micro_batch_sizes[index] for index in group))
        scales.append((scalers[0].get_scale(), scalers[1].get_scale()))
        if (step + 1) % PERIOD == 0:
            with torch.no_grad():
                for one, two in zip(models[0].parameters(), models[1].parameters(), strict=True):
                    mean = one * shares[0] + two * shares[1]
                    one.copy_(mean)
                    two.copy_(mean)
    return {name: value.detach().numpy() for name, value in models[0].state_dict().items()}, scales, left_out


@pytest.mark.parametrize(("grid", "factor"), [(False, larger), (True, larger), (True, infinite_twice)])
def test_replicas_that_train_alone_have_scales_of_their_own(
    grid: bool, factor: Callable[[int], float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, updates, update = other(apart(normed, grid=grid, factor=factor), root=tmp_path), list[TorchRunner](), TorchRunner.update

    def counted(runner: TorchRunner, *given: Any) -> None:
        updates.append(runner)
        update(runner, *given)

    monkeypatch.setattr(TorchRunner, "update", counted)
    ran, (expected, scales, left_out) = run_threads(case), with_scalers(case)
    assert any(one != two for one, two in scales), "the second replica overflows alone"
    assert np.isfinite(ran.losses).all()
    names = [name for name in ran.states if not name.endswith(("mean", "var", "tracked"))]
    assert differing({name: expected[name] for name in names}, {name: ran.states[name] for name in names}) == []
    assert any("overflowed in float16 in replica 1; the loss scale is now" in note for note in ran.notes)
    assert newest(ran).manifest.ledger == {"steps": 15, "samples": 15 * 12 - sum(left_out)}
    assert len(updates) == (2 * 15 - len(left_out)) * (2 if grid else 1), "a step that is left out has no update"


@pytest.mark.parametrize("at", [4, 10, 11])
@pytest.mark.parametrize("grid", [False, True], ids=["one stage", "two stages"])
def test_each_replica_resumes_with_its_scale(at: int, grid: bool, tmp_path: Path) -> None:
    assert_goes_on(apart(layered, grid=grid, checkpoint=EVERY_STEP), at, tmp_path)


@pytest.mark.parametrize("strategy", ["diloco", "streaming_diloco", "co2", "modest"])
def test_other_strategies_leave_out_steps_too(strategy: str, tmp_path: Path) -> None:
    case = apart(layered, strategy, checkpoint=EVERY_STEP)
    assert_goes_on(case, 10, tmp_path)
    assert any("in replica 1" in note for note in run_threads(case).notes)


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
