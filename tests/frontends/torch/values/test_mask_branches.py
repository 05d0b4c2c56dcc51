"""A branch on whether a mask has an element is captured where both branches compute the same, and refused elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from farflung import capture, train
from farflung.errors import CaptureError
from farflung.job.spec import OptimizerSpec
from farflung.testing.reference import PlainSettings, plain_loop

Body = Callable[[Tensor, Tensor], Tensor]


class Net(nn.Module):
    """Scores, softmax and the sum of squares; ``body`` applies masks to the scores."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.body = nn.Linear(6, 6), body

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        scores = self.body(self.linear(x), padding)
        return torch.dropout(scores.softmax(-1), 0.1, self.training).square().sum()


def dropped(scores: Tensor, padding: Tensor) -> Tensor:
    """As FSMT: no mask where nothing is masked."""
    mask = padding.eq(1)
    if not mask.any():
        return scores
    return scores.view(2, 2, 6).masked_fill(mask.unsqueeze(1), -1e4).view(4, 6)


def twice(scores: Tensor, padding: Tensor) -> Tensor:
    first, second = padding.eq(1), padding.eq(2)
    if first.any():
        scores = scores.view(2, 2, 6).masked_fill(first.unsqueeze(1), -1e4).view(4, 6)
    if torch.any(second):
        scores = scores.view(2, 2, 6).masked_fill(second.unsqueeze(1), 3.0).view(4, 6)
    return scores


def batches(step: int, index: int) -> tuple[Tensor, Tensor]:
    """Some of them without any padding, of either kind."""
    made = torch.Generator().manual_seed(2 * step + index)
    padding = torch.randint(1, 4, (2, 6), generator=made) if index else torch.full((2, 6), step)
    return torch.randn(4, 6, generator=made), padding


@pytest.mark.parametrize("body", [dropped, twice])
def test_the_graph_trains_like_either_branch(body: Body) -> None:
    optimizer = OptimizerSpec(name="adamw", lr=1e-2)
    truth = plain_loop(Net(body), batches, steps=4, micro_batches=2, settings=PlainSettings(optimizer=optimizer, seed=3))
    result = train(Net(body), batches, steps=4, micro_batches=2, optimizer=optimizer, workers=2, seed=3)
    assert result.losses == truth.losses
    states = result.state_dict()
    assert [name for name, value in truth.states.items() if states[name].tobytes() != value.tobytes()] == []


def added(scores: Tensor, padding: Tensor) -> Tensor:
    mask = padding.eq(1)
    return scores + 1 if mask.any() else scores


def another_mask(scores: Tensor, padding: Tensor) -> Tensor:
    mask = padding.eq(1)
    return scores.view(2, 2, 6).masked_fill(padding.eq(2).unsqueeze(1), 0.0).view(4, 6) if mask.any() else scores


def both_empty(scores: Tensor, padding: Tensor) -> Tensor:
    first, second = padding.eq(1).any(), padding.eq(2).any()
    some, more = bool(first), bool(second)
    return scores if some or more else -scores


def many(scores: Tensor, padding: Tensor) -> Tensor:
    for value in range(4):
        mask = padding.eq(value)
        if mask.any():
            scores = scores.view(2, 2, 6).masked_fill(mask.unsqueeze(1), 0.0).view(4, 6)
    return scores


def without_gradient(scores: Tensor, padding: Tensor) -> Tensor:
    mask = padding.eq(1)
    if mask.any():
        with torch.no_grad():
            scores = scores.view(2, 2, 6).masked_fill(mask.unsqueeze(1), 0.0).view(4, 6)
    return scores


def another_constant(scores: Tensor, padding: Tensor) -> Tensor:
    return scores * (torch.tensor(2.0) if padding.eq(1).any() else torch.tensor(3.0))


@pytest.mark.parametrize("body", [added, another_constant, another_mask, both_empty, many, without_gradient])
def test_other_branches_are_refused_as_before(body: Body) -> None:
    with pytest.raises(CaptureError, match=r"test_mask_branches.py:\d+: .* depends on tensor data"):
        capture(Net(body), batches(0, 0))


class Filled(Net):
    """An empty mask gives ``token`` no gradient in one branch, and one of zeros in the other, with which weights decay."""

    def __init__(self) -> None:
        super().__init__(added)
        self.token = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        scores, mask = self.linear(x), padding.eq(1)
        if mask.any():
            scores = scores.view(2, 2, 6).masked_fill(mask.unsqueeze(1), self.token * 2).view(4, 6)
        return scores.square().sum()


class Marked(Net):
    """The branches write the same value to different buffers."""

    def __init__(self) -> None:
        super().__init__(added)
        self.some: Tensor
        self.none: Tensor
        self.register_buffer("some", torch.zeros(6))
        self.register_buffer("none", torch.zeros(6))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        (self.some if padding.eq(1).any() else self.none).copy_(x[0])
        return self.linear(x).square().sum()


@pytest.mark.parametrize("kind", [Filled, Marked])
def test_branches_that_change_other_states_are_refused(kind: type[Net]) -> None:
    with pytest.raises(CaptureError, match=r"test_mask_branches.py:\d+: .* depends on tensor data"):
        capture(kind(), batches(0, 0))


def test_an_assertion_about_a_mask_is_left_out() -> None:
    def asserted(scores: Tensor, padding: Tensor) -> Tensor:
        assert padding.ge(0).any(), "no padding"
        return scores

    assert "aten.any.default" not in {op.target for op in capture(Net(asserted), batches(0, 0)).ops}
