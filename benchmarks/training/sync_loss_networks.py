"""The settings and the networks of the ``sync-loss`` benchmark: two networks in NumPy, and those of ``sync_loss_models``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.harness.base import Settings
from benchmarks.training.sync_strategies import ByteNetwork, SyncStrategiesSettings
from farflung.errors import InputError
from farflung.testing.replicas import Layers

__all__ = ["MODELS", "TASKS", "PixelNetwork", "SyncLossSettings", "TrainedNetwork", "network_of"]

Array = npt.NDArray[Any]
#: Networks by name: in NumPy, and in PyTorch (``sync_loss_models``).
TASKS = ("text", "images")
MODELS = ("gpt", "resnet-18")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncLossSettings(Settings):
    """What is trained on, and the clock.

    ``periods``: values of H. One has its curves at equal time. Several have theirs at equal steps (``asc_steps``), as in
    DreamDDP's Figures 10 to 14, and the time of a step is predicted for links with x = 1 at the first one.
    ``tasks``: networks (``TASKS``, ``MODELS``). ``text``, ``held_text``: texts (empty: Python's sources, and their last tenth).
    ``images``: a folder with ``train`` and ``test``, in each a folder per class (empty: no tasks of images). ``measured``: the
    JSON of ``sync-network``, or, for several periods, of ``dreamddp``, and ``model`` in it (empty: predicted, at x = 1).
    ``asc_steps``: how many steps of ASC-WFBP the time is enough for. ``lr``, ``image_lr``: AdamW's rates, constant and the same
    for all strategies. ``width``, ``hidden``: of the networks in NumPy, and ``width`` and blocks of the GPT; a network has at
    least H layers. ``channels``: of ResNet-18's first group.
    """

    strategies: tuple[str, ...] = ("asc_wfbp", "local_sgd", "contiguous", "free_sets")
    tasks: tuple[str, ...] = ("text", "images")
    text: str = ""
    held_text: str = ""
    images: str = ""
    measured: str = ""
    model: str = "gpt2"
    seeds: int = 3
    members: int = 4
    periods: tuple[int, ...] = (5,)
    asc_steps: int = 200
    points: int = 8
    samples: int = 32
    width: int = 96
    hidden: int = 4
    channels: int = 8
    lr: float = 2e-3
    image_lr: float = 5e-4
    plot: str = ""

    @property
    def several(self) -> bool:
        """Whether there are several values of H."""
        return len(self.periods) > 1


class TrainedNetwork(Protocol):
    """A network whose replicas are trained."""

    def start(self) -> Layers:
        """First parameters."""

    def gradient(self, parameters: Sequence[Array], step: int, member: int) -> tuple[float, Layers]:
        """Loss and gradients on a member's samples."""

    def held_out(self, parameters: Sequence[Array]) -> float:
        """Loss on what is not trained on."""


class PixelNetwork:
    """Classifies small images: tanh layers with residuals on pixels, soft-max. All layers are matrices."""

    def __init__(self, settings: SyncLossSettings, data: Mapping[str, tuple[Array, Array]], seed: int) -> None:
        self._settings, self._data, self._seed = settings, data, seed

    def start(self) -> Layers:
        """First parameters."""
        random, width = np.random.default_rng(self._seed), self._settings.width
        inputs, classes = self._data["train"][0].shape[1], int(self._data["train"][1].max()) + 1
        shapes = [(inputs, width), *[(width, width)] * self._settings.hidden, (width, classes)]
        return [(random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32) for shape in shapes]

    def gradient(self, parameters: Sequence[Array], step: int, member: int) -> tuple[float, Layers]:
        """Mean loss in nats on the member's samples of the step, and its gradient."""
        x, y = self._data["train"]
        chosen = np.random.default_rng((self._seed, step, member)).integers(0, len(y), self._settings.samples)
        return self._both(parameters, x[chosen], y[chosen])

    def held_out(self, parameters: Sequence[Array]) -> float:
        """Mean loss in nats on the test images."""
        return self._both(parameters, *self._data["test"])[0]

    def _both(self, parameters: Sequence[Array], x: Array, y: Array) -> tuple[float, Layers]:
        first, *hidden, last = parameters
        outs = [np.tanh(x @ first)]
        for weight in hidden:
            outs.append(outs[-1] + np.tanh(outs[-1] @ weight))
        scores = outs[-1] @ last
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        rows = np.arange(len(y))
        loss = float(-np.log(shares[rows, y] + 1e-30).mean())
        delta = shares
        delta[rows, y] -= 1
        delta /= len(y)
        grads = [outs[-1].T @ delta]
        delta = delta @ last.T
        for index in range(len(hidden) - 1, -1, -1):
            inner = delta * (1 - (outs[index + 1] - outs[index]) ** 2)
            grads.insert(0, outs[index].T @ inner)
            delta = delta + inner @ hidden[index].T
        return loss, [x.T @ (delta * (1 - outs[0] ** 2)), *grads]


def network_of(settings: SyncLossSettings, task: str, seed: int) -> TrainedNetwork:
    """The network of a task in NumPy.

    Raises:
        InputError: the task is unknown, or its data are missing.
    """
    if task == "images":
        return PixelNetwork(settings, {part: _pictures(Path(settings.images) / part) for part in ("train", "test")}, seed)
    if task == "text":
        small = SyncStrategiesSettings(samples=settings.samples, width=settings.width, hidden_layers=settings.hidden)
        return ByteNetwork(small, _text(settings.text), seed, held=_text(settings.held_text) if settings.held_text else b"")
    raise InputError(f"unknown task {task!r}: known are {', '.join((*TASKS, *MODELS))}")


def _text(path: str) -> bytes:
    if not path:
        from benchmarks.training.sync_strategies import standard_text

        return standard_text()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"the text {path} can't be read: {error.strerror}") from None


_PICTURES: dict[Path, tuple[Array, Array]] = {}


def _pictures(folder: Path) -> tuple[Array, Array]:
    """(pixels in [-1, 1], class numbers) of a folder per class; 16 x 16 in three colours."""
    if folder not in _PICTURES:
        from PIL import Image

        classes = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        if not classes:
            raise InputError(f"images: {folder} has no folder per class; give a folder with train and test in it")
        pixels, labels = [], []
        for number, kind in enumerate(classes):
            for file in sorted(kind.iterdir()):
                with Image.open(file) as image:
                    pixels.append(np.asarray(image.convert("RGB").resize((16, 16)), np.float32).reshape(-1) / 127.5 - 1)
                labels.append(number)
        _PICTURES[folder] = np.stack(pixels), np.array(labels)
    return _PICTURES[folder]
