"""The index batches of a ``DataLoader``, in the order in which a plain loop over the loader would read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from farflung.errors import DataError

__all__ = ["IndexOrder", "Preserved", "Randomness"]

#: A context after which the process's generator of random numbers is as before; one thread at a time.
Preserved = Callable[[], AbstractContextManager[None]]


class Randomness:
    """The random numbers that a plain loop would draw from ``generators`` and PyTorch's own one after the call of ``train``.

    The caller's generators do not move. So neither the capture nor the training changes the order of samples, and a second call
    with the same loader begins with the same order.
    """

    def __init__(self, preserved: Preserved, generators: Iterable[torch.Generator | None]) -> None:
        self._preserved = preserved
        given = {id(one): one for one in generators if one is not None}
        self._generators = [torch.default_generator, *given.values()]
        #: The state of each generator before the next draw.
        self._states = self._read()

    def draw(self, call: Callable[[], Any]) -> Any:
        """What ``call()`` returns; its random numbers follow those of the previous call."""
        with self._preserved():
            before = self._read()
            self._set(self._states)
            try:
                return call()
            finally:
                self._states = self._read()
                self._set(before)

    def _read(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._generators]

    def _set(self, states: Iterable[torch.Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


class IndexOrder:
    """The loader's index batches by position, over as many epochs as are asked for.

    A loader without samples runs through the loader's own sampler, in a process's own ``DataLoader``, so it draws what the
    loader draws. Indices that were drawn stay in memory, because a sampler cannot go back.
    """

    def __init__(self, loader: DataLoader[Any], preserved: Preserved) -> None:
        self._sampler = loader.sampler
        whole = loader.batch_sampler is None  # the dataset's items are batches already
        chosen: dict[str, Any] = (
            {"batch_size": None, "sampler": loader.sampler} if whole else {"batch_sampler": loader.batch_sampler}
        )
        self._echo: DataLoader[Any] = DataLoader(_Echo(), collate_fn=_same, generator=loader.generator, **chosen)
        self._randomness = Randomness(preserved, [loader.generator, getattr(loader.sampler, "generator", None)])
        self._running: Iterator[Any] | None = None
        self._epoch = 0
        self._drawn: list[NDArray[np.int64] | Any] = []

    def __getitem__(self, position: int) -> Any:
        """The indices of the batch at ``position``, counted over all epochs.

        Raises:
            DataError: the loader has no batch.
        """
        while len(self._drawn) <= position:
            self._drawn.append(_packed(self._randomness.draw(self._next)))
        found = self._drawn[position]
        return found.tolist() if isinstance(found, np.ndarray) else found

    def _next(self) -> Any:
        for _ in range(2):
            if self._running is None:
                if hasattr(self._sampler, "set_epoch"):
                    self._sampler.set_epoch(self._epoch)
                self._running, self._epoch = iter(self._echo), self._epoch + 1
            try:
                return next(self._running)
            except StopIteration:
                self._running = None
        raise DataError("the data have no batch: the dataset is empty, or smaller than one batch with drop_last=True")


class _Echo(torch.utils.data.Dataset[Any]):
    """A dataset whose samples are their indices."""

    def __getitem__(self, index: Any) -> Any:
        return index


def _same(batch: Any) -> Any:
    return batch


def _packed(indices: Any) -> Any:
    """Whole numbers as an array, which takes an eighth of the memory of a list."""
    plain = isinstance(indices, (list, tuple)) and all(type(index) is int for index in indices)
    return np.asarray(indices, np.int64) if plain else indices
