"""Stand-ins for sizes that the data decide: other uses are refused where they happen, and other calls stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from farflung import capture
from farflung.errors import CaptureError


class Net(nn.Module):
    """``use`` gets the rows and their counts by sign."""

    def __init__(self, use: Any) -> None:
        super().__init__()
        self.linear, self.use = nn.Linear(4, 4), use

    def forward(self, x: Tensor) -> Tensor:
        counts = (x[:, :2] > 0).sum(0).tolist()
        result: Tensor = self.use(self.linear(x), counts).square().sum()
        return result


@pytest.mark.parametrize(
    "use",
    [
        lambda x, counts: x * counts[0],
        lambda x, counts: torch.cat([part.exp() for part in x.split(counts)]),
        lambda x, counts: torch.cat(list(x.split(counts))),
        lambda x, counts: x.split(counts)[0],
        lambda x, counts: -x if counts == [3, 3] else x,
        lambda x, counts: -x if counts != [2, 4] else x,
        lambda x, counts: -x if x.split(counts)[0] else x,
    ],
)
def test_other_uses_of_sizes_are_refused(use: Any) -> None:
    with pytest.raises(CaptureError, match=r"test_row_groups.py:\d+: .*"):
        capture(Net(use), (torch.randn(6, 4),))


def test_other_calls_of_cat_stay_as_they_are() -> None:
    cat: Any = torch.cat  # its types know no "axis"
    graph = capture(Net(lambda x, counts: cat([x, x], axis=1)), (torch.randn(6, 4),))
    assert "aten.cat.default" in {op.target for op in graph.ops}
