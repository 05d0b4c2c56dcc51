"""Batches of a ``DataLoader`` over a dataset with an index, at any position and as often as needed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from farflung.errors import DataError
from farflung.frontends.caller.index_order import IndexOrder, Preserved
from farflung.ids import derive_seed

__all__ = ["LoadedBatches"]


class LoadedBatches:
    """The batches of ``loader`` by position.

    The loader's own worker processes load them, if it has some. Random numbers of the dataset and of the collation are keyed by
    ``seed`` and position, so a batch that is loaded again is the same.
    """

    def __init__(self, loader: DataLoader[Any], seed: int, preserved: Preserved) -> None:
        self._loader = loader
        self._order = IndexOrder(loader, preserved)
        self._samples = _Samples(loader, seed, preserved)
        self._running: Iterator[Any] | None = None
        self._next = -1

    def __call__(self, position: int) -> Any:
        """The batch at ``position``, counted over all epochs."""
        if not self._loader.num_workers:
            return self._samples.__getitems__((position, self._order[position]))
        if self._running is None or position != self._next:
            self._running = iter(self._workers(position))
        self._next = position + 1
        return next(self._running)

    def close(self) -> None:
        """End the loader's processes."""
        self._running = None

    def _workers(self, first: int) -> DataLoader[Any]:
        loader = self._loader
        return DataLoader(
            self._samples,
            batch_sampler=_From(self._order, first),  # type: ignore[arg-type]  # positions travel with the indices
            collate_fn=_same,
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=torch.Generator().manual_seed(0),  # seeds of the processes, which ``_Samples`` replaces
        )


class _From:
    """Pairs of position and indices, from a position on, without an end."""

    def __init__(self, order: IndexOrder, first: int) -> None:
        self._order, self._first = order, first

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        position = self._first
        while True:
            yield position, self._order[position]
            position += 1


class _Samples(torch.utils.data.Dataset[Any]):
    """Whole batches of the loader's dataset, collated, under random numbers of their own."""

    def __init__(self, loader: DataLoader[Any], seed: int, preserved: Preserved) -> None:
        self._dataset: Any = loader.dataset
        self._collate: Callable[[Any], Any] = loader.collate_fn
        self._whole = loader.batch_sampler is None
        self._seed, self._preserved = seed, preserved

    def __getitems__(self, key: tuple[int, Any]) -> Any:
        position, indices = key
        seed = derive_seed("batch", self._seed, position)
        others = random.getstate(), np.random.get_state()
        with self._preserved():
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % (1 << 32))
            try:
                return self._collate(self._read(indices))
            finally:
                random.setstate(others[0])
                np.random.set_state(others[1])

    def _read(self, indices: Any) -> Any:
        if self._whole:
            return self._dataset[indices]
        together = getattr(self._dataset, "__getitems__", None)
        try:
            return [self._dataset[index] for index in indices] if together is None else together(indices)
        except IndexError as error:
            raise DataError(f"the dataset has no sample {indices}: {error}; its sampler gives indices that it lacks") from error


def _same(batch: Any) -> Any:
    return batch
