"""The cross-entropy of divided logits is that of the whole, with all its options. Ranks are threads that meet here."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from torch.nn import functional

from farflung.engines.torch.ranks.vocabulary import RankWords, divided_loss
from farflung.errors import DataError
from farflung.graph.tensor_parallel import Split

WORDS, ROWS = 11, 6


class Meeting:
    """What ``ranks`` threads exchange."""

    def __init__(self, ranks: int) -> None:
        self._barrier, self._given = Barrier(ranks), [torch.empty(0)] * ranks

    def of(self, rank: int) -> Any:
        meeting = self

        class Group:
            def add(self, tensor: torch.Tensor) -> torch.Tensor:
                return meeting.exchange(rank, tensor, lambda found: found.sum(0))

            def largest(self, tensor: torch.Tensor) -> torch.Tensor:
                return meeting.exchange(rank, tensor, lambda found: found.amax(0))

        return Group()

    def exchange(self, rank: int, tensor: torch.Tensor, joined: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        self._given[rank] = tensor
        self._barrier.wait(60)
        found = joined(torch.stack(self._given))
        self._barrier.wait(60)
        return found


def words_of(ranks: int) -> list[RankWords]:
    split = Split(0, (WORDS,))
    parts = [split.ranges(rank, ranks)[0] for rank in range(ranks)]
    return [RankWords(start, stop, WORDS, split.part(ranks)) for start, stop in parts]


def on_ranks(ranks: int, logits: torch.Tensor, labels: torch.Tensor, seed: torch.Tensor, *options: Any) -> tuple[Any, Any]:
    """The loss of each rank, and the gradient of the whole logits. ``logits``: words in dimension 1."""
    meeting, parts = Meeting(ranks), words_of(ranks)

    def compute(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        part = parts[rank]
        own = functional.pad(logits.movedim(1, -1)[..., part.start : part.stop], (0, part.padded - (part.stop - part.start)))
        own = own.movedim(-1, 1).clone().requires_grad_()
        loss = divided_loss(part, meeting.of(rank))(own, labels, None, *options)
        (gradient,) = torch.autograd.grad(loss, own, seed)
        assert not gradient.movedim(1, -1)[..., part.stop - part.start :].any(), "padding has no gradient"
        return loss.detach(), gradient.movedim(1, -1)[..., : part.stop - part.start].movedim(-1, 1)

    with ThreadPoolExecutor(ranks) as pool:
        found = list(pool.map(compute, range(ranks)))
    return [loss for loss, _ in found], torch.cat([gradient for _, gradient in found], 1)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(("ignored", "smoothing"), [(-100, 0.0), (3, 0.0), (-100, 0.2), (3, 0.2)])
def test_the_loss_and_its_gradient(ranks: int, reduction: str, ignored: int, smoothing: float) -> None:
    numbers = torch.Generator().manual_seed(5)
    logits = 20 * torch.randn(ROWS, WORDS, 3, generator=numbers)
    labels = torch.randint(0, WORDS, (ROWS, 3), generator=numbers)
    labels[0, 0], labels[1, 1] = 3, ignored
    whole = logits.clone().requires_grad_()
    truth = functional.cross_entropy(whole, labels, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing)
    seed = torch.rand(truth.shape, generator=numbers)
    (expected,) = torch.autograd.grad(truth, whole, seed)
    number = ["none", "mean", "sum"].index(reduction)
    losses, gradient = on_ranks(ranks, logits, labels, seed, number, ignored, smoothing)
    assert all(torch.equal(loss, losses[0]) for loss in losses)
    torch.testing.assert_close(losses[0], truth.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)


def test_a_label_out_of_range_names_the_whole_vocabulary() -> None:
    part = words_of(2)[0]
    with pytest.raises(DataError, match=r"labels must be 0 to 10 \(or -100, which is ignored\), got 11"):
        divided_loss(part, Meeting(1).of(0))(torch.zeros(1, part.padded), torch.tensor([11]))
