"""Values that a trace knows: what it must not compute for real."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from farflung.frontends.torch.capture import capture


class Divides(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = nn.Linear(2, 2), dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        least, minus = torch.full((), torch.iinfo(self.dtype).min, dtype=self.dtype), torch.full((), -1, dtype=self.dtype)
        return self.layer(x).square().mean() + torch.div(least, minus, rounding_mode="trunc")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_a_division_that_ends_the_process_is_not_computed(dtype: torch.dtype) -> None:
    graph = capture(Divides(dtype), (torch.ones(3, 2),))
    assert "aten.div.Tensor_mode" in {op.target for op in graph.ops}
