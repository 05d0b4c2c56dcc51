"""Factories that read back numbers which they computed from numbers alone; weights and draws stay unknown."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from farflung.errors import CaptureError
from farflung.frontends.torch.recorder import record


def read(make: Callable[[], object]) -> object:
    """What ``make`` gives inside a factory."""
    found: list[object] = []

    def factory() -> nn.Module:
        found.append(make())
        return nn.Linear(2, 2)

    record(factory)
    return found[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: [one.item() for one in torch.linspace(0, 0.3, 4)],
        lambda: [one.tolist() for one in torch.linspace(0, 0.3, 4).split([1, 3])],
        lambda: [row.tolist() for row in torch.arange(6).view(2, 3).T.float() * 0.1],
        lambda: int((torch.ones(3).cumsum(0) > 1.5).sum()),
    ],
)
def test_numbers_are_those_of_a_run_with_values(make: Callable[[], object]) -> None:
    assert read(make) == make()


def changed() -> object:
    rates = torch.linspace(0, 1, 3)
    rates[1] = 5.0
    return rates.tolist()


@pytest.mark.parametrize(
    "make",
    [
        changed,
        lambda: torch.rand(2).tolist(),
        lambda: torch.empty(2).tolist(),
        lambda: torch.ones(2).new_empty(2).tolist(),
        lambda: nn.Linear(2, 2).weight.sum().item(),
        lambda: float(torch.zeros(5000)[0]),
    ],
)
def test_what_was_written_drawn_or_is_large_has_no_value(make: Callable[[], object]) -> None:
    with pytest.raises(CaptureError, match="the factory can't run without memory"):
        read(make)
