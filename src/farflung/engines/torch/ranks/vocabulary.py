"""Operators on a vocabulary of which each rank has a part: looking up words, and the cross-entropy of their logits.

Source: Megatron-LM (Shoeybi et al. 2019), section 3. What differs: labels that are ignored, smoothed labels, and padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional

from farflung.engines.torch.index_ranges import out_of_range
from farflung.engines.torch.ranks.group import RankGroup, SumOfRanks
from farflung.errors import DataError
from farflung.graph.tensor_parallel import Split
from farflung.graph.tensor_parallel.vocabulary_rules import EMBEDDING, LOSS

__all__ = ["RankWords", "divided_embedding", "divided_loss"]

#: Names of ``reduction`` in ATen.
_NONE, _MEAN = 0, 1


class Adding(Protocol):
    """What ranks exchange (``RankGroup``)."""

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks."""

    def largest(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the largest over all ranks."""


@dataclass(frozen=True, slots=True)
class RankWords:
    """Words ``start`` to ``stop`` of ``size``: what this rank has of a vocabulary. ``padded``: with the padding behind them."""

    start: int
    stop: int
    size: int
    padded: int

    @classmethod
    def of(cls, split: Split, group: RankGroup) -> RankWords:
        """Those of a dimension that is divided as ``split`` says."""
        ((start, stop),) = split.ranges(group.rank, group.size)
        return cls(start, stop, split.size, split.part(group.size))

    def places(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where ``words`` are in the part (0 for those that are not there), and which of them are there."""
        own = (words >= self.start) & (words < self.stop)
        return (words - self.start).masked_fill(~own, 0), own


def _check(target: str, words: RankWords, arguments: tuple[Any, ...], inside: torch.Tensor) -> None:
    """Check integers of the batch. On accelerators, a wrong one fails like PyTorch's kernels, when the device comes to it.

    Raises:
        DataError: one is out of range.
    """
    if found := out_of_range(target, (torch.empty(words.size, words.size, device="meta"), *arguments)):
        raise DataError(found)
    if inside.device.type != "cpu":
        torch._assert_async(inside.all())


def divided_embedding(words: RankWords, group: RankGroup) -> Callable[..., torch.Tensor]:
    """The embedding by a table of which this rank has a part. Rows of other ranks are zeros before the ranks add."""

    def embedding(table: torch.Tensor, indices: torch.Tensor, padding: int = -1, *options: bool) -> torch.Tensor:
        _check(EMBEDDING, words, (indices,), (indices >= 0) & (indices < words.size))
        places, own = words.places(indices)
        padding = padding - words.start if words.start <= padding < words.stop else -1
        found = torch.ops.aten.embedding.default(table, places, padding, *options).masked_fill(~own.unsqueeze(-1), 0)
        whole: torch.Tensor = SumOfRanks.apply(found, group)  # type: ignore[no-untyped-call]
        return whole

    return embedding


def divided_loss(words: RankWords, group: Adding) -> Callable[..., torch.Tensor]:
    """The cross-entropy of logits of which this rank has a part; the result is the same on all ranks."""

    def loss(
        logits: torch.Tensor,
        labels: torch.Tensor,
        weight: None = None,
        reduction: int = _MEAN,
        ignored: int = -100,
        smoothing: float = 0.0,
    ) -> torch.Tensor:
        del weight
        inside = ((labels >= 0) & (labels < words.size)) | (labels == ignored)
        _check(LOSS, words, (labels, None, reduction, ignored), inside)
        if torch.is_autocast_enabled(logits.device.type):
            logits = logits.float()
        settings = _Settings(words, group, reduction, ignored, smoothing)
        found: torch.Tensor = _Loss.apply(logits, labels, settings)  # type: ignore[no-untyped-call]
        return found

    return loss


@dataclass(frozen=True, slots=True)
class _Settings:
    words: RankWords
    group: Adding
    reduction: int
    ignored: int
    smoothing: float


class _Loss(torch.autograd.Function):
    """Keeps the probabilities of this rank's words, as the loss of one process keeps those of all."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, settings: _Settings) -> torch.Tensor:
        words, group, smoothing = settings.words, settings.group, settings.smoothing
        rows = logits.movedim(min(1, logits.ndim - 1), -1)[..., : words.stop - words.start]
        rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        rows = rows - group.largest(rows.amax(-1)).unsqueeze(-1)
        places, own = words.places(labels)
        sums = [rows.gather(-1, places.unsqueeze(-1)).squeeze(-1).masked_fill(~own, 0)]
        sums += [rows.sum(-1)] if smoothing else []
        chances = rows.exp_()
        total, label, *all_words = group.add(torch.stack([chances.sum(-1), *sums]))
        normal = total.log()
        losses = normal - label
        if smoothing:
            losses = (1 - smoothing) * losses + smoothing * (normal - all_words[0] / words.size)
        counted = labels != settings.ignored
        losses = losses.masked_fill(~counted, 0)
        ctx.settings, ctx.dtype = settings, logits.dtype
        ctx.save_for_backward(chances.div_(total.unsqueeze(-1)), places, own, counted)
        found: torch.Tensor = losses if settings.reduction == _NONE else losses.sum()
        if settings.reduction == _MEAN:
            found = found / counted.sum()
        return found.to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        chances, places, own, counted = ctx.saved_tensors
        settings: _Settings = ctx.settings
        words, smoothing = settings.words, settings.smoothing
        if settings.reduction == _MEAN:
            gradient = gradient / counted.sum()
        scale = torch.where(counted, gradient, 0).to(chances.dtype).unsqueeze(-1)
        found = chances * scale
        if smoothing:
            found -= scale * (smoothing / words.size)
        found.scatter_add_(-1, places.unsqueeze(-1), (smoothing - 1) * scale * own.unsqueeze(-1))
        found = functional.pad(found, (0, words.padded - (words.stop - words.start)))
        return found.movedim(-1, min(1, found.ndim - 1)).to(ctx.dtype), None, None
