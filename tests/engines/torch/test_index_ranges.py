"""Integers of a batch outside of their range: the text gives the range, the value and a remedy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from farflung.engines.torch.index_ranges import out_of_range

SCORES, TABLE = torch.zeros(4, 3), torch.zeros(5, 2)
LABELS = "aten.cross_entropy_loss.default"


@pytest.mark.parametrize(
    ("target", "arguments", "text"),
    [
        (LABELS, (SCORES, torch.tensor([0, 3, 9, 1])), "labels must be 0 to 2 (or -100, which is ignored), got 3"),
        (LABELS, (SCORES, torch.tensor([0, 2, -1, 1]), None, 1, -5), "labels must be 0 to 2 (or -5, which is ignored), got -1"),
        (LABELS, (SCORES, torch.tensor([0, 4, 0, 1]), None, 1, 0), "labels must be 0 to 2, got 4"),
        ("aten.nll_loss.default", (SCORES[0], torch.tensor(3)), "labels must be 0 to 2 (or -100, which is ignored), got 3"),
        ("aten.embedding.default", (TABLE, torch.tensor([[4, 5]])), "indices of the table must be 0 to 4, got 5"),
        ("aten.index_select.default", (TABLE, 1, torch.tensor([2])), "indices of dimension 1 must be 0 to 1, got 2"),
        ("aten.gather.default", (TABLE, -1, torch.tensor([[-1]])), "indices of dimension -1 must be 0 to 1, got -1"),
        ("aten.one_hot.default", (torch.tensor([1, 6]), 6), "classes must be 0 to 5, got 6"),
    ],
)
def test_the_range_the_value_and_a_remedy(target: str, arguments: tuple[Any, ...], text: str) -> None:
    assert out_of_range(target, arguments).startswith(f"{text}: correct the batch, or ")


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        (LABELS, (SCORES, torch.tensor([0, 2, -100, 1]))),
        (LABELS, (SCORES, torch.full((4, 3), 7.0))),  # probabilities
        ("aten.one_hot.default", (torch.tensor([1, 6]),)),
        ("aten.embedding.default", (TABLE, torch.zeros(0, dtype=torch.long))),
        ("aten.add.Tensor", (TABLE, TABLE)),
        ("aten.embedding.default", ()),
        (LABELS, (torch.zeros(()), torch.tensor(1))),
        ("aten.index_select.default", (TABLE, 7, torch.tensor([2]))),
        ("aten.one_hot.default", (None, 3)),
    ],
)
def test_what_is_in_range(target: str, arguments: tuple[Any, ...]) -> None:
    assert out_of_range(target, arguments) == ""
