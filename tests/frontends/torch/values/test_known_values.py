"""Values that a trace knows: what it must not compute for real."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from farflung.errors import CaptureError
from farflung.frontends.torch.capture import capture
from farflung.graph.ir import Graph


class Divides(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = nn.Linear(2, 2), dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        least, minus = torch.full((), torch.iinfo(self.dtype).min, dtype=self.dtype), torch.full((), -1, dtype=self.dtype)
        return self.layer(x).square().mean() + torch.div(least, minus, rounding_mode="trunc")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_a_division_that_ends_the_process_is_not_computed(dtype: torch.dtype) -> None:
    graph = capture(Divides(dtype), (torch.ones(3, 2),))
    assert "aten.div.Tensor_mode" in {op.target for op in graph.ops}


class Indexes(nn.Module):
    def __init__(self, index: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.index = nn.Linear(2, 2), index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[self.index()].square().mean()


def indexed(index: Callable[[], torch.Tensor]) -> Graph:
    return capture(Indexes(index), (torch.ones(6, 2),))


@pytest.mark.parametrize(
    ("index", "row"),
    [
        (lambda: torch.full((), 3), 3),
        (lambda: torch.arange(5)[4], 4),
        (lambda: torch.arange(6).sum() % 4, 3),
        (lambda: (flags := torch.arange(4).bool()).sum() + (~flags).sum() + flags.sum() - 6, 1),
        (lambda: torch.arange(5)[torch.zeros_like(torch.arange(5)[4]) + 2], 2),
        (lambda: torch.full((), 2) if torch.arange(3).eq(1).any() else torch.full((), 1), 2),
        (lambda: torch.full((), len(torch.arange(4).tolist())), 4),
    ],
)
def test_a_known_index_is_a_number(index: Callable[[], torch.Tensor], row: int) -> None:
    (found,) = [op.args[2] for op in indexed(index).ops if op.target == "aten.select.int"]
    assert found == row


def known() -> torch.Tensor:
    return torch.arange(3)[1]


@pytest.mark.parametrize(
    "index",
    [
        lambda: torch.randint_like(known(), 3),
        lambda: torch.rand_like(known(), dtype=torch.float32).long(),
        lambda: torch.randint(0, 3, ()),
        lambda: torch.randperm(3)[0],
        lambda: torch.multinomial(torch.arange(3).float(), 1)[0],
        lambda: functional.dropout(torch.arange(3).float(), 0.5).long()[1],
        lambda: known().clone().random_(3),
        lambda: torch.empty_like(known()),
        lambda: known().new_empty(()),
        lambda: torch.arange(3).new_empty_strided((2,), (1,))[0],
        lambda: torch.empty_strided((2,), (1,), dtype=torch.int64)[0],
    ],
)
def test_random_and_unset_values_are_no_constants(index: Callable[[], torch.Tensor]) -> None:
    """Each step of an eager run reads others. The generator of the caller does not move on either."""
    module, before = Indexes(index), torch.get_rng_state()
    with pytest.raises(CaptureError, match="depends on tensor data"):
        capture(module, (torch.ones(6, 2),))
    assert torch.equal(torch.get_rng_state(), before)


def given_another_memory() -> torch.Tensor:
    index = known().clone()
    index.data = torch.arange(3)[2]
    return index


def written_through_data() -> torch.Tensor:
    index = known().clone()
    index.data.add_(1)
    return index


def written_by_keyword() -> torch.Tensor:
    index = torch.arange(3)
    torch.relu_(input=index.sub_(2))
    return index[1]


def written_as_out() -> torch.Tensor:
    index = torch.arange(3)
    torch.add(index, 1, out=index)
    return index[1]


@pytest.mark.parametrize("index", [given_another_memory, written_through_data, written_by_keyword, written_as_out])
def test_a_value_that_was_overwritten_is_not_known(index: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(CaptureError):
        indexed(index)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            count = (torch.arange(3) + 1).shape[0]
        return self.layer(x).square().mean() * count


def test_tensors_that_do_not_count_writes_are_not_known() -> None:
    assert "aten.linear.default" in {op.target for op in capture(Counts(), (torch.ones(3, 2),)).ops}
