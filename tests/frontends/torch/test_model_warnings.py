"""``train`` shows the warnings of the model and of its loss, once each, and none of the trace."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from linecache import getline
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from farflung import train
from farflung.api import capture

BATCH = (torch.zeros(4, 3), torch.zeros(4))


class Talkative(nn.Linear):
    """A loss, and a warning in each forward."""

    def forward(self, x: Tensor) -> Tensor:
        warnings.warn("the model is old", stacklevel=1)
        return super().forward(x).mean()


@pytest.mark.parametrize("loss", [nn.functional.mse_loss, nn.MSELoss()])
def test_a_loss_that_warns_of_the_target(loss: Callable[..., Any]) -> None:
    with pytest.warns(UserWarning, match="target size") as heard:
        train(nn.Linear(3, 4), [BATCH], loss=loss, steps=2, evaluate=[BATCH])
    lines = [getline(one.filename, one.lineno).strip() for one in heard]
    assert lines == ["train(nn.Linear(3, 4), [BATCH], loss=loss, steps=2, evaluate=[BATCH])"]


def test_a_forward_that_warns() -> None:
    with pytest.warns(UserWarning, match="the model is old") as heard:
        train(Talkative(3, 1), [(torch.zeros(4, 3),)], loss=None, steps=1)
    assert [(one.filename, one.lineno) for one in heard] == [(__file__, Talkative.forward.__code__.co_firstlineno + 1)]


def test_filters_of_the_caller_apply() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(Talkative(3, 1), [(torch.zeros(4, 3),)], loss=None, steps=1)
    with pytest.raises(UserWarning, match="the model is old"):  # as pytest's settings want it
        train(Talkative(3, 1), [(torch.zeros(4, 3),)], loss=None, steps=1)


def test_a_capture_alone_is_silent() -> None:
    assert capture(Talkative(3, 1), (torch.zeros(4, 3),)).ops
