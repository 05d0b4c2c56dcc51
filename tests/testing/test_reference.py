"""The judge is itself judged: against loops written out in full."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from farflung.errors import InputError
from farflung.job.spec import GroupSpec, OptimizerSpec
from farflung.testing.reference import PlainSettings, plain_loop


class Net(nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(p), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.body(x), y)


def batch(step: int, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(step * 10 + index)
    return torch.randn(6, 4, generator=g), torch.randint(0, 3, (6,), generator=g)


def net(p: float = 0.0) -> Net:
    torch.manual_seed(0)
    return Net(p)


def test_a_loss_beside_the_model_is_that_of_a_wrapper() -> None:
    module, twin = net(), net()
    inner = module.body
    found = plain_loop(inner, batch, steps=3, micro_batches=2, loss=F.cross_entropy)
    wrapped = plain_loop(twin, batch, steps=3, micro_batches=2)
    assert found.losses == wrapped.losses
    assert all(np.array_equal(value, wrapped.states[f"body.{name}"]) for name, value in found.states.items())
    with pytest.raises(InputError, match=r"^loss=CrossEntropyLoss is a class: pass an instance, CrossEntropyLoss\(\)$"):
        plain_loop(inner, batch, steps=1, micro_batches=1, loss=nn.CrossEntropyLoss)


def test_is_the_loop_that_everybody_writes() -> None:
    spec = OptimizerSpec(name="adamw", lr=1e-2, clip_norm=0.2)
    module = net()
    twin = copy.deepcopy(module)
    found = plain_loop(module, batch, steps=3, micro_batches=2, settings=PlainSettings(optimizer=spec))
    optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-2)
    losses, gradients = [], {}
    for step in range(3):
        micro = []
        for index in range(2):
            loss = twin(*batch(step, index))
            (loss / 2).backward()
            micro.append(loss.item())
        losses.append(tuple(micro))
        gradients = {name: p.grad.clone().numpy() for name, p in twin.named_parameters() if p.grad is not None}
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.2)
        optimizer.step()
        optimizer.zero_grad()
    assert found.micro_losses == tuple(losses)
    assert found.losses == tuple(a * 0.5 + b * 0.5 for a, b in losses)
    assert found.gradients.keys() == gradients.keys()
    assert all(np.array_equal(value, found.gradients[name]) for name, value in gradients.items())
    expected = twin.state_dict()
    assert found.states.keys() == expected.keys()
    assert all(np.array_equal(value.numpy(), found.states[name]) for name, value in expected.items())


Factory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def momentum_and_rms(params: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(params[:2], lr=0.1, momentum=0.9), torch.optim.RMSprop(params[2:], lr=1e-2)]


@pytest.mark.parametrize(
    ("given", "make"),
    [
        (OptimizerSpec(name="nadam", lr=1e-2), lambda params: torch.optim.NAdam(params, lr=1e-2)),
        (OptimizerSpec(name="rmsprop", lr=1e-2, settings={"alpha": 0.9}), lambda p: torch.optim.RMSprop(p, lr=1e-2, alpha=0.9)),
        (OptimizerSpec(name="adamw", lr=1e-2, settings={"amsgrad": True}), lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True)),
        (
            OptimizerSpec(name="sgd", lr=0.1, groups=(GroupSpec(match="body.4", name="nadam", lr=0.05),)),
            lambda p: [torch.optim.SGD(p[:-2], lr=0.1), torch.optim.NAdam(p[-2:], lr=0.05)],
        ),
        ("adamw", lambda params: torch.optim.AdamW(params, lr=OptimizerSpec(name="adamw").lr)),
        (momentum_and_rms, momentum_and_rms),
    ],
)
def test_the_optimizer_is_the_given_one(given: Any, make: Factory) -> None:
    module = net()
    twin = copy.deepcopy(module)
    plain_loop(module, batch, steps=4, micro_batches=1, settings=PlainSettings(optimizer=given))
    made: Any = make(list(twin.parameters()))
    for step in range(4):
        twin(*batch(step, 0)).backward()
        for optimizer in made if isinstance(made, list) else [made]:
            optimizer.step()
            optimizer.zero_grad()
    assert all(torch.equal(value, twin.state_dict()[name]) for name, value in module.state_dict().items())


def test_parameters_that_no_optimizer_holds_stay() -> None:
    module = net()
    kept = module.body[0].weight.detach().clone()
    settings = PlainSettings(optimizer=lambda params: torch.optim.NAdam(params[1:], lr=1e-2))
    assert "body.0.weight" not in plain_loop(module, batch, steps=2, micro_batches=1, settings=settings).gradients
    assert torch.equal(module.body[0].weight, kept)


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(InputError, match="optimizer: pass an OptimizerSpec, an optimizer, or a function that returns one"):
        plain_loop(net(), batch, steps=1, micro_batches=1, settings=PlainSettings(optimizer=lambda params: 3))
    with pytest.raises(InputError, match="optimizer: pass an OptimizerSpec"):
        plain_loop(net(), batch, steps=1, micro_batches=1, settings=PlainSettings(optimizer=OptimizerSpec(name="captured")))


def test_a_delayed_update_applies_gradients_one_step_late() -> None:
    """w of (w - x)^2 / 2 under SGD with rate 1/4: the gradient of step n is w(n) - x(n), and w(n + 2) has it."""
    module, targets = Point(), [4.0, 8.0, -2.0, 1.0]
    settings = PlainSettings(optimizer=OptimizerSpec(name="sgd", lr=0.25, delayed=True))
    found = plain_loop(module, lambda step, _: (torch.tensor(targets[step]),), steps=4, micro_batches=1, settings=settings)
    used = [0.0, 0.0, 1.0, 3.0]
    assert found.losses == tuple((w - x) ** 2 / 2 for w, x in zip(used, targets, strict=True))
    last = used[3] - 0.25 * (used[2] - targets[2])
    assert found.states["w"] == last - 0.25 * (used[3] - targets[3])


class Point(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.w - x) ** 2 / 2


def test_uses_of_a_tied_parameter_are_added_in_program_order() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(5, 5)
            self.b = self.a

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(torch.tanh(self.a(x)), self.b.weight * 1).square().sum()

    torch.manual_seed(1)
    module = Tied()
    weight, bias = module.a.weight.detach(), module.a.bias.detach()
    xs = [torch.randn(3, 5, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    first, second = weight.clone().requires_grad_(), weight.clone().requires_grad_()
    for x in xs:
        (F.linear(torch.tanh(F.linear(x, first, bias)), second * 1).square().sum() * (1 / 3)).backward()
    assert first.grad is not None
    assert second.grad is not None
    found = plain_loop(module, lambda step, index: (xs[index],), steps=1, micro_batches=3)
    assert found.gradients.keys() == {"a.weight", "a.bias"}
    assert found.states.keys() == {"a.weight", "a.bias"}
    assert np.array_equal(found.gradients["a.weight"], (first.grad + second.grad).numpy())


def test_random_numbers_depend_on_the_seed_only() -> None:
    def losses(seed: int) -> tuple[float, ...]:
        torch.randn(seed + 1)
        return plain_loop(net(0.5), batch, steps=2, micro_batches=1, settings=PlainSettings(seed=seed)).losses

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_weights_rates_and_frozen_groups() -> None:
    module = net()
    before = copy.deepcopy(module.state_dict())
    spec = OptimizerSpec(lr=9.0, groups=(GroupSpec(match=r"^body\.4\.", frozen=True),))
    settings = PlainSettings(optimizer=spec, weights=(0.25, 0.75), rates=lambda step: (0.0, 0.1))
    found = plain_loop(module, batch, steps=1, micro_batches=2, settings=settings)
    a, b = found.micro_losses[0]
    assert found.losses == (a * 0.25 + b * 0.75,)
    assert "body.4.weight" not in found.gradients
    assert np.array_equal(found.states["body.4.weight"], before["body.4.weight"].numpy())
    expected = before["body.0.weight"].numpy() - np.float32(0.1) * found.gradients["body.0.weight"]
    np.testing.assert_allclose(found.states["body.0.weight"], expected, rtol=1e-6)


def test_batches_by_keyword_and_losses_in_objects() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, *, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.net(x, y)}

    found = plain_loop(Wrapped(), lambda step, index: dict(zip("xy", batch(step, index), strict=True)), steps=1, micro_batches=1)
    assert found.losses == plain_loop(net(), batch, steps=1, micro_batches=1).losses


def test_refusals() -> None:
    with pytest.raises(InputError, match="1 weights for 2 micro-batches"):
        plain_loop(net(), batch, steps=1, micro_batches=2, settings=PlainSettings(weights=(1.0,)))
    frozen = OptimizerSpec(groups=(GroupSpec(match=".", frozen=True),))
    with pytest.raises(InputError, match="no parameter to train: all are frozen"):
        plain_loop(net(), batch, steps=1, micro_batches=1, settings=PlainSettings(optimizer=frozen))
