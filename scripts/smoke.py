"""Check an installation: import farflung, train a tiny model with two workers, and compare it with one worker bit by bit."""

from __future__ import annotations

import platform
import sys

import torch

import farflung


class Model(torch.nn.Sequential):
    """Predicts the sum of its inputs; the forward returns the loss."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (super().forward(x) - x.sum(1, keepdim=True)).square().mean()


def model() -> Model:
    return Model(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))


def batch(step: int, micro_batch: int) -> tuple[torch.Tensor]:
    return (torch.randn(16, 8, generator=torch.Generator().manual_seed(2 * step + micro_batch)),)


def main() -> None:
    """Train twice and exit with status 1 if the results differ or the loss does not fall."""
    one, two = (
        farflung.train(model, batch, steps=40, micro_batches=2, optimizer="adamw", lr=1e-2, workers=workers) for workers in (1, 2)
    )
    weights, expected = two.state_dict(), one.state_dict()
    equal = one.losses == two.losses and all((weights[name] == expected[name]).all() for name in expected)
    falls = two.losses[-1] < two.losses[0]
    verdict = "equal to one worker" if equal else "NOT equal to one worker"
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, farflung {farflung.__version__}: "
        f"{len(two.plan.stages)} stages, loss {two.losses[0]:.2f} -> {two.losses[-1]:.2f}, {verdict}"
    )
    sys.exit(not (equal and falls))


if __name__ == "__main__":
    main()
