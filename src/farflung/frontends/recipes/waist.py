"""A waist: values go through a subspace of few dims and back, so a cut there sends few numbers, without a codec.

It changes the model, so a job must ask for it (``waist`` of the recipe ``gpt``). A planner finds the cut by itself, because it is
the smallest; and since the waist is part of the graph, training, evaluation, checkpoints and exports all have it. Learned: two
matrices that are trained. Random: one matrix that is not, ``x A^T A``, whose rows of normal numbers with variance 1 / width
are nearly orthonormal while there are few of them. After S. Ramasinghe et al., "Protocol Models: Scaling Decentralized Training
with Communication-Efficient Model Parallelism", 2025, who confine weights to the subspace; here values lose what lies outside.
Cost: 4 x width x dims FLOPs for each token, backward twice that.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Waist"]


class _Down(nn.Module):
    """To ``dims`` numbers."""

    def __init__(self, width: int, dims: int, *, learned: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dims, width), requires_grad=learned)
        nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


class _Up(nn.Module):
    """Back to ``width`` numbers."""

    def __init__(self, width: int, dims: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, dims))
        nn.init.normal_(self.weight, std=dims**-0.5)

    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.linear(z, self.weight)


class _Back(nn.Module):
    """By the transpose of the matrix that led down."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.linear(z, self.weight.t())


class Waist(nn.Module):
    """``(..., width)`` -> ``(..., dims)`` -> ``(..., width)``; put it where the model shall be cut.

    ``learned``: both matrices are trained; else one random matrix stays as it is, and its transpose leads back.
    """

    def __init__(self, width: int, dims: int, *, learned: bool = True) -> None:
        super().__init__()
        self.down = _Down(width, dims, learned=learned)
        self.up = _Up(width, dims) if learned else _Back(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.up(self.down(x))
        return result
