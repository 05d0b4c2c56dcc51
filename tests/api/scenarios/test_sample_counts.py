"""Samples are counted by the inputs' batch dimension, where they have one in common."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from farflung import train
from farflung.api.batches import batch_rows


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layer(x), y)


def test_records_count_samples() -> None:
    told: list[int] = []
    result = train(
        Loss(),
        lambda step, index: (torch.ones(8, 3), torch.zeros(8, dtype=torch.int64)),
        steps=2,
        micro_batches=2,
        workers=1,
        on_step=lambda record: told.append(record.samples),
    )
    assert [record.samples for record in result.records] == told == [16, 16]


@pytest.mark.parametrize(("shapes", "rows"), [(((8, 3), (8,)), 8), (((8, 3), (4,)), 1), (((), (5, 2)), 5), (((),), 1)])
def test_the_common_first_dimension(shapes: tuple[tuple[int, ...], ...], rows: int) -> None:
    graph: Any = SimpleNamespace(placeholders=[SimpleNamespace(outputs=[SimpleNamespace(shape=shape)]) for shape in shapes])
    assert batch_rows(graph) == rows
