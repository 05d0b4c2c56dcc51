"""Models that draw random numbers inside: fills of new tensors, samples, and distributions of PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, distributions, nn
from torch.nn import functional as F

from farflung import train
from farflung.job.spec import OptimizerSpec
from farflung.testing.reference import PlainSettings, plain_loop

NOISES: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform_": lambda x: torch.empty_like(x).uniform_(0.9, 1.1),
    "normal_": lambda x: torch.empty_like(x).normal_(1.0, 0.1),
    "exponential_": lambda x: torch.empty_like(x).exponential_().log(),
    "geometric_": lambda x: torch.empty_like(x).geometric_(0.3),
    "log_normal_": lambda x: torch.empty_like(x).log_normal_(0.0, 0.1),
    "cauchy_": lambda x: torch.empty_like(x).cauchy_().clamp(-2, 2),
    "multinomial": lambda x: x.gather(1, torch.multinomial(x.softmax(1), 2)).repeat(1, 4),
    "poisson": lambda x: torch.poisson(x.exp()),
    "normal of tensors": lambda x: torch.normal(x, x.exp()),
    "normal of means": lambda x: torch.normal(x, 0.1),
    "normal of deviations": lambda x: torch.normal(0.0, x.exp()),
    "gumbel_softmax": F.gumbel_softmax,
    "Normal": lambda x: distributions.Normal(x, x.exp()).rsample(),
    "Bernoulli": lambda x: distributions.Bernoulli(logits=x).sample(),  # type: ignore[no-untyped-call]
    "Categorical": lambda x: distributions.Categorical(logits=x).sample().float()[:, None],  # type: ignore[no-untyped-call]
    "Laplace": lambda x: distributions.Laplace(x, x.exp()).rsample(),
    "Exponential": lambda x: distributions.Exponential(x.exp()).rsample(),
}


class Noisy(nn.Module):
    def __init__(self, noise: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.noise = nn.Linear(8, 8), nn.Linear(8, 8), noise

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        result: Tensor = self.second(hidden * self.noise(hidden)).square().mean()
        return result


def batches(step: int, index: int) -> tuple[Tensor]:
    return (torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * step + index)),)


@pytest.mark.parametrize("name", NOISES)
def test_trains_like_the_plain_loop(name: str) -> None:
    optimizer = OptimizerSpec(name="adamw", lr=1e-2)
    settings = PlainSettings(optimizer=optimizer, seed=3)
    truth = plain_loop(Noisy(NOISES[name]), batches, steps=2, micro_batches=2, settings=settings)
    result = train(Noisy(NOISES[name]), batches, steps=2, micro_batches=2, optimizer=optimizer, workers=2, seed=3)
    assert result.losses == truth.losses
    states = result.state_dict()
    assert [key for key, value in truth.states.items() if states[key].tobytes() != value.tobytes()] == []


def test_the_checks_of_distributions_are_as_before() -> None:
    with pytest.raises(ValueError, match="invalid values"):
        distributions.Normal(torch.zeros(2), torch.full((2,), -1.0))
