"""Statements that only check data are left out of a trace, and stay in the module."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from farflung import capture
from farflung.errors import CaptureError


class Checked(nn.Module):
    """The second check spans lines, as in I-BERT; a function of its own has the third one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        assert x.max().item() <= 100, "too large"
        assert x.isnan().sum() == 0, "not a number"
        return positive(self.linear(x)).mean()


def positive(x: Tensor) -> Tensor:
    assert (x * x >= 0).all()
    return x.square()


class Branching(Checked):
    def forward(self, x: Tensor) -> Tensor:
        assert x.max().item() <= 100
        if x.sum() > 0:
            return x.sum()
        return super().forward(x)


def test_checks_are_left_out_of_the_graph_only() -> None:
    module = Checked()
    graph = capture(module, (torch.ones(3, 4),))
    assert [op.target for op in graph.ops] == [
        "farflung.input",
        "aten.linear.default",
        "aten.square.default",
        "aten.mean.default",
    ]
    with pytest.raises(AssertionError, match="too large"):
        module(torch.full((3, 4), 101.0))


def test_a_branch_on_data_is_refused_as_before() -> None:
    with pytest.raises(CaptureError, match=r"if x.sum\(\) > 0: depends on tensor data"):
        capture(Branching(), (torch.ones(3, 4),))
    with pytest.raises(AssertionError):
        Branching()(torch.full((3, 4), 101.0))


class Guarded(Checked):
    """Two guards on data as in ``Wav2Vec2ForCTC``, the second one under ``elif``, and one on a shape."""

    def forward(self, x: Tensor, limit: int | None = 9) -> Tensor:
        if x.shape[1] != 4:
            raise ValueError("4 features, please")
        if limit is not None and x.max() >= limit:
            raise ValueError(f"must be < {limit}")
        if limit is None:
            x = x + 1
        elif (
            x.min()
            < -limit
        ):  # fmt: skip
            raise ValueError("too small")
        return super().forward(x)


def test_guards_that_only_raise_are_left_out_of_the_graph_only() -> None:
    module = Guarded()
    graph = capture(module, (torch.ones(3, 4),))
    assert [op.target for op in graph.ops][1:] == ["aten.linear.default", "aten.square.default", "aten.mean.default"]
    with pytest.raises(CaptureError, match="4 features, please"):
        capture(module, (torch.ones(3, 5),))
    for value, text in ((9.0, "must be < 9"), (-10.0, "too small")):
        with pytest.raises(ValueError, match=text):
            module(torch.full((3, 4), value))


class Counting(Checked):
    def forward(self, x: Tensor) -> Tensor:
        if (most := x.max()) > 9:
            raise ValueError("too large")
        return super().forward(x / most)


class Alternative(Checked):
    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 9:
            raise ValueError("too large")
        else:  # noqa: RET506 - the case that is tested
            return super().forward(x)


class Falling(Checked):
    """The error of a check decides what is computed."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            if x.max() > 9:
                raise ValueError("too large")
        except ValueError:
            return super().forward(x / 9)
        return super().forward(x)


@pytest.mark.parametrize("kind", [Counting, Alternative, Falling])
def test_guards_that_do_more_are_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(CaptureError, match=r"x.max\(\)\)? > 9: depends on tensor data"):
        capture(kind(), (torch.ones(3, 4),))
