"""``farflung.train`` with replicas: exact sums are the one-worker run, strategies train."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from farflung import train
from farflung.api.training import TrainResult
from farflung.errors import InputError, PlanError
from farflung.job.spec import SyncSpec


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.body(x), y)


def batch(step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(10 * step + micro_batch)
    return torch.randn(5, 6, generator=random), torch.randint(0, 4, (5,), generator=random)


def run(workers: int, **changes: object) -> TrainResult:
    torch.manual_seed(0)
    settings: dict[str, object] = {"steps": 3, "micro_batches": 4, "lr": 0.1, "workers": workers} | changes
    return train(Model(), batch, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("workers", "replicas"), [(2, 2), (4, 2), (3, 3)])
def test_replicas_give_the_result_of_one_worker(workers: int, replicas: int) -> None:
    one, several = run(1), run(workers, replicas=replicas)
    assert all(len(stage.devices) == replicas for stage in several.plan.stages)
    assert one.losses == several.losses
    for name, value in one.state_dict().items():
        assert value.tobytes() == several.state_dict()[name].tobytes(), name


def test_strategies_by_name_and_with_settings() -> None:
    plain = run(2, replicas=2, sync="ssgd")
    rounds = run(2, replicas=2, sync=SyncSpec(strategy="local_sgd", settings={"sync_every": 3}))
    one = run(1)
    for name, value in one.state_dict().items():
        np.testing.assert_allclose(plain.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert any(rounds.state_dict()[name].tobytes() != value.tobytes() for name, value in plain.state_dict().items())
    assert rounds.plan.sync is not None


def test_what_can_not_be_shared() -> None:
    with pytest.raises(InputError, match="replicas must be at least 1, got 0"):
        run(2, replicas=0)
    with pytest.raises(PlanError, match="replicas=4 needs as many devices, there are 2"):
        run(2, replicas=4)
    with pytest.raises(InputError, match=r"needs replicas to agree, and replicas=1"):
        run(2, sync="local_sgd")
    with pytest.raises(InputError, match="unknown sync strategy 'locl_sgd': did you mean 'local_sgd'"):
        run(2, replicas=2, sync="locl_sgd")
