"""Top-k with compact positions and with those of FusionLLM sends the same values, so training has the same bits."""

from __future__ import annotations

import torch
from torch import nn

import farflung


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).square().mean()  # type: ignore[no-any-return]


def losses(codec: str) -> list[float]:
    torch.manual_seed(0)

    def batch(step: int, micro_batch: int) -> tuple[torch.Tensor]:
        return (torch.randn(8, 16, generator=torch.Generator().manual_seed(10 * step + micro_batch)),)

    return list(farflung.train(Wide(), batch, steps=3, micro_batches=2, lr=0.1, workers=2, codec=codec).losses)


def test_both_formats_of_top_k_train_alike() -> None:
    compact, paper, dense = losses("topk:ratio=8"), losses("topk:ratio=8,format=paper"), losses("identity")
    assert compact == paper
    assert compact != dense
