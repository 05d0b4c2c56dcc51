"""``train`` with a codec of somebody else's that fails says which one, at which value and link."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from farflung import train
from farflung.codecs import CODECS, Payload
from farflung.codecs.dense import Cast
from farflung.errors import CodecError
from farflung.job.spec import SyncSpec


class Boom(Cast):
    name = "boom"

    def encode(self, array: Any) -> Payload:
        raise RuntimeError("no luck today")


@pytest.fixture
def boom(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    point = EntryPoint("boom", f"{__name__}:Boom", "farflung.codecs")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == "farflung.codecs" else [])
    CODECS.forget_plugins()
    yield
    CODECS.forget_plugins()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.body(x), y)


def batch(step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
    return torch.ones(16, 8), torch.ones(16, 8)


REST = "RuntimeError: no luck today; install what it lacks, or another version of it, or take another codec"


@pytest.mark.usefixtures("boom")
def test_between_stages() -> None:
    with pytest.raises(CodecError) as caught:
        train(Model(), batch, steps=1, workers=2, codec="boom", planner="equal_number")
    assert str(caught.value).startswith(f"codec 'boom' of the package '{__name__}:Boom' can't encode value ")
    assert " for the link from device-" in str(caught.value)
    assert str(caught.value).endswith(REST)


@pytest.mark.usefixtures("boom")
def test_between_replicas() -> None:
    sync = SyncSpec(strategy="ssgd", settings={"codec": "boom"})
    with pytest.raises(CodecError) as caught:
        train(Model(), batch, steps=1, workers=2, micro_batches=2, replicas=2, sync=sync)
    assert f"codec 'boom' of the package '{__name__}:Boom' can't encode what replica " in str(caught.value)
    assert " of stage 0 exchanges (" in str(caught.value)
