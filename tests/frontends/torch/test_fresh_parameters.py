"""A forward that replaces a part of the module at the start of its first step, as BigBird does, trains like the plain loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from farflung import capture, train
from farflung.errors import CaptureError
from farflung.job.spec import OptimizerSpec
from farflung.testing.reference import PlainSettings, plain_loop


class Sparse(nn.Module):
    """A part for long rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.blocks = nn.Linear(8, 8), 4

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x).unfold(-1, self.blocks, self.blocks).flatten(-2)
        return result


class Full(nn.Module):
    """A part for short rows; it has a linear layer and a normalization before it gets another linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(8, 8), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.dropout(self.linear(x))
        return result


class Switching(nn.Module):
    """``keep``: the new part gets the linear layer of the old one. ``always``: it is replaced in each step."""

    def __init__(self, *, keep: bool = True, always: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.part: Sparse | Full = Sparse()
        self.kind, self.keep, self.always = "sparse", keep, always

    def forward(self, x: Tensor) -> Tensor:
        if self.always or self.kind == "sparse":
            full = Full()
            if self.keep:
                full.linear = self.part.linear
            self.part, self.kind = full, "full"
        return torch.dropout(self.part(x), 0.2, self.training).square().mean()


def batches(step: int, index: int) -> tuple[Tensor]:
    return (torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * step + index)),)


def test_a_part_that_is_replaced_once() -> None:
    optimizer = OptimizerSpec(name="adamw", lr=1e-2)
    truth = plain_loop(Switching(), batches, steps=3, micro_batches=2, settings=PlainSettings(optimizer=optimizer, seed=3))
    module = Switching()
    result = train(module, batches, steps=3, micro_batches=2, optimizer=optimizer, workers=2, seed=3)
    assert result.losses == truth.losses
    states = result.state_dict()
    assert [name for name, value in truth.states.items() if states[name].tobytes() != value.tobytes()] == []
    assert isinstance(module.part, Sparse)
    assert (module.kind, module.part.blocks) == ("sparse", 4)


def test_a_part_that_is_replaced_in_each_step() -> None:
    with pytest.raises(CaptureError, match=r"module \(root\) replaces self.part, .* call the module once on a batch"):
        capture(Switching(always=True), batches(0, 0))


def test_initial_values_that_are_made_in_the_forward() -> None:
    with pytest.raises(CaptureError, match=r"makes a parameter of shape \(8, 8\) and computes with its initial values"):
        capture(Switching(keep=False), batches(0, 0))


class Halved(nn.Module):
    """The first call with the new parameter gives several tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        first, second = nn.Linear(8, 8).weight.chunk(2)
        return (self.linear(x) * (x @ (first + second).T)).square().mean()


def test_parts_of_initial_values_that_are_made_in_the_forward() -> None:
    with pytest.raises(CaptureError, match=r"makes a parameter of shape \(8, 8\) and computes with its initial values"):
        capture(Halved(), batches(0, 0))


class Late(Switching):
    """Part of the first step is computed with the old part."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.part(x))


def test_a_first_step_that_differs_from_later_ones() -> None:
    with pytest.raises(CaptureError, match="its first step differs from those after it"):
        capture(Late(), batches(0, 0))
