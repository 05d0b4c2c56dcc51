"""The models and samples of the ``loss-study`` benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.training.loss_study.runs import (
    Batch,
    Gradients,
    Network,
    Training,
    Values,
    adaptive_codecs,
    cut_bytes,
    gpt_stages,
    held_out,
    resnet_stages,
    train,
    with_waists,
)
from benchmarks.training.loss_study.settings import LATENCY, LINKS, LossStudySettings
from farflung.codecs.samples import sample_ids
from farflung.errors import InputError

__all__ = ["Study", "pictures", "samples_at", "shuffled", "texts"]

Array = npt.NDArray[Any]
_SIZE = 16
_JUDGED = 6


class Study:
    """One model and one seed: every variant begins with the same weights and sees the same samples."""

    def __init__(self, settings: LossStudySettings, model: str, seed: int) -> None:
        if model not in ("gpt", "resnet18"):
            raise InputError(f"unknown model {model!r}: known are gpt, resnet18")
        self._settings, self._model, self._seed = settings, model, seed
        images, files = model == "resnet18", (settings.first, settings.train, settings.held)
        self._rows = settings.image_rows if images else settings.rows
        self._rates = (settings.image_lr, settings.image_lr / 10) if images else (settings.lr, settings.tune_lr)
        parts = pictures(settings.images) if images else texts(files, settings.sequence)
        self._before, self._train, self._held = parts
        self._judges = [samples_at(self._held, np.arange(i * 64, i * 64 + 64) % len(self._held[0])) for i in range(_JUDGED)]
        self._tuned: Mapping[str, Any] | None = None

    def run(self, way: str, phase: str, how: Mapping[str, Any], members: int) -> dict[str, Any]:
        """Train one variant: its loss on what was held back, and the dense bytes over those that were sent.

        Raises:
            InputError: the model has no waists.
        """
        network = self._fresh()
        if way == "waist":
            if self._model != "gpt":
                raise InputError(f"way 'waist' is for the model gpt, not {self._model}: set models=gpt")
            if how:
                with_waists(network, self._settings.width, share=int(how["share"]), learned=bool(how["learned"]))
        if phase == "fine-tuning":
            network.stages.load_state_dict(self._pretrained())
        crossed = [1, 1]

        def at(step: int, sent: int, dense: int) -> None:
            crossed[:] = [sent, dense]

        narrower = int(how.get("share", 1)) if way == "waist" else 1  # the values of the model without waists were wider
        values = self._values(network, how) if way == "pipeline" else Values()
        gradients = Gradients(**how) if way == "replicas" else Gradients()
        training = self._training(phase, members if way == "replicas" else 1)
        train(network, training, values, gradients, at)
        return {
            "loss": held_out(network, self._judges),
            "ratio": narrower * crossed[1] / max(1, crossed[0]),
            "bytes": crossed[0],
            "parameters": sum(parameter.numel() for parameter in network.stages.parameters()),
        }

    def _values(self, network: Network, how: Mapping[str, Any]) -> Values:
        """How values travel; AdaTopK's ratios come from the bytes of this model's cuts and the stated links."""
        rest = dict(how)
        if "adatopk" not in rest:
            return Values(**rest)
        nbytes = cut_bytes(network, samples_at(self._train, np.arange(self._rows) % len(self._train[0])))
        ratio, values = float(rest.pop("adatopk")), str(rest.pop("values"))
        return Values(**rest, by_link=adaptive_codecs(nbytes, LINKS, LATENCY, ratio, values))

    def _fresh(self) -> Network:
        torch.manual_seed(self._seed)
        settings = self._settings
        if self._model == "resnet18":
            return resnet_stages(settings.image_width)
        return gpt_stages(4, settings.width, settings.sequence)

    def _pretrained(self) -> Mapping[str, Any]:
        """Weights after dense training on the other samples."""
        if self._tuned is None:
            network = self._fresh()
            batch = self._batches(self._before, 0)
            training = Training(steps=self._settings.first_steps, lr=self._rates[0], batch=batch)
            train(network, training, Values(), Gradients(), lambda step, sent, dense: None)
            self._tuned = {name: value.clone() for name, value in network.stages.state_dict().items()}
        return self._tuned

    def _training(self, phase: str, members: int) -> Training:
        settings = self._settings
        if phase == "scratch":
            return Training(steps=settings.steps, lr=self._rates[0], batch=self._batches(self._train, 0), members=members)
        batch = self._batches(self._train, settings.again)
        return Training(steps=settings.tune_steps, lr=self._rates[1], batch=batch, members=members)

    def _batches(self, samples: tuple[Array, Array], again: int) -> Callable[[int], Batch]:
        return shuffled(samples, self._rows, self._seed, again)


def shuffled(samples: tuple[Array, Array], rows: int, seed: int, again: int = 0) -> Callable[[int], Batch]:
    """Batches of ``rows`` by step, in a new order in each epoch; ``again``: of so many samples only (0: all)."""
    size = len(samples[0])
    pool = np.random.default_rng(seed).permutation(size)[: again or size]
    per_epoch = max(1, len(pool) // rows)

    def batch(step: int) -> Batch:
        epoch, place = divmod(step, per_epoch)
        order = np.random.default_rng((seed, epoch)).permutation(pool)
        return samples_at(samples, order[place * rows : (place + 1) * rows])

    return batch


def samples_at(samples: tuple[Array, Array], indices: Array) -> Batch:
    """The samples of ``indices`` as a batch."""
    x, y = samples[0][indices], samples[1][indices]
    return torch.from_numpy(x), torch.from_numpy(y), sample_ids([x], len(x))


def texts(files: Sequence[str], length: int) -> tuple[tuple[Array, Array], ...]:
    """Bytes of each file (empty: made up) in sequences of ``length``, and the bytes that follow them."""
    found = []
    for number, name in enumerate(files):
        raw = Path(name).read_bytes() if name else bytes((7 * i + i * i // (11 + number)) % 256 for i in range(6000))
        data = np.frombuffer(raw, np.uint8).astype(np.int64)
        count = (len(data) - 1) // length
        x = data[: count * length].reshape(count, length)
        y = data[1 : count * length + 1].reshape(count, length)
        found.append((x.copy(), y.copy()))
    return tuple(found)


@cache
def pictures(folder: str) -> tuple[tuple[Array, Array], ...]:
    """Pictures of 16 x 16 pixels: every second of the training folder's, the others, the test folder's."""
    if not folder:
        generator = np.random.default_rng(0)
        made = generator.standard_normal((120, 3, _SIZE, _SIZE)).astype(np.float32), generator.integers(0, 10, 120)
        return made, made, made
    train_set, test_set = _read(Path(folder) / "train"), _read(Path(folder) / "test")
    halves = [(train_set[0][part::2], train_set[1][part::2]) for part in (0, 1)]
    return halves[0], halves[1], test_set


def _read(folder: Path) -> tuple[Array, Array]:
    from PIL import Image

    classes = sorted(item for item in folder.iterdir() if item.is_dir()) if folder.is_dir() else []
    if not classes:
        raise InputError(f"images: {folder} has no folder per class; give a folder with train and test in it")
    images, labels = [], []
    for number, place in enumerate(classes):
        for file in sorted(place.glob("*.jpg")):
            with Image.open(file) as image:
                images.append(np.asarray(image.convert("RGB").resize((_SIZE, _SIZE)), np.float32).transpose(2, 0, 1) / 128 - 1)
            labels.append(number)
    order = np.random.default_rng(0).permutation(len(labels))
    return np.stack(images)[order], np.array(labels, np.int64)[order]
