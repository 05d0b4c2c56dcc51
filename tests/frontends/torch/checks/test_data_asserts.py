"""``assert`` statements on data are left out of a trace, and stay in the module."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from farflung import capture
from farflung.errors import CaptureError


class Checked(nn.Module):
    """The second check spans lines, as in I-BERT; a function of its own has the third one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        assert x.max().item() <= 100, "too large"
        assert x.isnan().sum() == 0, "not a number"
        return positive(self.linear(x)).mean()


def positive(x: Tensor) -> Tensor:
    assert (x * x >= 0).all()
    return x.square()


class Branching(Checked):
    def forward(self, x: Tensor) -> Tensor:
        assert x.max().item() <= 100
        if x.sum() > 0:
            return x.sum()
        return super().forward(x)


def test_checks_are_left_out_of_the_graph_only() -> None:
    module = Checked()
    graph = capture(module, (torch.ones(3, 4),))
    assert [op.target for op in graph.ops] == [
        "farflung.input",
        "aten.linear.default",
        "aten.square.default",
        "aten.mean.default",
    ]
    with pytest.raises(AssertionError, match="too large"):
        module(torch.full((3, 4), 101.0))


def test_a_branch_on_data_is_refused_as_before() -> None:
    with pytest.raises(CaptureError, match=r"if x.sum\(\) > 0: depends on tensor data"):
        capture(Branching(), (torch.ones(3, 4),))
    with pytest.raises(AssertionError):
        Branching()(torch.full((3, 4), 101.0))
