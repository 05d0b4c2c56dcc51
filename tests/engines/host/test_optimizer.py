"""Optimizers on the host make the steps of PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from farflung.engines.host.optimizer import NamedOptimizer, RuleOptimizer, stage_optimizer
from farflung.engines.torch.optimizers.built_in import RuleOptimizer as TorchRuleOptimizer
from farflung.engines.torch.optimizers.built_in import plain_optimizer as torch_stage_optimizer
from farflung.engines.torch.optimizers.update_programs import missing_program
from farflung.errors import CheckpointError, GraphError, InputError
from farflung.frontends.optimizers.capture import Trained, capture_rules
from farflung.graph.ir import TensorSpec
from farflung.job.spec import OptimizerSpec
from farflung.optim import RuleBook
from tests.support.engines.optimizers import OPTIMIZERS

SHAPE = (6, 5)
SPEC = OptimizerSpec(name="captured")
STEPS = 14


def gradient(step: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(100 + step))


def start() -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))


def book_of(name: str) -> RuleBook:
    made = OPTIMIZERS[name](
        [torch.nn.Parameter(torch.zeros(SHAPE)), torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2))]
    )
    optimizer = made[0] if isinstance(made, list) else made
    settings = next(group for group in optimizer.param_groups if group["params"])
    item = Trained(group=0, optimizer=optimizer, settings=settings, dtype=torch.float32, shape=SHAPE)
    declared = TensorSpec(dtype="float32", shape=SHAPE)
    return capture_rules([item], missing=lambda rule, _: missing_program(rule, declared, [(0.01,)] * STEPS))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rules(name: str) -> None:
    book = book_of(name)
    expected, found = torch.nn.Parameter(start()), start().numpy()
    reference, optimizer = TorchRuleOptimizer(SPEC, book, {"w": expected}), RuleOptimizer(SPEC, book, {"w": found})
    for step in range(STEPS):
        expected.grad = gradient(step)
        reference.step([0.01])
        optimizer.step({"w": gradient(step).numpy()}, [0.01])
    # Muon multiplies matrices of 16-bit numbers.
    assert np.abs(found - expected.detach().numpy()).max() < (2e-3 if name.startswith("Muon") else 2e-6)
    assert not np.array_equal(found, start().numpy())
    given, made = reference.export(), optimizer.export()
    assert {key: (value.dtype, value.shape) for key, value in made.items()} == {
        key: (value.dtype, value.shape) for key, value in given.items()
    }


@pytest.mark.parametrize(
    "spec",
    [
        OptimizerSpec(name="sgd", lr=0.1),
        OptimizerSpec(name="sgd", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        OptimizerSpec(name="adamw", lr=0.01),
        OptimizerSpec(name="adamw", lr=0.01, weight_decay=0.0),
    ],
    ids=["sgd", "sgd-momentum", "adamw", "adamw-without-decay"],
)
def test_named_ones_go_on_with_the_states_of_pytorch(spec: OptimizerSpec) -> None:
    expected, found = torch.nn.Parameter(start()), start().numpy()
    reference, optimizer = torch_stage_optimizer(spec, {"w": expected}), stage_optimizer(spec, {"w": found})
    assert isinstance(optimizer, NamedOptimizer)
    for step in range(6):
        expected.grad = gradient(step)
        reference.step([0.01])
        optimizer.step({"w": gradient(step).numpy()}, [0.01])
        optimizer.load(reference.export())
    assert np.abs(found - expected.detach().numpy()).max() < 1e-6
    with pytest.raises(InputError, match=r"2 learning rates for 1 groups"):
        optimizer.step({}, [0.1, 0.2])


@pytest.mark.parametrize(
    ("states", "why"),
    [
        ({"step/other": np.zeros(())}, "belongs to no trained parameter of this stage"),
        ({"step/w": np.zeros(())}, "optimizer state 'exp_avg' of parameter 'w' is missing, or of another optimizer"),
        (
            {"step/w": np.zeros(()), "exp_avg/w": np.zeros(5), "exp_avg_sq/w": np.zeros(SHAPE)},
            r"has shape \(5,\), its rule \(6, 5\)",
        ),
    ],
)
def test_states_of_something_else(states: dict[str, Any], why: str) -> None:
    optimizer = RuleOptimizer(SPEC, book_of("Adam"), {"w": start().numpy()})
    with pytest.raises(CheckpointError, match=why):
        optimizer.load({key: value.astype(np.float32) for key, value in states.items()})


def test_a_parameter_without_a_rule_is_named() -> None:
    with pytest.raises(GraphError, match=r"have none for parameter 'v' \(float32\[4\]\): submit again"):
        RuleOptimizer(SPEC, book_of("Adam"), {"v": np.zeros(4, np.float32)})
