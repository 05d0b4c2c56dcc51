"""Two of DreamDDP's models for the ``sync-loss`` benchmark, in PyTorch, with fewer channels and smaller pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.training.loss_study.runs import gpt_loss, gpt_parts, resnet_parts
from benchmarks.training.loss_study.tasks import pictures, texts
from benchmarks.training.sync_loss_networks import SyncLossSettings
from farflung.testing.replicas import Layers

__all__ = ["TorchNetwork", "torch_network"]

Array = npt.NDArray[Any]
_SEQUENCE = 32
_JUDGED = 512


class TorchNetwork:
    """A model in PyTorch. Each parameter is a layer. Norms of batches take the statistics of the batch, also when judged."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        loss: Callable[[Tensor, Tensor], Tensor],
        samples: tuple[tuple[Array, Array], tuple[Array, Array]],
        draw: tuple[int, int],
    ) -> None:
        """``samples``: to train on, and to judge by. ``draw``: seed, and samples of a gradient."""
        self._model, self._loss = nn.Sequential(*parts).train(), loss
        (self._train, self._held), (self._seed, self._samples) = samples, draw
        self._parameters = list(self._model.parameters())
        self._start = [parameter.detach().numpy().copy() for parameter in self._parameters]

    def start(self) -> Layers:
        """First parameters."""
        return [layer.copy() for layer in self._start]

    def gradient(self, parameters: Sequence[Array], step: int, member: int) -> tuple[float, Layers]:
        """Mean loss in nats on the member's samples of the step, and its gradient."""
        x, y = self._train
        chosen = np.random.default_rng((self._seed, step, member)).integers(0, len(y), self._samples)
        self._put(parameters)
        self._model.zero_grad(set_to_none=True)
        loss = self._loss(self._model(torch.from_numpy(x[chosen])), torch.from_numpy(y[chosen]))
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()), [_gradient(parameter) for parameter in self._parameters]

    @torch.no_grad()
    def held_out(self, parameters: Sequence[Array]) -> float:
        """Mean loss in nats on samples that are not trained on."""
        self._put(parameters)
        x, y = (torch.from_numpy(part[:_JUDGED]) for part in self._held)
        return float(self._loss(self._model(x), y))

    @torch.no_grad()
    def _put(self, parameters: Sequence[Array]) -> None:
        for parameter, array in zip(self._parameters, parameters, strict=True):
            parameter.copy_(torch.from_numpy(array))


def _gradient(parameter: nn.Parameter) -> Array:
    assert parameter.grad is not None
    found: Array = parameter.grad.numpy().copy()
    return found


def torch_network(settings: SyncLossSettings, task: str, seed: int) -> TorchNetwork:
    """``gpt`` or ``resnet-18``."""
    torch.manual_seed(seed)
    if task == "gpt":
        parts = gpt_parts(settings.hidden, settings.width, _SEQUENCE)
        train, held = texts((settings.text, settings.held_text), _SEQUENCE)
        return TorchNetwork(parts, gpt_loss, (train, held), (seed, settings.samples))
    first, second, held = pictures(settings.images)
    train = np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])
    parts = resnet_parts(settings.channels, (2, 2, 2, 2), bottleneck=False)
    return TorchNetwork(parts, functional.cross_entropy, (train, held), (seed, settings.samples))
