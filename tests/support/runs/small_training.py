"""A small module with batches, and its training in both places: workers of this process, and workers of a ticket."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import farflung

#: For tests with the fixture ``place``: the ticket, or None.
PLACES = pytest.mark.parametrize("there", [False, True], ids=["workers", "ticket"])


class Net(nn.Module):
    """A tied weight, dropout and batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.mix, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.out.weight = self.mix.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.norm(self.up(x)).tanh()
        return functional.cross_entropy(self.out(x + self.drop(self.mix(x))), y)


def net() -> Net:
    torch.manual_seed(0)
    return Net().train()


def plain_net() -> Net:
    """Without batch statistics, so that a stage may have replicas."""
    module = Net()
    module.norm = nn.Identity()  # type: ignore[assignment]
    return module


def batch(step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(10 * step + micro_batch)
    return torch.randn(4, 6, generator=random), torch.randint(0, 8, (4,), generator=random)


def held_out(index: int) -> tuple[Tensor, Tensor]:
    return batch(1000 + index, 0)


def trained(ticket: str | None = None, **changed: Any) -> farflung.TrainResult:
    """A training of the module, here (without a ticket) or there."""
    settings: dict[str, Any] = {"steps": 4, "micro_batches": 2, "optimizer": "adamw", "lr": 1e-2, "seed": 3, "ticket": ticket}
    settings |= {} if ticket else {"workers": 2}
    module, batch_fn = changed.pop("module", None) or net(), changed.pop("batch_fn", batch)
    return farflung.train(module, batch_fn, **(settings | changed))


def same(one: farflung.TrainResult, other: farflung.TrainResult) -> bool:
    """Whether the weights are equal, bit for bit."""
    mine, yours = one.state_dict(), other.state_dict()
    return mine.keys() == yours.keys() and all(mine[name].tobytes() == yours[name].tobytes() for name in mine)
