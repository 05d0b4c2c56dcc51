"""``train`` with any schedule gives the weights of the caller's own loop, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import farflung
from farflung.errors import CaptureError, InputError
from farflung.job.spec import CurveSpec, OptimizerSpec, ScheduleSpec
from tests.support.engines.optimizers import Net, batch, plain_loop

STEPS = 12


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def different(result: farflung.TrainResult, truth: dict[str, torch.Tensor]) -> list[str]:
    states = result.state_dict()
    return [name for name, value in truth.items() if states[name].tobytes() != value.numpy().tobytes()]


def grouped(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([{"params": params[:3]}, {"params": params[3:], "lr": 0.02}], lr=1e-2, weight_decay=0.1)


def momentum(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def chained(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), lr_scheduler.ExponentialLR(optimizer, 0.9)], [4]
    )


@pytest.mark.parametrize(
    ("make", "schedule"),
    [
        (grouped, lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)),
        (grouped, lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=5)),
        (grouped, lambda optimizer: lr_scheduler.StepLR(optimizer, 4)),
        (grouped, lambda optimizer: lr_scheduler.LambdaLR(optimizer, [lambda step: 0.9**step, lambda step: 0.8**step])),
        (grouped, chained),
        (grouped, lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=[0.05, 0.1], total_steps=STEPS + 1)),
        (momentum, lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=STEPS + 1)),
        (momentum, lambda optimizer: lr_scheduler.CyclicLR(optimizer, base_lr=0.01, max_lr=0.1, step_size_up=3)),
    ],
)
def test_schedulers_of_torch(make: Any, schedule: Callable[[Any], Any]) -> None:
    result = farflung.train(Net(), batch, steps=STEPS, optimizer=make, lr_schedule=schedule, workers=2)
    assert different(result, plain_loop(make, STEPS, schedule)) == []
    assert len({record.learning_rate for record in result.records}) > 1


@pytest.mark.parametrize("by_name", [False, True])
def test_a_function_of_the_step(by_name: bool) -> None:
    def halving(step: int) -> float:
        return 0.5 ** (step / 3)

    truth = plain_loop(momentum, STEPS, lambda optimizer: lr_scheduler.LambdaLR(optimizer, halving))
    optimizer = OptimizerSpec(lr=0.1, momentum=0.9) if by_name else momentum
    result = farflung.train(Net(), batch, steps=STEPS, optimizer=optimizer, lr_schedule=halving, workers=3)
    assert different(result, truth) == []


def test_curves_of_momentum_and_weight_decay() -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.2)
    for step in range(STEPS):
        t = step / STEPS
        group = optimizer.param_groups[0]
        group["lr"] = 1e-2 * (1.0 - t)
        group["weight_decay"] = 0.2 * (1.0 - (1.0 - 3.0) * t)
        group["betas"] = (0.9 * min(1.0, (step + 1) / 4), 0.999)
        optimizer.zero_grad()
        model(*batch(step, 0)).backward()
        optimizer.step()
    schedule = ScheduleSpec(
        name="linear", weight_decay=CurveSpec(name="linear", final=3.0), momentum=CurveSpec(name="constant", warmup=4)
    )
    spec = OptimizerSpec(name="adamw", lr=1e-2, weight_decay=0.2)
    result = farflung.train(Net(), batch, steps=STEPS, optimizer=spec, lr_schedule=schedule, workers=2)
    assert different(result, dict(model.state_dict())) == []


def test_resumes_under_the_values_of_more_steps(tmp_path: Path) -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
        return lr_scheduler.ExponentialLR(optimizer, 0.9)

    first = farflung.train(Net(), batch, steps=5, optimizer=grouped, lr_schedule=schedule, workers=2, folder=tmp_path / "first")
    rest = farflung.train(Net(), batch, steps=STEPS, optimizer=grouped, lr_schedule=schedule, workers=3, resume=first.checkpoint)
    assert different(rest, plain_loop(grouped, STEPS, schedule)) == []


@pytest.mark.parametrize(
    ("schedule", "kind", "text"),
    [
        (
            lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=1),
            CaptureError,
            r"lr_schedule failed after step \d+ of \d+: ValueError: .*; make a scheduler that lasts for \d+ steps",
        ),
        (lr_scheduler.ReduceLROnPlateau, CaptureError, "lr_schedule failed: TypeError: .*metrics.*; pass a function of the step"),
        (lambda optimizer: "fast", CaptureError, "lr_schedule gave a str: return a factor of the step, or a scheduler"),
        (lambda step: 1 / (step - 3), CaptureError, r"lr_schedule\(3\) failed: ZeroDivisionError: "),
        (lambda step: float("inf"), InputError, "a schedule has the value inf: every value must be a finite number"),
        (
            3,
            InputError,
            "lr_schedule=3 is of the type int: pass a name, a ScheduleSpec, a function",
        ),
        (
            ScheduleSpec(weight_decay=CurveSpec(name="linear")),
            InputError,
            "weight_decay.* has nothing to change",
        ),
        (ScheduleSpec(name="wsd", decay=90), InputError, r"decay=90.* is longer than steps=4: shorten it"),
        (ScheduleSpec(name="linear", decay=2), InputError, r"decay=2.* means nothing with .*'linear'.*: use 'wsd'"),
    ],
)
def test_wrong_schedules(schedule: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        farflung.train(Net(), batch, steps=4, lr=0.1, lr_schedule=schedule)
