"""Decentralized experts: models of separate runs, of which a router chooses some for each sample.

Source: "Decentralized Diffusion Models" (McAllister et al. 2025): the samples are divided into clusters, an expert is trained on
each in a run of its own, and a router predicts the clusters of a sample. What differs: the router here goes by the distances to
the clusters' centers, or is a model of your own; the paper trains a small transformer. Outputs of language models are mixed as
probabilities, as the ensembles of Branch-Train-Merge (Li et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from farflung.errors import InputError

__all__ = ["Centers", "Experts"]

_ROUNDS = 100


class Centers(nn.Module):
    """A router: the centers of clusters of features, and how near a sample is to each.

    ``temperature``: probabilities are the softmax of negative squared distances over it.
    """

    def __init__(self, centers: Tensor, temperature: float = 1.0) -> None:
        """``centers``: float[K, n]."""
        super().__init__()
        if centers.dim() != 2 or temperature <= 0:
            raise InputError(
                f"centers of shape {list(centers.shape)} with temperature {temperature:g}: give a row for each expert, and a "
                "temperature above 0"
            )
        self.centers: Tensor
        self.register_buffer("centers", centers.detach().clone())
        self.temperature = temperature

    @classmethod
    def of(cls, features: Tensor, count: int, *, seed: int = 0, temperature: float = 1.0) -> Centers:
        """Find ``count`` centers of ``features`` (float[samples, n]) by k-means, from the first ones that k-means++ draws.

        Raises:
            InputError: there are fewer different samples than centers.
        """
        if features.dim() != 2 or not 1 <= count <= len(torch.unique(features, dim=0)):
            raise InputError(
                f"{count} centers of features of shape {list(features.shape)}: give a row for each sample, and at most as many "
                "centers as there are different rows"
            )
        random = torch.Generator().manual_seed(seed)
        found = features[torch.randint(len(features), (1,), generator=random)]
        while len(found) < count:
            far = torch.cdist(features, found).min(dim=1).values.square()
            found = torch.cat([found, features[torch.multinomial(far, 1, generator=random)]])
        for _ in range(_ROUNDS):
            nearest = torch.cdist(features, found).argmin(dim=1)
            members = [features[nearest == number] for number in range(count)]
            moved = torch.stack([rows.mean(dim=0) if len(rows) else old for rows, old in zip(members, found, strict=True)])
            if torch.equal(moved, found):
                break
            found = moved
        return cls(found, temperature)

    def nearest(self, features: Tensor) -> Tensor:
        """Return the number of the nearest center for each row of ``features``: int64[samples]. It names the expert's samples."""
        return torch.cdist(features, self.centers).argmin(dim=1)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logarithm of each expert's probability: float[samples, K]."""
        return (-torch.cdist(features, self.centers).square() / self.temperature).log_softmax(dim=1)


class Experts(nn.Module):
    """Experts and their router as one model for inference.

    ``router(features)`` returns a score of each expert for each sample, as logits: float[samples, K]. ``features``: what makes
    the router's input from the model's inputs (``None``: the first of them). ``top``: how many experts compute a sample, the
    likeliest ones. ``mix``: ``outputs``: their mean, weighted by the router's probabilities; ``probabilities``: outputs are
    logits along the last axis, and the logarithm of the mean of their softmax is returned.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        router: nn.Module | Callable[[Any], Tensor],
        *,
        top: int = 1,
        mix: Literal["outputs", "probabilities"] = "outputs",
        features: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= top <= len(models):
            raise InputError(f"top = {top} of {len(models)} experts: set it to at least 1 and at most {len(models)}")
        if mix not in ("outputs", "probabilities"):
            raise InputError(f"mix = {mix!r}: known are outputs, probabilities")
        self.models, self.router = nn.ModuleList(models), router
        self.top, self.mix, self.features = top, mix, features

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the mixed outputs. An expert computes only the samples that choose it; all inputs have a row for each sample.

        Raises:
            InputError: the router scores another number of experts.
        """
        scores = self.router(inputs[0] if self.features is None else self.features(*inputs))
        rows = len(inputs[0])
        if scores.shape != (rows, len(self.models)):
            raise InputError(
                f"the router returned scores of shape {list(scores.shape)} for {rows} samples and {len(self.models)} experts: "
                "return a row for each sample and a column for each expert"
            )
        best = scores.topk(self.top, dim=1)
        weights = best.values.softmax(dim=1)
        total: Tensor | None = None
        for number, model in enumerate(self.models):
            samples, places = (best.indices == number).nonzero(as_tuple=True)
            if not len(samples):
                continue
            output = model(*(one[samples] for one in inputs))
            output = output.softmax(dim=-1) if self.mix == "probabilities" else output
            part = weights[samples, places].to(output.dtype).reshape(-1, *(1,) * (output.dim() - 1)) * output
            total = part.new_zeros(rows, *part.shape[1:]) if total is None else total
            total = total.index_add(0, samples, part)
        assert total is not None  # each sample chooses at least one expert
        return total.log() if self.mix == "probabilities" else total
